"""Generated noise: coloured noise, mains hum, and babble of other voices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("coloured", "hum", "babble")  # frozen: part of the fingerprint of the corpus
MIN_SNR_DB, MAX_SNR_DB = 10.0, 30.0
NUM_TALKERS = 5

Audio = NDArray[np.float64]


def draw_noise(rng: np.random.Generator) -> dict[str, Any]:
    """Return the kind of noise of an utterance and how loud it is."""
    return {
        "noise": str(rng.choice(KINDS)),
        "snr_db": float(rng.uniform(MIN_SNR_DB, MAX_SNR_DB)),
        "slope": float(rng.uniform(0, 2)),  # of colored noise: 0 white, 1 pink, 2 brown
        "mains_hz": int(rng.choice((50, 60))),
        "mix_seed": int(rng.integers(2**63)),
    }


def mix(speech: Audio, item: dict[str, Any], talkers: Sequence[Audio], rate_hz: int) -> Audio:
    """Return speech with noise at the drawn SNR, at the peak level of the speech."""
    rng = np.random.default_rng(item["mix_seed"])
    num_samples = len(speech)
    match item["noise"]:
        case "coloured":
            noise = colored(num_samples, item["slope"], rate_hz, rng)
        case "hum":
            noise = hum(num_samples, item["mains_hz"], rate_hz, rng)
        case _:
            noise = babble(num_samples, talkers, rng)
    mixed = speech + noise * np.sqrt(np.mean(speech**2) / np.mean(noise**2)) * 10 ** (-item["snr_db"] / 20)
    return mixed * np.abs(speech).max() / np.abs(mixed).max()


def colored(num_samples: int, slope: float, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Return Gaussian noise with power ∝ ``frequency ** -slope`` above 50 Hz."""
    spectrum = np.fft.rfft(rng.normal(size=num_samples))
    spectrum *= np.maximum(np.fft.rfftfreq(num_samples, 1 / rate_hz), 50.0) ** (-slope / 2)
    return np.fft.irfft(spectrum, num_samples)


def hum(num_samples: int, mains_hz: int, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Return the harmonics of the mains with random amplitudes, plus pink noise at -10 dB."""
    harmonics = np.arange(1, 41)[:, None]
    strengths = rng.uniform(size=harmonics.shape) / np.sqrt(harmonics)
    phases = rng.uniform(0, 2 * np.pi, harmonics.shape)
    seconds = np.arange(rate_hz // 10) / rate_hz  # the period of both 50 and 60 Hz divides 0.1 s
    waves = (strengths * np.sin(2 * np.pi * mains_hz * harmonics * seconds + phases)).sum(0)
    floor = colored(num_samples, 1.0, rate_hz, rng)
    return np.resize(waves, num_samples) / np.std(waves) + floor / np.std(floor) * 10 ** (-10 / 20)


def babble(num_samples: int, talkers: Sequence[Audio], rng: np.random.Generator) -> Audio:
    """Return a sum of talkers, equally loud, each repeated from a random position."""
    total = np.zeros(num_samples)
    for number in rng.choice(len(talkers), NUM_TALKERS, replace=False):
        voice = talkers[number]
        total += np.resize(np.roll(voice, rng.integers(len(voice))), num_samples) / np.std(voice)
    return total
