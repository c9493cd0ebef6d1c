import shutil
from pathlib import Path

import pytest

from asr.recipes.commonvoice.prepare import prepare_commonvoice, source_files
from tests.recipes.miniatures import CV, archived, reasons, speakers_of, texts_of, write_commonvoice


@pytest.fixture(scope="module")
def release(words, tmp_path_factory) -> Path:
    return write_commonvoice(tmp_path_factory.mktemp("release"), words)


def held_out(split: str) -> set[str]:
    return {f"{split}{index}" * 16 for index in range(3)}


def test_the_official_tables_are_the_splits(release, tmp_path):
    corpus = prepare_commonvoice(tmp_path, source=str(release))
    assert speakers_of(corpus) == {split: held_out(split) for split in ("train", "dev", "test")}
    texts = texts_of(corpus)
    assert {split: len(found) for split, found in texts.items()} == {"train": 7, "dev": 6, "test": 6}
    # quotation marks are not paired in Common Voice
    assert list(texts["test"].values()).count("L’été d'Anna: \"Oui!") == 3
    assert "" in {text.strip() for text in texts["train"].values()}  # which checking drops as an empty text
    assert all(r.sources[0].source.endswith(".mp3") for m in corpus.splits.values() for r in m.recordings)
    assert any(f"of {CV}, language xx" in note for note in corpus.notes)


def test_what_cannot_be_used_is_listed_with_its_reason(release, tmp_path):
    found = {kind: item for _, item, kind in reasons(prepare_commonvoice(tmp_path, source=str(release)))}
    assert set(found) == {"missing audio", "unreadable audio", "duplicated clip", "malformed line"}
    assert found["malformed line"] == "train.tsv, line 12"
    assert found["duplicated clip"] == "common_voice_xx_1"
    m4a = next(
        item for _, item, kind in reasons(prepare_commonvoice(tmp_path, source=str(release))) if "unread" in kind
    )
    assert b"ftypM4A" in (release / CV / "xx" / "clips" / f"{m4a}.mp3").read_bytes()


def test_training_on_more_tables_leaks_neither_clips_nor_speakers(release, tmp_path):
    train = ["train", "validated", "other"]
    corpus = prepare_commonvoice(tmp_path, source=str(release), train=train)
    plain = prepare_commonvoice(tmp_path / "plain", source=str(release))
    assert speakers_of(corpus)["train"] == held_out("train") | {"new" * 16, "more" * 16}
    assert len(texts_of(corpus)["train"]) == len(texts_of(plain)["train"]) + 2
    for split in ("dev", "test"):
        assert texts_of(corpus)[split] == texts_of(plain)[split]
        assert not texts_of(corpus)["train"].keys() & texts_of(corpus)[split].keys()
    assert {note for note in corpus.notes if note.startswith("left out of")} == {
        "left out of validated.tsv: 12 clips of dev or test",
        "left out of validated.tsv: 1 other clips by speakers of dev or test",
        "left out of other.tsv: 1 clips with more votes against than for",
    }


def test_every_form_of_the_source_gives_the_same_corpus(release, tmp_path):
    expected = texts_of(prepare_commonvoice(tmp_path / "a", source=str(release)))
    forms = (release / CV, release / CV / "xx", archived(release, f"{CV}-xx.tar.gz", tmp_path))
    for number, form in enumerate(forms):
        found = prepare_commonvoice(tmp_path / f"out{number}", source=str(form), language="xx")
        assert texts_of(found) == expected


def test_one_of_several_languages_has_to_be_named(release, words, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(release, both)
    write_commonvoice(tmp_path / "other", words, "tr")
    shutil.move(tmp_path / "other" / CV / "tr", both / CV / "tr")
    assert set(texts_of(prepare_commonvoice(tmp_path / "a", source=str(both), language="tr"))["dev"]) != set()
    with pytest.raises(ValueError, match=r"language is needed.*there are: tr, xx"):
        prepare_commonvoice(tmp_path / "b", source=str(both))
    with pytest.raises(ValueError, match=r"language 'fr' is not there once; .*: tr, xx"):
        prepare_commonvoice(tmp_path / "c", source=str(both), language="fr")
    with pytest.raises(ValueError, match=r"none, no folder with test\.tsv"):
        prepare_commonvoice(tmp_path / "d", source=str(both / CV / "tr" / "clips"))


def test_a_header_without_a_column_is_refused(release, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(release, copy)
    table = copy / CV / "xx" / "dev.tsv"
    table.write_text(table.read_text().replace("client_id", "speaker", 1))
    with pytest.raises(ValueError, match="the header lacks client_id"):
        prepare_commonvoice(tmp_path / "a", source=str(copy))


def test_only_tables_that_are_read_tell_whether_a_folder_has_changed(release):
    names = {path.name for path in source_files(release)}
    assert names == {"train.tsv", "validated.tsv", "other.tsv", "dev.tsv", "test.tsv"}
