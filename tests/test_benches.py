"""Benches of scripts/bench that decode or train whole runs, in short forms; the long ones are for people."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile

BENCH = Path(__file__).parents[1] / "scripts" / "bench"


def bench(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, str(BENCH), *words], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_trainings_end_like_those_left_alone(tmp_path):
    printed = bench(tmp_path, "soak", "--kills", "3", "--cases", "workers", "--markdown")
    (row,) = [line.split("|") for line in printed.splitlines() if line.startswith("| `workers`")]
    assert row[-3].strip() == "equal bit for bit"
    assert {"   kills: 3", "2 rows, every goal was met"} <= {*printed.splitlines()}


def test_every_level_of_noise_has_a_word_error_rate(small_run, tmp_path):
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise" / "hiss.flac", np.random.default_rng(1).normal(size=16_000) * 0.1, 16_000)
    printed = bench(tmp_path, "decoding-noise", str(small_run.run_dir), "--noise", "noise")
    assert printed.partition("─\n")[2].count("[") == len(("clean", "20 dB", "10 dB", "5 dB", "0 dB")), printed
