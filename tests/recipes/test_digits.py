import hashlib

from asr.data.synthesis.speak_corpus import ACCENTS, VOICES
from asr.recipes.digits.prepare import WORDS, draw

TINY = {"num_train": 6, "num_dev": 3, "num_test": 3}


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
