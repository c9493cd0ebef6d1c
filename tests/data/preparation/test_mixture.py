"""Corpora are joined into one, each recording once, and none that another corpus holds out."""

import itertools

import numpy as np
import pytest
import soundfile
from lhotse import Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem

from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.preparation.saved_corpus import Mixture, SavedCorpus

WORD = AlignmentItem("x", 0.0, 0.5)


def audio(folder, name):
    soundfile.write(folder / f"{name}.wav", 0.1 * np.sin(np.arange(4000)), 8000)
    return folder / f"{name}.wav"


def mixture(folder, *corpora):
    """Return the mixture of corpora a, b …, each given as its splits: ids and files, also with a text of their own."""
    made = {}
    for name, splits in zip("ab", corpora, strict=False):
        manifests = {}
        for split, items in splits.items():
            recordings = [
                Recording.from_file(file, recording_id=item.partition(" ")[0]) for item, file in items.items()
            ]
            segments = [
                SupervisionSegment(each.id, each.id, 0.0, each.duration, text=item, alignment={"word": [WORD]})
                for each, item in zip(recordings, items, strict=True)
            ]
            manifests[split] = Manifests.of(recordings, segments)
        (folder / name).mkdir()
        made[name] = itertools.repeat(SavedCorpus.save(folder / name, Corpus(manifests))).__next__
    return Mixture({name: lambda _, saved=saved: saved() for name, saved in made.items()})


def test_what_two_dev_sets_share_is_taken_once(tmp_path):
    one, two, three = (audio(tmp_path, name) for name in ("one", "two", "three"))
    mixed = mixture(tmp_path, {"train": {"x": one}, "dev-a": {"y": two, "z": three}, "dev-b": {"y": two}})(
        tmp_path / "m"
    )
    assert sorted(mixed.splits["dev"].sources()) == ["a:y", "a:z"]
    assert [segment.id for segment in mixed.splits["dev"].supervisions] == ["a:y", "a:z"]
    (tmp_path / "m").mkdir()
    saved = SavedCorpus.save(tmp_path / "m", mixed)
    (chunk,) = saved.chunks("dev")
    assert [segment.alignment for segment in chunk.manifests().supervisions] == [{"word": [WORD]}] * 2


@pytest.mark.parametrize("item", ["y otherwise", "y"], ids=["another text", "another file"])
def test_one_id_for_two_items_is_refused(tmp_path, item):
    one, two, three = (audio(tmp_path, name) for name in ("one", "two", "three"))
    other = two if " " in item else three
    with pytest.raises(ValueError, match=r"data\.sources: a:y occurs twice in dev, and differs"):
        mixture(tmp_path, {"train": {"x": one}, "dev-a": {"y": two}, "dev-b": {item: other}})(tmp_path / "m")


def test_a_link_hides_no_file_that_is_held_out(tmp_path):
    one, two, three = (audio(tmp_path, name) for name in ("one", "two", "three"))
    (tmp_path / "link.wav").symlink_to(two)
    with pytest.raises(ValueError, match=r"two\.wav is in training of a and in the dev set of b"):
        mixture(
            tmp_path,
            {"train": {"x": two}, "dev": {"y": one}},
            {"train": {"x": three}, "dev": {"y": tmp_path / "link.wav"}},
        )(tmp_path / "m")
