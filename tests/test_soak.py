"""A short form of scripts/bench soak; the long one is for people."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_killed_trainings_end_like_those_left_alone(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "scripts" / "bench"),
        "soak",
        "--kills",
        "3",
        "--cases",
        "workers",
        "--markdown",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| `workers`")]
    assert row[-3].strip() == "equal bit for bit"
    assert {"   kills: 3", "2 rows, every goal was met"} <= {*done.stdout.splitlines()}
