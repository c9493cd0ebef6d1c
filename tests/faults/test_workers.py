"""A worker that reads data and is lost ends the run with a line, whatever it was lost by; nobody waits for it."""

from __future__ import annotations

import os
import resource
import signal
import time

import pytest
import torch

from asr.data.loading.loader import Workers, explaining_lost_workers, load_batches
from werdict.errors import RunFailed


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def open_no_more_files() -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return torch.zeros(1000)


class Fails:
    """Data whose third item is fatal to who reads it."""

    def __init__(self, harm) -> None:
        self.harm = harm

    def __getitem__(self, item: int) -> object:
        return self.harm() if item == 2 else torch.zeros(item)


@pytest.mark.parametrize(("harm", "advice"), [(be_killed, "lower data.workers"), (open_no_more_files, "ulimit -n")])
def test_a_lost_worker_ends_reading_with_a_line(capfd, harm, advice):
    with pytest.raises(RunFailed, match=f"a worker that reads data was lost.*{advice}"), explaining_lost_workers():
        for _ in load_batches(Fails(harm), range(1000), Workers(1, prefetch=1)):
            pass
    assert "Traceback" not in capfd.readouterr().err
