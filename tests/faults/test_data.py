"""What goes wrong while data are prepared: one line, the right exit code, and nothing half made."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from asr.data.manifests.archives import extract
from tests.data.corpora import PRECOMPUTED, Pair, Recipe, ids, run
from tests.faults.spoken_corpus import TINY, write_corpus

Arrange = Callable[[Path], None]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("faults") / "corpus")


@pytest.fixture
def folder(corpus, tmp_path) -> Path:
    for path in corpus.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


def nothing(folder: Path) -> None:
    pass


def data_is(make: Callable[[Path], object]) -> Arrange:
    return lambda folder: make(folder / "data") and None


@pytest.mark.slow
def test_a_run_is_resumed_without_reading_its_source(programs, folder):
    assert programs.run("train", *TINY, "run_dir=run", cwd=folder).code == 0
    (folder / "my.tsv").unlink()
    ended = programs.run("train", "resume=run", cwd=folder)
    assert ended.code == 0, ended.printed


@pytest.mark.slow
def test_another_version_of_the_corpus_is_named_and_the_run_stays_as_it_was(programs, folder):
    assert programs.run("train", *TINY, "run_dir=run", cwd=folder).code == 0
    table = folder / "my.tsv"
    rows = table.read_text().splitlines(keepends=True)[:-1]
    (folder / "newer.tsv").write_text("".join(rows))
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    newer = ("resume=run", "data.source=newer.tsv")
    ended = programs.run("train", *newer, "data.dir=other", cwd=folder)
    assert ended.code == 2, ended.printed
    assert "data.source: 'my.tsv' in the run, 'newer.tsv' now" in ended.printed
    assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == before
    table.write_text("".join(rows))  # the same name
    ended = programs.run("train", "resume=run", "data.dir=other", "data.source=my.tsv", cwd=folder)
    assert ended.code == 2, ended.printed
    assert re.search(r"data: \w+/\w+ in the run, \w+/\w+ now", ended.printed), ended.printed
    assert programs.run("train", "resume=run", cwd=folder).code == 0
    accepted = ("resume=run", "data.dir=other", "data.source=my.tsv", "trainer.max_steps=9", "allow_changes=true")
    ended = programs.run("train", *accepted, cwd=folder)
    assert ended.code == 0, ended.printed
    ended = programs.run("compare", "runs=run", cwd=folder)
    said = " ".join(ended.printed.split())
    assert re.search(r"run was resumed with other options than it was begun with, .*data: \w+/\w+ in the run", said), (
        said
    )


# what is arranged, further words, limits, exit code, a part of the last line
FAULTS = {
    "no room for the cuts": (nothing, (), {"RLIMIT_FSIZE": 1500}, 1, "data/"),
    "too few files": (nothing, (), {"RLIMIT_NOFILE": 7}, 1, "on open files (ulimit -n), then run"),
    "no room for stored features": (
        nothing,
        ("features=log_mel_precomputed",),
        {"RLIMIT_FSIZE": 8000},
        1,
        "File too large",
    ),
    "data.dir is a file": (data_is(lambda data: data.write_text("")), (), {}, 2, "is not a folder"),
    "all audio is missing": (lambda folder: [p.unlink() for p in folder.glob("*.wav")], (), {}, 2, "can be used"),
    "train is missing": (lambda folder: [p.unlink() for p in folder.glob("train*")], (), {}, 2, "of split 'train' can"),
    "the table repeats an id": (
        lambda folder: (folder / "my.tsv").write_text("audio\ttext\ntrain0.wav\ta\ntrain0.wav\tb\n"),
        (),
        {},
        2,
        "line 3",
    ),
    "the table has a short row": (
        lambda folder: (folder / "my.tsv").write_text("audio\ttext\ntrain0.wav\n"),
        (),
        {},
        2,
        "line 2: 1 fields",
    ),
}


@pytest.mark.parametrize(("arrange", "words", "limits", "code", "last"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_while_preparing_is_one_line_and_leaves_nothing_half_made(
    programs, folder, arrange, words, limits, code, last
):
    arrange(folder)
    ended = programs.run("prepare", *TINY, *words, cwd=folder, limits=limits)
    assert (ended.code, "Traceback" in ended.printed) == (code, False), ended.printed
    assert last in ended.last_line
    assert not list(folder.rglob("prepared.json"))
    assert not list(folder.rglob("cuts_*"))
    if limits:
        # with room again everything is there
        ended = programs.run("prepare", *TINY, *words, cwd=folder)
        assert ended.code == 0, ended.printed


@pytest.mark.slow
def test_prepared_data_that_were_cut_short_are_prepared_again_and_that_is_said(programs, folder):
    assert programs.run("prepare", *TINY, cwd=folder).code == 0
    file = next(folder.rglob("cuts_train.npz"))
    before = file.read_bytes()
    os.truncate(file, 30)
    ended = programs.run("prepare", *TINY, cwd=folder)
    assert (ended.code, "Traceback" in ended.printed) == (0, False)
    assert "cuts_train.npz" in ended.printed
    assert ended.printed.count("; preparing again") == 1
    assert file.read_bytes() == before
    assert "preparing again" not in programs.run("prepare", *TINY, cwd=folder).printed


@pytest.mark.parametrize("where", ["features", "check", "tokenizer"])
def test_an_interrupt_while_preparing_leaves_nothing_half_made(tmp_path, monkeypatch, where):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    places = {
        "features": "asr.data.preparation.build.read_features",
        "check": "asr.data.preparation.checked_chunks.check_cuts",
    }
    with monkeypatch.context() as patched:
        patched.setattr(places.get(where, "asr.text.character.CharacterTokenizerTrainer.train"), interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, Recipe(), PRECOMPUTED)
    assert not list(tmp_path.rglob("*.partial"))
    assert not list(tmp_path.rglob("prepared.json"))
    assert ids(run(tmp_path, Recipe(), PRECOMPUTED), "train") == ["train-0", "train-1", "train-2"]


def test_a_full_disk_is_not_taken_for_unreadable_audio(tmp_path, monkeypatch):
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    recipe = Recipe()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left") as error:
            run(tmp_path, recipe, PRECOMPUTED)
    assert str(error.value.filename).endswith(".npy")
    prepared = run(tmp_path, Recipe(), PRECOMPUTED)
    assert prepared.splits["train"]["num_dropped"] == 0


def test_audio_that_cannot_be_decoded_is_dropped_and_not_taken_for_a_full_disk(tmp_path):
    def spoil(folder: Path, splits: dict[str, list[Pair]]) -> None:
        path = Path(splits["train"][0][0].sources[0].source)
        path.write_bytes(path.read_bytes()[:100])

    assert ids(run(tmp_path, Recipe(spoil), PRECOMPUTED), "train") == ["train-1", "train-2"]


def test_a_full_disk_while_unpacking_names_the_folder_and_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a", "a")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left") as error:
        extract(tmp_path / "a.tar", tmp_path / "in" / "out")
    assert "out.partial" in str(error.value.filename)
    assert list((tmp_path / "in").iterdir()) == []
