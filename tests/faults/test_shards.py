"""Training from shards: the same numbers as from files, also after a kill; what is wrong with a shard is one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.faults.spoken_corpus import TINY, write_corpus

WORDS = (*(word for word in TINY if not word.startswith(("augment=", "data.source="))), "data.transcripts_lm=0")
# what is computed from audio, and from shards
KINDS = {
    "audio": (("augment=speed_specaugment",), ()),
    "features": (
        ("augment=specaugment", "augment.features.max_feature_bins=1", "features=log_mel_precomputed"),
        ("features=precomputed", "data.num_features=80"),
    ),
}
AUDIO = KINDS["audio"][0]
FILES = "data.source=my.tsv"
SHARDS = ("data.storage=shar", "data.storage.dir=shards")
TIMES = ("_s,", "_per_s", "_mb,", "gb,", "data_wait,")
TAR = Path("shards", "train", "recording.000000.tar")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("shards") / "corpus")


def metrics(run_dir: Path) -> list[str]:
    lines = (run_dir / "metrics.csv").read_text().splitlines()
    numbers = [",".join(line.split(",")[:3]) for line in lines]
    return [line for line in numbers if not any(time in line for time in TIMES)]


def same_run(first: Path, second: Path) -> bool:
    states = [torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in (first, second)]
    texts = [(run / "decode" / "test.hyp.txt").read_text() for run in (first, second)]
    return all(map(torch.equal, states[0].values(), states[1].values())) and texts[0] == texts[1]


@pytest.mark.parametrize(("words", "from_shards"), KINDS.values(), ids=KINDS)
def test_a_run_from_shards_is_a_run_from_files_to_the_last_digit(programs, place, tmp_path, words, from_shards):
    folder = Path(shutil.copytree(place, tmp_path / "here"))
    runs = {
        "files": (FILES,),
        "run": (FILES, *SHARDS, "data.workers.num_workers=2"),
        "again": ("data.source=shards", *from_shards),
    }
    for name, source in runs.items():
        if name == "again":
            for file in (*folder.glob("*.wav"), *folder.glob("data/**/*.npy")):
                file.unlink()
        programs.run("train", *WORDS, *words, *source, f"run_dir={name}", cwd=folder)
        assert same_run(folder / "files", folder / name)
        assert metrics(folder / "files") == metrics(folder / name)


def in_place(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda tar: tar.write_bytes(change(tar.read_bytes()))


FAULTS = {
    "a missing shard": (Path.unlink, 2, "recording.000000.tar is missing or has changed"),
    "a tar that is cut short": (in_place(lambda data: data[:60_000]), 2, "is missing or has changed"),
    "a shard of the same size with other bytes": (
        in_place(lambda data: data[:512] + bytes(len(data) - 512)),
        1,
        "recording.000000.tar has changed since the data were prepared",
    ),
}


@pytest.fixture(scope="module")
def interrupted(programs, place, tmp_path_factory) -> Path:
    """Return a folder with a run from shards as it was after update 3, and the whole run."""
    folder = Path(shutil.copytree(place, tmp_path_factory.mktemp("interrupted") / "corpus"))
    for name, steps in (("whole", 6), ("cut", 3)):
        words = (*AUDIO, FILES, *SHARDS, f"run_dir={name}", f"trainer.max_steps={steps}", "schedule.max_steps=6")
        test = "decode_test=false" if name == "cut" else "seed=1"
        programs.run("train", *WORDS, *words, test, cwd=folder)
    return folder


@pytest.mark.parametrize(("harm", "code", "said"), FAULTS.values(), ids=FAULTS)
def test_a_shard_that_changes_between_kill_and_resume_is_a_line_and_loses_nothing(
    programs, interrupted, harm, code, said
):
    folder = interrupted
    run_dir = folder / f"run-{len(list(folder.glob('run-*')))}"
    shutil.copytree(folder / "cut", run_dir, symlinks=True)
    words = (f"resume={run_dir.name}", "trainer.max_steps=6", "allow_changes=true", "decode_test=true")
    workers = "data.workers.num_workers=2"
    kept = (folder / TAR).read_bytes()
    harm(folder / TAR)
    try:
        ended = programs.run("train", *words, workers, cwd=folder, code=code)
    finally:
        (folder / TAR).write_bytes(kept)
    assert "Traceback" not in ended.printed
    assert said in ended.last_line
    assert os.path.realpath(run_dir / "checkpoints" / "last.ckpt").endswith("update-000003.ckpt")
    programs.run("train", *words, workers, cwd=folder)
    assert same_run(folder / "whole", run_dir)
