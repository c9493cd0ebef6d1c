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


def no_room() -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
    return torch.zeros(2**16)


# what a worker does, a part of what it says, a part of the advice
LOSSES = {
    "killed": (lambda: kill(signal.SIGKILL), "", "The kernel does this when memory runs out: lower data.workers"),
    "no shared memory": (lambda: kill(signal.SIGBUS), "", "Make room in /dev/shm, or lower data.workers"),
    "ended": (lambda: os._exit(7), "", "num_workers=0 needs no worker"),
    "a batch that cannot be sent": (lambda: lambda: 0, "cannot send a batch: Can't pickle", "num_workers=0"),
    "no more files": (no_more_files, "Too many open files", "ulimit -n"),
    "no room": (no_room, "File too large", "ulimit -f, the size of a file"),
}


class Fails:
    """Data whose third item is fatal to who reads it."""

    def __init__(self, harm) -> None:
        self.harm = harm

    def __getitem__(self, item: int) -> object:
        return self.harm() if item == 2 else torch.zeros(item)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(("harm", "said", "advice"), LOSSES.values(), ids=LOSSES)
def test_a_lost_worker_ends_reading_with_a_line(capfd, harm, said, advice, num_workers):
    with (
        pytest.raises(RunFailed, match="a worker that reads data was lost: ") as raised,
        explaining_lost_workers(),
    ):
        for _ in load_batches(Fails(harm), range(1000), Workers(num_workers, prefetch=1)):
            pass
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)
    printed = capfd.readouterr().err
    assert said in printed
    assert "Traceback" not in printed


# command, limits of its processes
LIMITS = {
    "training, few files": ("train", {"RLIMIT_NOFILE": 20}),
    "training, no worker can be started": ("train", {"RLIMIT_NOFILE": 16}),
    "training, small files": ("train", {"RLIMIT_FSIZE": 12_000}),
    "validating, few files": ("train", {"RLIMIT_NOFILE": 28}),
    "evaluating, few files": ("evaluate", {"RLIMIT_NOFILE": 20}),
    "evaluating, small files": ("evaluate", {"RLIMIT_FSIZE": 12_000}),
    "transcribing, few files": ("transcribe", {"RLIMIT_NOFILE": 16}),
    "transcribing, small files": ("transcribe", {"RLIMIT_FSIZE": 12_000}),
}


@pytest.mark.parametrize(("command", "limits"), LIMITS.values(), ids=LIMITS)
def test_a_worker_without_room_or_files_ends_a_command_with_1(small_run, tmp_path, command, limits):
    words = {
        "train": (*TINY, "data.workers.num_workers=2", f"run_dir={tmp_path / 'run'}"),
        "evaluate": (f"run={small_run.run_dir}", f"output_dir={tmp_path / 'out'}", "num_workers=1"),
        "transcribe": (f"run={small_run.run_dir}", f"audio={small_run.audio()}", "num_workers=1"),
    }[command]
    ended = small_run.run(command, *words, limits=limits, timeout_s=50)
    assert ended.code == 1, ended.printed
    # another worker may say after it why it has ended
    (line,) = [line for line in ended.printed.splitlines() if line.startswith(f"asr-{command}: ")]
    assert "a worker that reads data was lost: " in line
    assert "num_workers=0 needs no worker" in line
    assert "Traceback" not in ended.printed
