import http.server
import tarfile
import threading
from functools import partial
from pathlib import Path

import pytest
import soundfile

from asr.recipes.librispeech import prepare
from asr.recipes.librispeech.prepare import prepare_librispeech
from tests.recipes.miniatures import (
    LIBRISPEECH_PARTS,
    MINI_PARTS,
    QuietHandler,
    archived,
    reasons,
    speakers_of,
    texts_of,
    write_librispeech,
)


@pytest.fixture(scope="module")
def full(words, tmp_path_factory) -> Path:
    return write_librispeech(tmp_path_factory.mktemp("full"), words, LIBRISPEECH_PARTS)


@pytest.fixture(scope="module")
def mini(words, tmp_path_factory) -> Path:
    return write_librispeech(tmp_path_factory.mktemp("mini"), words, MINI_PARTS)


def part_archives(folder: Path, into: Path) -> Path:
    """Pack each part as openslr.org does."""
    into.mkdir(parents=True)
    for part in (folder / "LibriSpeech").glob("*-*"):
        with tarfile.open(into / f"{part.name}.tar.gz", "w:gz") as tar:
            tar.add(part, f"LibriSpeech/{part.name}")
    return into


def test_the_official_splits_are_kept_apart(full, tmp_path):
    corpus = prepare_librispeech(tmp_path, source=str(full), subsets=100)
    assert speakers_of(corpus) == {
        "train": {"100", "101", "102"},
        "dev-clean": {"200", "201", "202"},
        "dev-other": {"300", "301", "302"},
        "test-clean": {"400", "401", "402"},
        "test-other": {"500", "501", "502"},
    }
    texts = texts_of(corpus)["train"]
    assert {name for name, text in texts.items() if text.endswith("DON'T")} == {
        f"{speaker}-{chapter}-0001" for speaker, chapter in (("100", "5000"), ("101", "5001"), ("102", "5002"))
    }
    assert texts["100-5000-0003"] == ""  # which checking drops as an empty text
    assert all(text == text.upper() for text in texts.values())
    assert any("9 transcripts of train-clean-100 instead of 28539" in note for note in corpus.notes)


def test_what_cannot_be_used_is_listed_with_its_reason(full, tmp_path):
    corpus = prepare_librispeech(tmp_path, source=str(full), subsets="100")
    found = set(reasons(corpus))
    splits = ("train", "dev-clean", "dev-other", "test-clean", "test-other")
    for number, split in enumerate(splits, start=1):
        name = f"{number}00-5000"
        assert {(kind, item) for where, item, kind in found if where == split} >= {
            ("missing audio", f"{name}-0002"),
            ("no transcript", f"{name}-0004"),
        }
        assert f"{name}-0005" in {item for where, item, _ in found if where == split}
    assert len(found) == 3 * len(splits)


def test_every_form_of_the_source_gives_the_same_corpus(full, tmp_path):
    expected = texts_of(prepare_librispeech(tmp_path / "a", source=str(full), subsets=100))
    forms = (
        full / "LibriSpeech",
        archived(full, "all.tar.gz", tmp_path),
        part_archives(full, tmp_path / "parts"),
    )
    for number, form in enumerate(forms):
        assert texts_of(prepare_librispeech(tmp_path / f"out{number}", source=str(form), subsets=100)) == expected


def test_mini_has_no_test_set_unless_one_lies_beside_it(mini, full, tmp_path):
    corpus = prepare_librispeech(tmp_path / "a", source=str(mini), subsets="mini")
    assert set(corpus.splits) == {"train", "dev-clean-2"}
    assert any("nothing is measured on it: test-clean, test-other" in note for note in corpus.notes)
    both = tmp_path / "both"
    both.mkdir()
    for folder in (mini, full):
        for part in (folder / "LibriSpeech").glob("*-*"):
            (both / part.name).symlink_to(part)
    corpus = prepare_librispeech(tmp_path / "b", source=str(both), subsets="mini")
    assert set(corpus.splits) == {"train", "dev-clean-2", "test-clean", "test-other"}


@pytest.mark.parametrize(
    ("subsets", "message"),
    [
        (500, "subsets must be one of mini, 100, 460, 960, given 500"),
        (460, "train-clean-360 of LibriSpeech is not there.*subsets=460 needs it"),
        ("mini", "train-clean-5, dev-clean-2 of LibriSpeech is not there"),
    ],
)
def test_what_the_source_lacks_is_said(full, tmp_path, subsets, message):
    with pytest.raises(ValueError, match=message):
        prepare_librispeech(tmp_path, source=str(full), subsets=subsets)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1-2-0000 ONE\n1-2-0000 ONE", "line 2: '1-2-0000 ONE' is no transcript"),
        ("1-2-0000 ONE\n1-2-0001 CAF\udce9", "1-2.trans.txt, line 2: not UTF-8 text"),
    ],
)
def test_malformed_transcripts_are_refused_with_their_line(tmp_path, line, message):
    chapter = tmp_path / "LibriSpeech" / "train-clean-5" / "1" / "2"
    chapter.mkdir(parents=True)
    (tmp_path / "dev-clean-2").mkdir()
    (chapter / "1-2.trans.txt").write_text(line, errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        prepare_librispeech(tmp_path / "out", source=str(tmp_path), subsets="mini")


def test_only_transcripts_tell_whether_a_folder_has_changed(full):
    files = {path.relative_to(full / "LibriSpeech") for path in prepare.source_files(full)}
    assert len(files) == 15
    assert all(path.name.endswith(".trans.txt") for path in files)


@pytest.fixture
def openslr(mini, tmp_path, monkeypatch):
    """Serve the archives of mini LibriSpeech where openslr.org has them."""
    part_archives(mini, tmp_path / "site" / "31")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path / "site")))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(prepare, "URL", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()


def test_what_is_downloaded_is_checked(openslr, mini, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"train-clean-5\.tar\.gz is not the expected file"):
        prepare_librispeech(tmp_path / "a", subsets="mini")
    monkeypatch.setattr(prepare, "PARTS", {name: prepare.Part(1, resource=31) for name in MINI_PARTS})
    corpus = prepare_librispeech(tmp_path / "b", subsets="mini")
    assert texts_of(corpus) == texts_of(prepare_librispeech(tmp_path / "c", source=str(mini), subsets="mini"))
    assert not list((tmp_path / "b").glob("*.tar.gz*"))
    assert all(soundfile.info(r.sources[0].source).frames for r in corpus.splits["train"].recordings)
