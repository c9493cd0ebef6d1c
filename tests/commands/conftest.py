"""One small training, through the command line as a user would run it; the tests look at what it left."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.programs import Programs

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


@functools.cache
def session_programs() -> Programs:
    """Return what starts the commands quickly, for all tests of this process."""
    return Programs(Path(tempfile.mkdtemp(prefix="werdict-programs-")) / "log.txt")


@dataclass(frozen=True)
class Workplace:
    """A folder to run commands in."""

    folder: Path

    def run(self, command: str, *words: str, code: int = 0, **environment: str) -> str:
        """Run ``asr-<command>``, forked from a process that has imported it; return all that it printed.

        Variables of the environment, which may change what is imported, need a new interpreter.
        """
        if environment:
            return self.run_fresh(command, *words, code=code, **environment)
        return session_programs().run(command, *words, cwd=self.folder, timeout_s=600, code=code).printed

    def run_fresh(self, command: str, *words: str, code: int = 0, **environment: str) -> str:
        """Run ``asr-<command>`` in a new interpreter, as a user does; return all that it printed."""
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
