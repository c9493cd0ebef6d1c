"""Reader processes survive signals that a scheduler sends to every process of a job, and die with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from torch.utils.data import DataLoader

from asr.data.loading.loader import WorkerContext, ignore_signals_except_parents

PR_GET_PDEATHSIG = 2


class DeathSignals:
    """Items that tell which signal their reader gets when its parent dies."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, item: int) -> int:
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(found))
        return found.value


class Pids:
    """Items that tell which process read them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, item: int) -> int:
        return os.getpid()


def loader(items) -> DataLoader:
    init = partial(ignore_signals_except_parents, os.getpid())
    return DataLoader(
        items, batch_size=None, num_workers=1, worker_init_fn=init, multiprocessing_context=WorkerContext()
    )


@pytest.fixture
def reading():
    """An iterator with one reader, and the reader's number."""
    items = iter(loader(Pids()))
    return items, next(items)


def send(number: signal.Signals, pid: int) -> None:
    subprocess.run(["kill", f"-{number.name.removeprefix('SIG')}", str(pid)], check=True)
    time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_from_elsewhere_changes_nothing(reading, number):
    items, reader = reading
    send(number, reader)
    send(number, reader)
    assert list(items) == [reader] * 39


def test_a_thread_that_a_library_starts_in_each_child_is_not_hit():
    library = {"starts": True}
    sleeper = threading.Thread(target=time.sleep, args=(600,), daemon=True)
    os.register_at_fork(after_in_child=lambda: library["starts"] and sleeper.start())
    items = iter(loader(Pids()))
    reader = next(items)
    library["starts"] = False
    send(signal.SIGTERM, reader)
    assert list(items) == [reader] * 39


def test_the_parent_is_obeyed(reading):
    items, reader = reading
    (process,) = items._workers
    send(signal.SIGTERM, reader)
    assert process.is_alive()
    process.terminate()
    process.join(timeout=600)
    assert process.exitcode == 0


def test_a_reader_is_killed_with_its_parent():
    assert list(loader(DeathSignals())) == [signal.SIGKILL]


def test_a_child_whose_parent_is_dead_already_ends():
    script = "import os; from asr.processes import die_with_parent; die_with_parent({}); print('lives')"
    there, gone = (
        subprocess.run([sys.executable, "-c", script.format(parent)], capture_output=True, text=True, check=False)
        for parent in (os.getpid(), 2**22 + 1)  # no process has a number as large
    )
    assert (there.returncode, there.stdout) == (0, "lives\n"), there.stderr
    assert (gone.returncode, gone.stdout) == (1, "")
