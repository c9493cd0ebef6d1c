"""Two processes that train together, for tests of what they share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Rank:
    """What the runs in tests/training/rank.py left in one of the processes, and what it printed."""

    left: dict[str, Any]
    said: str


@pytest.fixture(scope="session")
def ranks(tmp_path_factory) -> list[Rank]:
    """Make all runs in one pair of processes: starting these takes most of the time."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    environment |= {"MASTER_PORT": str(20000 + os.getpid() % 20000), "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.rank", str(folder)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # one that waits for another would wait for ever
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return [Rank(torch.load(folder / f"{rank}.pt", weights_only=True), said[rank]) for rank in range(2)]
