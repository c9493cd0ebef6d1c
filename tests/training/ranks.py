"""Two processes that train together on this machine's CPU."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run_two(script: str, folder: Path) -> list[str]:
    """Run a script of this folder as two ranks, which are told where to write; return what each of them printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    environment |= {"MASTER_PORT": str(20000 + os.getpid() % 20000), "PYTHONPATH": str(HERE.parents[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), str(folder)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    return said
