"""What goes wrong while data are prepared: one line, the right exit code, and nothing half made."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.data.corpora import PRECOMPUTED, Recipe, run
from tests.faults.spoken_corpus import TINY, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("faults") / "corpus")


@pytest.fixture
def folder(corpus, tmp_path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "here"))


def test_a_run_is_resumed_without_its_source_and_not_with_another_version_of_it(programs, folder):
    programs.run("train", *TINY, "run_dir=run", cwd=folder)
    table = folder / "my.tsv"
    rows = table.read_text().splitlines(keepends=True)[:-1]
    table.unlink()
    programs.run("train", "resume=run", cwd=folder)
    table.write_text("".join(rows))
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    words = ("train", "resume=run", "data.dir=other", "data.source=my.tsv")
    ended = programs.run(*words, cwd=folder, code=2)
    assert re.search(r"data: '\w+/\w+' in the run, '\w+/\w+' now", ended.printed), ended.printed
    assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == before
    programs.run(*words, "trainer.max_steps=9", "allow_changes=true", cwd=folder)
    said = " ".join(programs.run("compare", "runs=run", cwd=folder, code=2).printed.split())
    assert "run was resumed with other options than it was begun with" in said


# further words, limits, a part of the last line
LIMITS = {
    "no room for the cuts": ((), {"RLIMIT_FSIZE": 1500}, "data/"),
    "too few files": ((), {"RLIMIT_NOFILE": 7}, "ulimit -n"),
    "no room for stored features": (("features=log_mel_precomputed",), {"RLIMIT_FSIZE": 8000}, "File too large"),
}


@pytest.mark.parametrize(("words", "limits", "last"), LIMITS.values(), ids=LIMITS)
def test_a_limit_of_the_system_is_one_line_and_leaves_nothing_half_made(programs, folder, words, limits, last):
    ended = programs.run("prepare", *TINY, *words, cwd=folder, limits=limits, code=1)
    assert "Traceback" not in ended.printed
    assert last in ended.last_line
    assert not [*folder.rglob("prepared.json"), *folder.rglob("cuts_*")]
    # with room again everything is there
    programs.run("prepare", *TINY, *words, cwd=folder)


def test_prepared_data_that_were_cut_short_are_prepared_again_and_that_is_said(programs, folder):
    programs.run("prepare", *TINY, cwd=folder)
    file = next(folder.rglob("cuts_train.npz"))
    before = file.read_bytes()
    os.truncate(file, 30)
    ended = programs.run("prepare", *TINY, cwd=folder)
    assert "cuts_train.npz" in ended.printed
    assert file.read_bytes() == before
    assert "preparing again" not in programs.run("prepare", *TINY, cwd=folder).printed


def test_a_full_disk_is_not_taken_for_unreadable_audio(tmp_path, monkeypatch):
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left") as error:
            run(tmp_path, Recipe(), PRECOMPUTED)
    assert str(error.value.filename).endswith(".npy")
    assert run(tmp_path, Recipe(), PRECOMPUTED).splits["train"]["num_dropped"] == 0
