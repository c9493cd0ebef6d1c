"""What the recipes that speak their own corpus have in common."""

import hashlib
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.manifests.corpus import Corpus
from asr.recipes.digits.prepare import prepare_digits
from asr.recipes.phrases import prepare as phrases

TINY = {"num_train": 6, "num_dev": 3, "num_test": 3}
NUM_TALKERS = 8  # of babble, instead of 60
# how it is prepared, and how many files of audio there are then
RECIPES = {"digits": (prepare_digits, 12), "phrases": (phrases.prepare_phrases, 12 + NUM_TALKERS)}


@pytest.fixture(autouse=True, scope="module")
def few_talkers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases, "NUM_TALKERS", NUM_TALKERS)
        yield


@pytest.fixture(scope="module", params=RECIPES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def spoken(name, tmp_path_factory) -> tuple[Path, Corpus]:
    folder = tmp_path_factory.mktemp(name)
    return folder, RECIPES[name][0](folder, **TINY)


def hashes(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.rglob("*.flac"))}


def test_the_same_options_give_the_same_audio(name, spoken, tmp_path):
    prepare, num_files = RECIPES[name]
    prepare(tmp_path, **TINY, num_jobs=1)
    assert hashes(tmp_path) == hashes(spoken[0])
    assert len(set(hashes(tmp_path).values())) == num_files


def test_an_interrupted_preparation_speaks_the_shards_that_it_lacks_and_leaves_the_others_alone(name, spoken, tmp_path):
    shutil.copytree(spoken[0], tmp_path / "copy")
    audio = tmp_path / "copy" / "audio"
    shutil.rmtree(audio / "dev-000")
    (audio / "test-000").rename(audio / "test-000.partial")
    kept = (audio / "train-000").stat().st_mtime_ns
    RECIPES[name][0](tmp_path / "copy", **TINY)
    assert hashes(tmp_path / "copy") == hashes(spoken[0])
    assert (audio / "train-000").stat().st_mtime_ns == kept
    assert not (audio / "test-000.partial").exists()


def test_audio_is_sound(spoken):
    _, corpus = spoken
    assert set(corpus.splits) == {"train", "dev", "test"}
    assert "synthetic" in corpus.notes[0]
    for recording in (one for manifests in corpus.splits.values() for one in manifests.recordings):
        audio, rate_hz = soundfile.read(recording.sources[0].source)
        assert rate_hz == 16_000
        assert 0.8 < len(audio) / rate_hz < 8
        assert 0.02 < np.abs(audio).max() < 0.6


def test_a_missing_engine_is_named_with_its_extra(name, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "espeakng_loader" else find(name))
    with pytest.raises(ValueError, match=rf"{name}.*werdict\[tts\]"):
        RECIPES[name][0](tmp_path, **TINY)


def test_a_source_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="source"):
        RECIPES[name][0](tmp_path, source="x", **TINY)
    assert list(tmp_path.iterdir()) == []
