"""A small finished run that tests of broken and hostile run folders copy, and then change."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from asr.training.checkpoints import point_link, update_file
from tests.programs import Ended, Programs

TINY_MODEL = (
    "data.workers.num_workers=0",
    "tokenizer=char",
    "encoder.num_layers=1",
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "encoder.d_feedforward=16",
    "encoder.subsampling_channels=2",
    "trainer.max_steps=6",
    "trainer.val_check_interval=3",
    "logger=csv",
    "torch_threads=1",
)
TINY = ("data.prepare.num_train=24", "data.prepare.num_dev=4", "data.prepare.num_test=4", *TINY_MODEL)
# long enough to be interrupted
LONG = (
    *(word for word in TINY if "trainer." not in word),
    "trainer.max_steps=50000",
    "trainer.val_check_interval=50000",
)
# its corpus has shards enough for an interruption, each of which is soon complete
MANY_SHARDS = (*LONG, "data.prepare.num_train=300")
SMALL_SHARDS = {"asr.data.synthesis.speak_corpus.SHARD_UTTERANCES": 20}


@dataclass(frozen=True)
class SmallRun:
    """A folder to start commands in, its prepared data, and a finished run of six updates.

    Attributes:
        programs: that start commands.
        folder: where they are started.
        run_dir: of the run.
        audio: a file of its test set.
    """

    programs: Programs
    folder: Path
    run_dir: Path
    audio: Path

    def run(self, command: str, *words: str, **options) -> Ended:
        """Run a command."""
        return self.programs.run(command, *words, cwd=self.folder, **options)

    @property
    def data_dir(self) -> Path:
        """Where the data of ``TINY`` and ``LONG`` are prepared."""
        return self.folder / "data" / "digits"

    def copy(self, to: Path) -> Path:
        """Return a copy of the finished run."""
        shutil.copytree(self.run_dir, to, symlinks=True)
        return to

    def interrupted(self, to: Path) -> Path:
        """Return a copy of the run as it was after update 3, killed before update 6 was saved."""
        folder = self.copy(to)
        for name in ("report", "decode"):
            shutil.rmtree(folder / name)
        checkpoints = folder / "checkpoints"
        update_file(checkpoints, 6).unlink()
        (checkpoints / "best.ckpt").unlink()
        point_link(checkpoints / "last.ckpt", update_file(checkpoints, 3))
        return folder


def make_small_run(programs: Programs, folder: Path) -> SmallRun:
    """Train for six updates."""
    programs.run("train", *TINY, "run_dir=first", cwd=folder)
    # other tests prepare further data beside its own
    return SmallRun(programs, folder, folder / "first", sorted(folder.glob("data/digits/*/audio/test-*/*.flac"))[0])
