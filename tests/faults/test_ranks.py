"""What befalls one of several processes: the last line says why the run has ended, and how to resume it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from asr.processes import TRY_AGAIN
from asr.run.start import saying_how_to_resume
from asr.training.processes import explaining_lost_peers
from tests.commands.test_resume import wait_for_update
from tests.programs import Started, wait_until
from tests.small_runs import LONG
from werdict.errors import PeerLost


def pid_of_rank(rank: int, process: Started) -> int:
    """Return the process of a rank, which spare processes are named after."""
    words = ["pgrep", "-P", str(process.pid), "-x", f"rank {rank}"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def start(small_run, folder: Path, *words: str, **options) -> Started:
    data = f"data.dir={small_run.data_dir}"
    return small_run.programs.start("train", *words, data, "trainer.devices=2", cwd=folder, num_spares=2, **options)


def ended(process: Started, folder: Path) -> tuple[int, str]:
    """Return the exit code, and the last line."""
    code, printed = process.wait(timeout=300), (folder / "log.txt").read_text()
    assert "Traceback" not in printed, printed
    return code, [line for line in printed.splitlines() if line and "HYDRA_FULL_ERROR" not in line][-1]


def test_a_killed_process_is_the_only_one_that_is_spoken_of(small_run, tmp_path):
    process = start(small_run, tmp_path, *LONG, "trainer.val_check_interval=2", "run_dir=run")
    wait_for_update(tmp_path / "run", 5, process)
    os.kill(pid_of_rank(1, process), signal.SIGKILL)
    code, line = ended(process, tmp_path)
    assert code == 128 + signal.SIGKILL
    assert line.startswith("asr-train: process 1 of 2 was killed by SIGKILL")
    assert "lower data.batch.max_duration_s" in line
    assert f"asr-train resume={tmp_path / 'run'} continues from update " in line


def test_a_lost_peer_is_not_said_to_have_printed_anything_and_the_run_can_be_resumed(tmp_path):
    with (
        pytest.raises(PeerLost, match="asr-train resume="),
        saying_how_to_resume(tmp_path),
        explaining_lost_peers(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1234")


def test_processes_of_which_one_is_slow_to_save_are_waited_for(small_run, tmp_path):
    process = start(small_run, tmp_path, *LONG, "run_dir=run")
    wait_for_update(tmp_path / "run", 2, process)
    slow = pid_of_rank(1, process)
    os.kill(slow, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None
    os.kill(slow, signal.SIGCONT)
    code, line = ended(process, tmp_path)
    assert code == TRY_AGAIN
    assert line.endswith(f"to resume: asr-train resume={tmp_path / 'run'}")


def test_ranks_end_with_the_process_that_started_them(small_run, tmp_path):
    words = (*LONG, f"data.dir={small_run.data_dir}", "trainer.devices=2", "run_dir=run")
    process = small_run.programs.start("train", *words, cwd=tmp_path)
    wait_for_update(tmp_path / "run", 1, process)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    children = found.stdout.split()
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 10)
