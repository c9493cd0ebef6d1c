import hashlib
from pathlib import Path

import numpy as np
import pytest
import yaml

from asr.data.synthesis.speak_corpus import VOICES
from asr.recipes.phrases import prepare as prepare_module
from asr.recipes.phrases.noise import KINDS, colored, draw_noise, hum, mix
from asr.recipes.phrases.prepare import draw

RATE_HZ = 16_000
SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def frozen():
    """Everything that is said, by split, with the sizes and the seed of the recipe."""
    recipe = Path(prepare_module.__file__).with_name("transformer_ctc.yaml")
    options = yaml.safe_load(recipe.read_text())["data"]["prepare"]
    return {name: [draw(options["seed"], name, index) for index in range(options[f"num_{name}"])] for name in SPLITS}


def test_the_corpus_is_frozen(frozen):
    """Changing what is said, by whom, or in what noise would make old results incomparable."""
    keys = ("id", "text", "voice", "words_per_minute", "pitch", "noise", "snr_db", "mix_seed")
    told = [tuple(item[key] for key in keys) for items in frozen.values() for item in items]
    assert len(told) == NUM_FROZEN
    assert told[0][:6] == FIRST
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == FROZEN


NUM_FROZEN = 8900
FIRST = ("phrases-train-00000", "please crawl to the house", "en-gb-x-rp+klatt2", 208, 70, "hum")
FROZEN = "31bc95fbb2852298"


def test_no_sentence_and_no_voice_is_in_two_splits(frozen):
    for key in ("text", "variant"):
        train, dev, test = ({item[key] for item in frozen[name]} for name in SPLITS)
        assert not train & dev
        assert not train & test
        assert not dev & test


def test_babble_is_of_training_voices_alone():
    assert {draw(1, "talkers", index)["variant"] for index in range(100)} <= set(VOICES["train"])


@pytest.mark.parametrize("slope", [0.0, 1.0, 2.0])
def test_colored_noise_falls_with_its_slope(slope):
    noise = colored(2**17, slope, RATE_HZ, np.random.default_rng(0))
    power = np.abs(np.fft.rfft(noise)) ** 2
    frequency = np.fft.rfftfreq(len(noise), 1 / RATE_HZ)
    low, high = (power[(frequency > f) & (frequency < 1.25 * f)].mean() for f in (200, 3200))
    assert 10 * np.log10(low / high) == pytest.approx(slope * 10 * np.log10(16), abs=0.5)


def test_hum_is_loudest_at_multiples_of_the_mains():
    noise = hum(RATE_HZ, 60.0, RATE_HZ, np.random.default_rng(0))
    power = np.abs(np.fft.rfft(noise)) ** 2  # bins of 1 Hz
    harmonics = power[60:2401:60].sum()
    assert harmonics / (power.sum() - harmonics) == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_speech_is_mixed_at_the_drawn_ratio_and_level(kind):
    rng = np.random.default_rng(0)
    speech = np.sin(np.arange(RATE_HZ) * 0.3) * 0.25
    talkers = [rng.normal(size=900) for _ in range(6)]
    item = {**draw_noise(rng), "noise": kind, "snr_db": 6.0}
    mixed = mix(speech, item, talkers, RATE_HZ)
    assert np.abs(mixed).max() == pytest.approx(0.25)
    scale = mixed @ speech / (speech @ speech)
    noise = mixed - scale * speech
    ratio_db = 10 * np.log10(np.mean((scale * speech) ** 2) / np.mean(noise**2))
    assert ratio_db == pytest.approx(6.0, abs=0.5)
