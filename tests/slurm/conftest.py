"""A SLURM cluster of this machine alone, for tests that submit jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm_cluster.sh"
DAEMONS = ("munged", "slurmctld", "slurmd")
WORDS = (  # of a run that two cores soon finish
    *("trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.num_nodes=1"),
    *("logger=csv", "data.batch.max_duration_s=10"),
)


def ask(*words: str) -> str:
    """Run a command of SLURM; return what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()


def wait_for(what: Callable[[], object], log: Path, timeout_s: float = 300) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"{ask('squeue')}\n{log.read_text()}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Path]:
    """Start a cluster, or skip; return its folder."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    lacking = [name for name in DAEMONS if shutil.which(name, path=path) is None]
    if lacking:
        pytest.skip(f"no {', '.join(lacking)} here: apt-get install slurm-wlm munge")
    if os.getuid() != 0:
        pytest.skip("only root can start a cluster")
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True, timeout=180)
    assert started.returncode == 0, started.stderr
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    yield folder
    subprocess.run([SCRIPT, "stop", folder], check=True, timeout=180)
    del os.environ["SLURM_CONF"]
