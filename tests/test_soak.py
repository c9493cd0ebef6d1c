"""A short form of scripts/soak.py; the long one is for people."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_killed_trainings_end_like_those_left_alone(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "soak.py"), "--kills", "3", "--cases", "workers", "--markdown"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal bit for bit" in done.stdout
    assert "ok: 3 kills in 1 of 1 cases" in done.stdout
