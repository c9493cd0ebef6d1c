"""Queues the SLURM job of a run again that was told to save and to end."""

from __future__ import annotations

import os
import subprocess

from asr.processes import TRY_AGAIN

TIMEOUT_S = 60  # for SLURM's answer, which is late while many jobs are preempted


def queue_again() -> None:
    """Queue the job of this process again, if submitit has started it, and end this process.

    SLURM itself queues a job again that it has to kill. One that saves and ends within its grace time
    (``GraceTime`` of a partition) counts as completed, and a sweep would be left with half a run.

    A job that is being cancelled, or has reached its time limit, stays ended: SLURM no longer calls it running.

    Raises:
        SystemExit: the job is queued again, and has no result yet.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm" or job_id is None:
        return
    state = _ask("squeue", "--noheader", "--format=%T", f"--jobs={job_id}")
    if state.stdout.strip() != "RUNNING":
        return
    queued = _ask("scontrol", "requeue", job_id)
    if queued.returncode:
        why = queued.stderr.strip()
        print(f"SLURM does not queue job {job_id} again: {why}; the command of the sweep resumes its run", flush=True)
        return
    print(f"job {job_id} is queued again, and will resume its run", flush=True)
    raise SystemExit(TRY_AGAIN)


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=str(error))
