"""Training from shards: the same numbers as from files, also after a kill; what is wrong with a shard is one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.faults.spoken_corpus import TINY, write_corpus

WORDS = (
    *(word for word in TINY if not word.startswith("augment=")),
    "augment=speed_specaugment",
    "data.transcripts_lm=0",
)
SHARDS = ("data.storage=shar", "data.storage.dir=shards")
TIMES = ("_s,", "_per_s", "_mb,", "gb,")
TAR = Path("shards", "train", "recording.000000.tar")


@pytest.fixture(scope="module")
def place(programs, tmp_path_factory) -> Path:
    """Return a folder with a corpus and a run from its files."""
    folder = write_corpus(tmp_path_factory.mktemp("shards") / "corpus")
    ended = programs.run("train", *WORDS, "run_dir=files", cwd=folder)
    assert ended.code == 0, ended.printed
    return folder


@pytest.fixture
def folder(place, tmp_path) -> Path:
    shutil.copytree(place, tmp_path / "here", symlinks=True)
    return tmp_path / "here"


def metrics(run_dir: Path) -> list[str]:
    lines = (run_dir / "metrics.csv").read_text().splitlines()
    numbers = [",".join(line.split(",")[:3]) for line in lines]
    return [line for line in numbers if not any(time in line for time in TIMES)]


def weights(run_dir: Path) -> list[torch.Tensor]:
    return list(torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"].values())


def same_run(first: Path, second: Path) -> bool:
    pairs = zip(weights(first), weights(second), strict=True)
    texts = [(run / "decode" / "test.hyp.txt").read_text() for run in (first, second)]
    return all(torch.equal(*pair) for pair in pairs) and texts[0] == texts[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_from_shards_is_a_run_from_files_to_the_last_digit(programs, folder, num_workers):
    ended = programs.run("train", *WORDS, *SHARDS, f"data.workers.num_workers={num_workers}", "run_dir=run", cwd=folder)
    assert ended.code == 0, ended.printed
    assert same_run(folder / "files", folder / "run")
    assert metrics(folder / "files") == metrics(folder / "run")
    for name in folder.glob("*.wav"):
        name.unlink()
    ended = programs.run("train", *WORDS, "data.source=shards", "run_dir=again", cwd=folder)
    assert ended.code == 0, ended.printed
    assert same_run(folder / "files", folder / "again")
    assert metrics(folder / "files") == metrics(folder / "again")


def in_place(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda tar: tar.write_bytes(change(tar.read_bytes()))


FAULTS = {
    "a missing shard": (Path.unlink, 2, "recording.000000.tar is missing or has changed"),
    "a tar that is cut short": (in_place(lambda data: data[:60_000]), 2, "is missing or has changed"),
    "a shard of the same size with other bytes": (
        in_place(lambda data: data[:512] + bytes(len(data) - 512)),
        1,
        "recording.000000.tar has changed since the data were prepared: the checksum of the member at byte",
    ),
}


@pytest.fixture(scope="module")
def interrupted(programs, place, tmp_path_factory) -> Path:
    """Return a folder with a run from shards as it was after update 3, and the whole run."""
    folder = tmp_path_factory.mktemp("interrupted") / "corpus"
    shutil.copytree(place, folder, symlinks=True)
    for name, steps in (("whole", 6), ("cut", 3)):
        words = (*WORDS, *SHARDS, f"run_dir={name}", f"trainer.max_steps={steps}", "schedule.max_steps=6")
        ended = programs.run("train", *words, "decode_test=false" if name == "cut" else "seed=1", cwd=folder)
        assert ended.code == 0, ended.printed
    return folder


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("harm", "code", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_shard_that_changes_between_kill_and_resume_is_a_line_and_loses_nothing(
    programs, interrupted, harm, code, said, num_workers
):
    folder = interrupted
    run_dir = folder / f"run-{num_workers}-{len(list(folder.glob('run-*')))}"
    shutil.copytree(folder / "cut", run_dir, symlinks=True)
    words = (f"resume={run_dir.name}", "trainer.max_steps=6", "allow_changes=true", "decode_test=true")
    workers = f"data.workers.num_workers={num_workers}"
    kept = (folder / TAR).read_bytes()
    harm(folder / TAR)
    try:
        ended = programs.run("train", *words, workers, cwd=folder)
    finally:
        (folder / TAR).write_bytes(kept)
    assert (ended.code, "Traceback" in ended.printed) == (code, False), ended.printed
    assert said in ended.last_line
    assert os.path.realpath(run_dir / "checkpoints" / "last.ckpt").endswith("update-000003.ckpt")
    ended = programs.run("train", *words, workers, cwd=folder)
    assert ended.code == 0, ended.printed
    assert same_run(folder / "whole", run_dir)


WRONG = {
    "another kind": (("data.storage=tar",), "data.storage must be one of files, shar, given 'tar'"),
    "no folder": (("data.storage=shar",), "data.storage=shar needs a folder for the shards: data.storage.dir=PATH"),
    "a format of nothing": (("data.storage.audio=opus",), "it does nothing without data.storage=shar"),
    "another format": (
        (*SHARDS, "data.storage.audio=mp3"),
        "data.storage.audio must be one of flac, opus, original, given 'mp3'",
    ),
    "a format of audio for features": (
        (*SHARDS, "features=log_mel_precomputed", "augment=specaugment", "data.storage.audio=opus"),
        "data.storage.audio=opus: it does nothing where features are stored, not audio; choose features=log_mel, or",
    ),
    "augmented audio of stored features": (
        (*SHARDS, "features=log_mel_precomputed"),
        "augment.audio changes the audio, but features are stored; choose augment.audio=null",
    ),
    "a folder of somebody's": ((SHARDS[0], "data.storage.dir=."), "which these data do not; give a new or an empty"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG.keys())
def test_options_that_cannot_work_are_refused(programs, place, words, said):
    before = sorted(path.name for path in place.iterdir())
    ended = programs.run("prepare", *WORDS, *words, cwd=place)
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_full_disk_leaves_no_half_of_a_shard(programs, folder):
    ended = programs.run("prepare", *WORDS, *SHARDS, cwd=folder, limits={"RLIMIT_FSIZE": 60_000})
    assert (ended.code, "recording.000000.tar" in ended.last_line) == (1, True), ended.printed
    assert not list((folder / "shards").rglob("*.tmp"))
    assert not list((folder / "shards" / "train").iterdir())
    ended = programs.run("prepare", *WORDS, *SHARDS, cwd=folder)
    assert ended.code == 0, ended.printed
