import shutil
from pathlib import Path

import numpy as np
import pytest
from lhotse.features.io import NumpyFilesReader

from asr.data.features import PrecomputedFeatures
from asr.data.manifests.corpus import Corpus
from asr.data.preparation.cuts import SourceCheck, supervised_cuts
from asr.recipes.an4.prepare import choose_dev, prepare_an4, read_mfc
from tests.recipes.an4_source import SMALL, SPEAKERS, write_source


def content(corpus: Corpus) -> dict[str, dict[str, tuple]]:
    """Return what every utterance holds, by split."""
    return {
        split: {
            segment.id: (segment.text, segment.speaker, segment.duration, matrix(manifests.sources()[segment.id]))
            for segment in manifests.supervisions
        }
        for split, manifests in corpus.splits.items()
    }


def matrix(features) -> list[list[float]]:
    return NumpyFilesReader(features.storage_path).read(features.storage_key).astype(np.float32).tolist()


def speakers(corpus: Corpus) -> dict[str, set[str]]:
    return {split: {s.speaker for s in manifests.supervisions} for split, manifests in corpus.splits.items()}


def test_the_official_test_set_is_kept_and_dev_is_training_speakers(an4_archive, tmp_path):
    corpus = prepare_an4(tmp_path, source=str(an4_archive), **SMALL)
    found = speakers(corpus)
    assert found["test"] == set(SPEAKERS["test"])
    assert found["train"] | found["dev"] == set(SPEAKERS["train"])
    assert len(found["dev"]) == 2
    assert not found["train"] & found["dev"]
    assert {split: len(utterances) for split, utterances in content(corpus).items()} == {
        "train": 15,
        "dev": 10,
        "test": 10,
    }


def test_every_utterance_has_its_own_frames(an4_archive, tmp_path):
    source = write_source(tmp_path / "source")
    with np.load(source / "mfcc13.f16.npz") as arrays:
        cepstra = arrays["mfcc"]
    found = {
        name: utterance
        for utterances in content(prepare_an4(tmp_path / "out", source=str(an4_archive), **SMALL)).values()
        for name, utterance in utterances.items()
    }
    for line in (source / "index.tsv").read_text().splitlines()[1:]:
        name, speaker, text, _, start, end = line.split("\t")
        frames = cepstra[int(start) : int(end)].astype(np.float32)
        assert found[name] == (text, speaker, len(frames) / 100, frames.tolist())


def as_cmu_has_it(source: Path, folder: Path, order: str) -> Path:
    """Write the form of the original: lists, transcripts, and a file of cepstra per utterance."""
    (folder / "etc").mkdir(parents=True)
    with np.load(source / "mfcc13.f16.npz") as arrays:
        cepstra = arrays["mfcc"]
    names, texts = {"train": [], "test": []}, {"train": [], "test": []}
    for line in (source / "index.tsv").read_text().splitlines()[1:]:
        name, speaker, text, split, start, end = line.split("\t")
        file = Path("an4_clstk" if split == "train" else "an4test_clstk", speaker, name)
        frames = cepstra[int(start) : int(end)]
        path = folder / "feat" / f"{file}.mfc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.array(frames.size, f"{order}i4").tobytes() + frames.astype(f"{order}f4").tobytes())
        names[split].append(str(file))
        texts[split].append(f"<s> {text.upper()} </s> ({name})" if split == "train" else f"{text.upper()} ({name})")
    for split in names:
        (folder / "etc" / f"an4_{split}.fileids").write_text("\n".join(names[split]) + "\n")
        (folder / "etc" / f"an4_{split}.transcription").write_text("\n".join(texts[split]) + "\n")
    return folder


@pytest.mark.parametrize("order", [">", "<"])
def test_every_form_of_the_source_gives_the_same_utterances(an4_archive, tmp_path, order):
    expected = content(prepare_an4(tmp_path / "a", source=str(an4_archive), **SMALL))
    source = write_source(tmp_path / "source")
    assert content(prepare_an4(tmp_path / "b", source=str(source), **SMALL)) == expected
    original = as_cmu_has_it(source, tmp_path / "original", order)
    assert content(prepare_an4(tmp_path / "c", source=str(original), **SMALL)) == expected
    zipped = shutil.make_archive(str(tmp_path / "original"), "zip", tmp_path, "original")
    assert content(prepare_an4(tmp_path / "d", source=zipped, **SMALL)) == expected


def test_dev_speakers_depend_on_the_seed_alone():
    names = {f"speaker{index}" for index in range(20)}
    assert choose_dev(names, 3, seed=1) == choose_dev(set(names), 3, seed=1)
    assert choose_dev(names, 3, seed=1) < choose_dev(names, 5, seed=1)
    assert choose_dev(names, 3, seed=1) != choose_dev(names, 3, seed=2)
    for impossible in (0, 20):
        with pytest.raises(ValueError, match=rf"num_dev_speakers must be in \[1, 19\].*given {impossible}"):
            choose_dev(names, impossible, seed=1)


def test_notes_say_who_is_dev_and_what_is_missing(an4_archive, tmp_path):
    corpus = prepare_an4(tmp_path, source=str(an4_archive), **SMALL)
    assert any(all(name in note for name in speakers(corpus)["dev"]) for note in corpus.notes)
    assert any("25 utterances of train instead of AN4's 948" in note for note in corpus.notes)
    assert any("10 utterances of test instead of AN4's 130" in note for note in corpus.notes)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cepstra of AN4 are not there"):
        prepare_an4(tmp_path / "out", source=str(tmp_path), **SMALL)


def test_cepstra_cut_short_are_refused(tmp_path):
    file = tmp_path / "a.mfc"
    file.write_bytes(np.array(26, ">i4").tobytes() + np.arange(26, dtype=">f4").tobytes())
    assert read_mfc(file).tolist() == np.arange(26.0).reshape(2, 13).tolist()
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"a\.mfc"):
        read_mfc(file)


def test_the_real_corpus_is_whole_and_nothing_of_it_is_dropped(shared_data, tmp_path):
    corpus = prepare_an4(tmp_path, source=str(shared_data / "an4_feats.tar"))
    assert {split: len(m.supervisions) for split, m in corpus.splits.items()} == {"train": 844, "dev": 104, "test": 130}
    assert {split: len(names) for split, names in speakers(corpus).items()} == {"train": 66, "dev": 8, "test": 10}
    assert not any("instead of" in note for note in corpus.notes)
    check = SourceCheck(PrecomputedFeatures(13))
    for manifests in corpus.splits.values():
        assert {check(cut) for cut in supervised_cuts(manifests)} == {None}
