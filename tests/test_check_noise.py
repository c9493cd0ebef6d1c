"""A run is decoded at every level of noise by scripts/bench decoding-noise."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile

ROOT = Path(__file__).parents[1]


def test_every_level_of_noise_has_a_word_error_rate(small_run, tmp_path):
    noise = np.random.default_rng(1).normal(size=16_000) * 0.1
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise" / "hiss.flac", noise, 16_000)
    command = [
        sys.executable,
        str(ROOT / "scripts" / "bench"),
        "decoding-noise",
        str(small_run.run_dir),
        "--noise",
        "noise",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    row = done.stdout.partition("─\n")[2]
    assert row.count("[") == len(("clean", "20 dB", "10 dB", "5 dB", "0 dB")), done.stdout
