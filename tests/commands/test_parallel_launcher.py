"""Jobs of a sweep in several processes: their results, and how one ends the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from asr.processes import Terminated
from hydra_plugins.werdict_parallel_launcher import ParallelLauncher
from werdict.errors import RunFailed

SLOW_S = 30.0


class Words(ParallelLauncher):
    """Does what the first word of a job says."""

    def _run(self, number: int, overrides: Sequence[str]) -> JobReturn:
        what, _, value = overrides[0].partition("=")
        if what == "sleep":
            time.sleep(float(value))
        elif what in ("kill", "exit"):
            while not Path(value).exists():  # until the other job is at work
                time.sleep(0.01)
            if what == "exit":
                raise SystemExit(2)
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "leave":
            try:
                Path(value).write_text("begun")
                time.sleep(SLOW_S)
            except Terminated as ended:
                Path(value).write_text(ended.signal.name)
                raise
        result = JobReturn()
        result.status = JobStatus.COMPLETED
        result.return_value = f"{number}: {what}"
        return result


def launched(folder: Path, num_jobs: int, *words: str) -> list[str]:
    launcher = Words(num_jobs)
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(folder / "sweep")}}})
    launcher.setup(hydra_context=None, task_function=None, config=config)
    return [result.return_value for result in launcher.launch([[word] for word in words], 3)]


@pytest.mark.parametrize("num_jobs", [1, 2, -1])
def test_results_have_the_order_of_the_jobs(tmp_path, num_jobs):
    assert launched(tmp_path, num_jobs, "sleep=0.3", "a", "sleep=0.1", "b") == ["3: sleep", "4: a", "5: sleep", "6: b"]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("kill", RunFailed, "SIGKILL"),
        ("exit", SystemExit, "2"),
    ],
)
def test_a_job_that_cannot_be_run_ends_the_others_which_are_waited_for(tmp_path, how, error, said):
    begin = time.monotonic()
    with pytest.raises(error, match=said):
        launched(tmp_path, 3, f"leave={tmp_path / 'left'}", f"{how}={tmp_path / 'left'}", f"sleep={SLOW_S}")
    assert time.monotonic() - begin < SLOW_S
    assert (tmp_path / "left").read_text() == "SIGTERM"
