"""A worker that reads data and is lost ends the run with a line, whatever it was lost by; nobody waits for it."""

from __future__ import annotations

import os
import resource
import signal
import time

import pytest
import torch

from asr.data.loading.loader import Workers, load_batches
from asr.errors import RunFailed, explaining_lost_workers
from tests.small_runs import TINY


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(600)


def no_more_files() -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return torch.zeros(1000)


# what a worker does, a part of what it says, a part of the advice
LOSSES = {
    "killed": (lambda: kill(signal.SIGKILL), "", "The kernel does this when memory runs out: lower data.workers"),
    "a batch that cannot be sent": (lambda: lambda: 0, "cannot send a batch: Can't pickle", "num_workers=0"),
    "no more files": (no_more_files, "Too many open files", "ulimit -n"),
}


class Fails:
    """Data whose third item is fatal to who reads it."""

    def __init__(self, harm) -> None:
        self.harm = harm

    def __getitem__(self, item: int) -> object:
        return self.harm() if item == 2 else torch.zeros(item)


@pytest.mark.parametrize(("harm", "said", "advice"), LOSSES.values(), ids=LOSSES)
def test_a_lost_worker_ends_reading_with_a_line(capfd, harm, said, advice):
    with (
        pytest.raises(RunFailed, match="a worker that reads data was lost: ") as raised,
        explaining_lost_workers(),
    ):
        for _ in load_batches(Fails(harm), range(1000), Workers(1, prefetch=1)):
            pass
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)
    printed = capfd.readouterr().err
    assert said in printed
    assert "Traceback" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"RLIMIT_NOFILE": 20}, {"RLIMIT_FSIZE": 12_000}], ids=str)
def test_a_worker_without_room_or_files_ends_a_command_with_1(small_run, tmp_path, limits):
    words = (*TINY, "data.workers.num_workers=2", f"run_dir={tmp_path / 'run'}")
    ended = small_run.run("train", *words, limits=limits, timeout_s=50)
    assert ended.code == 1, ended.printed
    assert "a worker that reads data was lost: " in ended.printed
    assert "Traceback" not in ended.printed
