import hashlib

import numpy as np
import pytest
import soundfile
from lhotse.qa import validate_recordings_and_supervisions

from asr.data.synthesis.voices import ACCENTS, VOICES
from asr.recipes.digits.prepare import WORDS, draw, prepare_digits
from tests.recipes.spoken import check_goes_on, hashes, hide_engine

TINY = {"num_train": 6, "num_dev": 3, "num_test": 3}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    return folder, prepare_digits(folder, **TINY)


def test_the_corpus_is_frozen():
    """Changing what is said, or by whom, would make old results incomparable."""
    drawn = [draw(20261121, split, index) for split in VOICES for index in range(200)]
    told = [(item["id"], item["text"], item["voice"], item["words_per_minute"], item["pitch"]) for item in drawn]
    assert told[0] == FIRST
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == FROZEN


FIRST = ("digits-train-00000", "nine eight five six", "en-us+rob", 188, 54)
FROZEN = "c3c58aef170db41f"


def test_what_is_said_is_digits_by_voices_of_the_split():
    for split, names in VOICES.items():
        for index in range(300):
            item = draw(1, split, index)
            words = item["text"].split()
            assert 3 <= len(words) <= 7
            assert set(words) <= set(WORDS)
            assert item["variant"] in names
            assert item["accent"] in ACCENTS


def test_the_same_options_give_the_same_audio(tiny, tmp_path):
    folder, _ = tiny
    prepare_digits(tmp_path, **TINY, num_jobs=1)
    assert hashes(tmp_path) == hashes(folder)
    assert len(set(hashes(folder).values())) == 12


def test_an_interrupted_preparation_goes_on(tiny, tmp_path):
    folder, _ = tiny
    check_goes_on(lambda copy: prepare_digits(copy, **TINY), folder, tmp_path / "copy")


def test_manifests_and_audio_are_sound(tiny):
    _, corpus = tiny
    assert set(corpus.splits) == {"train", "dev", "test"}
    assert "synthetic" in corpus.notes[0]
    for manifests in corpus.splits.values():
        validate_recordings_and_supervisions(manifests.recordings, manifests.supervisions)
        for recording in manifests.recordings:
            audio, rate_hz = soundfile.read(recording.sources[0].source)
            assert rate_hz == 16_000
            assert 0.8 < len(audio) / rate_hz < 8
            assert 0.02 < np.abs(audio).max() < 0.6
            assert np.abs(audio[:1000]).max() < 0.01


def test_a_missing_engine_is_named_with_its_extra(monkeypatch, tmp_path):
    hide_engine(monkeypatch)
    with pytest.raises(ValueError, match=r"werdict\[tts\]"):
        prepare_digits(tmp_path, **TINY)


@pytest.mark.parametrize("options", [{"num_train": 0}, {"num_test": -1}, {"num_jobs": 0}, {"source": "x"}])
def test_impossible_options_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        prepare_digits(tmp_path, **{**TINY, **options})
    assert list(tmp_path.iterdir()) == []
