"""One small training, through the command line as a user would run it; the tests look at what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TINY = (
    "data.prepare.num_train=60",
    "data.prepare.num_dev=8",
    "data.prepare.num_test=10",
    "data.workers.num_workers=1",
    "tokenizer=char",
    "encoder.num_layers=1",
    "encoder.d_model=48",
    "encoder.d_feedforward=64",
    "encoder.subsampling_channels=8",
    "trainer.max_steps=12",
    "trainer.val_check_interval=6",
    "torch_threads=1",
)


@dataclass(frozen=True)
class Workplace:
    """A folder to run commands in."""

    folder: Path

    def run(self, command: str, *words: str, code: int = 0, **environment: str) -> str:
        """Run ``asr-<command>``; return all that it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "asr.commands", command, *words],
            cwd=self.folder,
            env={**os.environ, "WANDB_MODE": "offline", "COLUMNS": "200", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, f"exit code {done.returncode}, expected {code}:\n{done.stdout}"
        assert "GPU available" not in done.stdout, "Lightning speaks"
        return done.stdout


@dataclass(frozen=True)
class Trained(Workplace):
    """A workplace with a finished run."""

    run_dir: Path
    printed: str
