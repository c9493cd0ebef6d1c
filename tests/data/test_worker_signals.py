"""Reader processes survive signals that a scheduler sends to every process of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from torch.utils.data import DataLoader

from asr.data.worker_signals import obey_parent_alone


class Pids:
    """Items that tell which process read them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, item: int) -> int:
        return os.getpid()


@pytest.fixture
def reading():
    """An iterator with one reader, and the reader's number."""
    loader = DataLoader(Pids(), batch_size=None, num_workers=1, worker_init_fn=obey_parent_alone)  # type: ignore[arg-type]
    items = iter(loader)
    return items, next(items)


def send(number: signal.Signals, pid: int) -> None:
    subprocess.run(["kill", f"-{number.name.removeprefix('SIG')}", str(pid)], check=True)
    time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_from_elsewhere_changes_nothing(reading, number):
    items, reader = reading
    send(number, reader)
    send(number, reader)
    assert list(items) == [reader] * 39


def test_the_parent_is_obeyed(reading):
    items, reader = reading
    (process,) = items._workers
    send(signal.SIGTERM, reader)
    assert process.is_alive()
    process.terminate()
    process.join(timeout=600)
    assert process.exitcode == 0
