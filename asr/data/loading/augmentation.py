"""Augmentation of audio: speed, noise, reverberation, telephone, volume."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import scipy  # whose signal is loaded when it is first used: decoding would wait for it
from lhotse import Recording
from lhotse.augmentation import AudioTransform
from lhotse.cut import Cut, MonoCut
from lhotse.utils import fastcopy
from pydantic import Field

from asr.data.features import at_rate
from asr.data.manifests.audio import file_content, open_recording, reading
from asr.data.manifests.audio_files import find_audio
from asr.ranges import Fraction
from werdict.errors import UnusableFile

# resampling by 1.0001 takes a filter of a hundred million numbers
Speed = Annotated[float, Field(ge=0.5, le=2.0, multiple_of=0.01)]
Speeds = Annotated[Sequence[Speed], Field(min_length=1)]
SPARE_S = 0.1  # read beyond what is needed, because resampling rounds
TELEPHONE_HZ = (300.0, 3400.0)  # ITU-T G.712 passes it nearly unchanged
# samples (N,) float32, rate in Hz, generator → samples (N,)
Effect = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


class SpeedPerturb:
    """Plays a cut at one of several speeds, drawn with equal probability.

    Args:
        factors: speeds, 1.0 for unchanged.

    Reference:
        Ko et al. 2015, "Audio Augmentation for Speech Recognition" (factors 0.9, 1.0, 1.1).
        Differs: drawn again in every epoch, instead of tripling the corpus.
    """

    def __init__(self, factors: Speeds = (0.9, 1.0, 1.1)) -> None:
        self.factors = tuple(factors)

    def __call__(self, cut: Cut, rng: random.Random) -> Cut:
        """Return the cut at a speed drawn from ``rng``."""
        factor = rng.choice(self.factors)
        return cut if factor == 1.0 else cut.perturb_speed(factor)

    def slowest(self) -> SpeedPerturb:
        """Return a perturbation that always uses the slowest speed, for measuring memory."""
        return SpeedPerturb((min(self.factors),))


@dataclass(eq=False)
class AudioAugmentation:
    """Changes speed, room, noise, talkers, telephone and volume, in this order, each in a share of the utterances.

    Attributes:
        speed: changes the speed; None: does not.
        room: adds reverberation.
        noise: adds recordings of noise.
        babble: adds other utterances of the corpus.
        telephone: keeps only the band of a telephone.
        volume: makes louder or softer.
    """

    speed: SpeedPerturb | None = None
    room: Reverberate | None = None
    noise: AddNoise | None = None
    babble: AddBabble | None = None
    telephone: Telephone | None = None
    volume: Volume | None = None

    def __post_init__(self) -> None:
        self.others = (self.room, self.noise, self.babble, self.telephone, self.volume)

    def __call__(self, cut: Cut, rng: random.Random) -> Cut:
        """Return the cut with effects drawn from ``rng``, which change its samples when they are read."""
        if self.speed is not None:
            cut = self.speed(cut, rng)
        drawn = [effect for effect in self.others if effect is not None and rng.random() < effect.probability]
        if not drawn:
            return cut
        change = _Applied(tuple(drawn), rng.getrandbits(63))
        recording = fastcopy(cut.recording, transforms=[*(cut.recording.transforms or ()), change])
        return fastcopy(cut, recording=recording)

    def slowest(self) -> SpeedPerturb | None:
        """Return what makes cuts as long as they can be, for measuring memory."""
        return None if self.speed is None else self.speed.slowest()

    def folders(self) -> list[AudioFolder]:
        """Return the folders of noise and impulse responses."""
        return [effect.files for effect in self.others if isinstance(effect, AddNoise | Reverberate)]

    def digest(self) -> str:
        """Return a digest of the paths and contents of all files of noise and impulse responses; empty for none.

        Raises:
            ValueError: a folder holds none, or cannot be searched.
        """
        contents = [folder.contents for folder in self.folders()]
        return hashlib.blake2b(repr(contents).encode(), digest_size=5).hexdigest() if any(contents) else ""

    def check_files(self) -> None:
        """Check the files of noise and impulse responses.

        Raises:
            ValueError: a file cannot be used.
        """
        for folder in self.folders():
            folder.check()

    def of_corpus(self, cuts: Sequence[Cut]) -> Self:
        """Return itself with its files checked, and with the cuts of training that babble.

        Raises:
            ValueError: a file cannot be used.
        """
        import scipy.signal  # noqa: F401  # before loader workers are forked: each would wait for it again

        self.check_files()
        if self.babble is not None:
            self.babble.cuts = cuts
        return self


@dataclass
class _Applied(AudioTransform):
    """Applies effects as one of a recording's transforms; never written to, nor read from a manifest."""

    effects: tuple[Effect, ...]
    seed: int

    def __call__(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Return changed samples (channels, N) float32; effects read the first channel."""
        rng = np.random.default_rng(self.seed)
        changed = samples[0].astype(np.float32)
        for effect in self.effects:
            changed = effect(changed, sampling_rate, rng).astype(np.float32)
        return np.repeat(changed[None], len(samples), axis=0)

    def reverse_timestamps(
        self, offset: float, duration: float | None, sampling_rate: int | None
    ) -> tuple[float, float | None]:
        """Return the same times: effects change none."""
        return offset, duration


# manifests name transforms: this one is no transform of theirs
AudioTransform.KNOWN_TRANSFORMS.pop(_Applied.__name__, None)


@dataclass(eq=False)
class Reverberate:
    """Convolves with the impulse response of a room; the direct sound stays where it was, the level as it was.

    Attributes:
        probability: share of the utterances.
        folder: recorded impulse responses, one drawn for each utterance; null: made up, as white noise that decays
            exponentially after the direct sound.
        rt60_s: shortest and longest reverberation time of what is made up: it decays by 60 dB in that time.
        drr_db: lowest and highest direct-to-reverberant ratio of what is made up, in dB.

    Reference:
        Badeau 2018, "Unified Stochastic Reverberation Modeling", EUSIPCO, section I, for exponentially decaying noise.
        Differs: of the properties there, the decay alone; early echoes are as dense as later ones.
    """

    probability: Fraction = 0.5
    folder: str | None = None
    rt60_s: tuple[float, float] = (0.1, 0.6)
    drr_db: tuple[float, float] = (0.0, 10.0)

    def __post_init__(self) -> None:
        self.files = AudioFolder("augment.audio.room.folder", self.folder)
        self.rt60_s, self.drr_db = _range("rt60_s", self.rt60_s, 0.01), _range("drr_db", self.drr_db)

    def __call__(self, samples: np.ndarray, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
        """Return (N,) reverberated samples."""
        if self.files.folder is None:
            response = self._made_up(rate_hz, rng)
        else:
            response = self.files.read(rate_hz, rng, None)
            response = response[np.abs(response).argmax() :]
        wet = scipy.signal.fftconvolve(samples, response)[: len(samples)]
        return _at_level_of(samples, wet)

    def _made_up(self, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
        rt60_s = rng.uniform(*self.rt60_s)
        times = np.arange(1, round(rt60_s * rate_hz) + 1) / rate_hz
        tail = rng.standard_normal(len(times)) * 10 ** (-3 * times / rt60_s)
        tail *= 10 ** (-rng.uniform(*self.drr_db) / 20) / np.sqrt((tail**2).sum())
        return np.concatenate([[1.0], tail])


class AddNoise:
    """Adds a part of a recording of noise, repeated if it is shorter than the utterance.

    Args:
        probability: share of the utterances.
        folder: recordings of noise, each drawn equally often, at any rate; the first channel is used.
        snr_db: lowest and highest signal-to-noise ratio over the whole utterance, in dB.
    """

    def __init__(
        self, probability: Fraction = 0.5, folder: str | None = None, snr_db: tuple[float, float] = (0.0, 20.0)
    ) -> None:
        self.probability, self.snr_db = probability, _range("snr_db", snr_db)
        if folder is None:
            raise ValueError(
                "folder must contain recordings of noise, as in augment.audio.noise.folder=PATH; or leave noise out "
                "with augment.audio.noise=null"
            )
        self.files = AudioFolder("augment.audio.noise.folder", folder)

    def __call__(self, samples: np.ndarray, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
        """Return (N,) noisy samples."""
        noise = self.files.read(rate_hz, rng, len(samples))
        return mix(samples, noise, rng.uniform(*self.snr_db))


@dataclass(eq=False)
class AddBabble:
    """Adds other utterances of the training set, spoken at once.

    Attributes:
        probability: share of the utterances.
        num_talkers: fewest and most of them.
        snr_db: lowest and highest ratio of the speech to all others together, in dB.
        cuts: of the training set; no option.
    """

    probability: Fraction = 0.3
    num_talkers: tuple[int, int] = (3, 7)
    snr_db: tuple[float, float] = (10.0, 20.0)
    cuts: Sequence[Cut] = field(default=(), init=False)

    def __post_init__(self) -> None:
        low, high = _range("num_talkers", self.num_talkers, 1)
        self.num_talkers, self.snr_db = (int(low), int(high)), _range("snr_db", self.snr_db)

    def __call__(self, samples: np.ndarray, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
        """Return (N,) samples with the others added."""
        babble = np.zeros(len(samples))
        for _ in range(rng.integers(self.num_talkers[0], self.num_talkers[1] + 1)):
            cut = self.cuts[int(rng.integers(len(self.cuts)))]
            try:
                with reading(cut.id):
                    talker = at_rate(cut, rate_hz).load_audio()[0]
            except ValueError:
                continue  # it is named when it is its own turn; those beside it are not to blame
            babble += part_of(_at_level_of(np.ones(1), talker), len(samples), rng)
        return mix(samples, babble, rng.uniform(*self.snr_db))


class Telephone:
    """Keeps only the band from 300 to 3400 Hz, as telephones do.

    Args:
        probability: share of the utterances.
    """

    def __init__(self, probability: Fraction = 0.2) -> None:
        self.probability = probability

    def __call__(self, samples: np.ndarray, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
        """Return (N,) filtered samples (Butterworth band-pass, 24 dB per octave on each side)."""
        low, high = TELEPHONE_HZ
        band = scipy.signal.butter(4, (low, min(high, 0.45 * rate_hz)), "bandpass", fs=rate_hz, output="sos")
        return scipy.signal.sosfilt(band, samples)


class Volume:
    """Makes an utterance louder or softer.

    Args:
        probability: share of the utterances.
        gain_db: least and most gain, in dB.
    """

    def __init__(self, probability: Fraction = 0.5, gain_db: tuple[float, float] = (-12.0, 6.0)) -> None:
        self.probability, self.gain_db = probability, _range("gain_db", gain_db)

    def __call__(self, samples: np.ndarray, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
        """Return (N,) scaled samples."""
        return samples * 10 ** (rng.uniform(*self.gain_db) / 20)


def mix(speech: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Return speech (N,) with noise (N,) of the energy that gives a signal-to-noise ratio; silence stays silent."""
    return speech + _at_level_of(speech, noise) * 10 ** (-snr_db / 20)


def _at_level_of(reference: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return samples with the root mean square of a reference; silence as it is."""
    level = np.sqrt(np.mean(np.square(samples, dtype=np.float64)))
    return samples if level == 0 else samples * (np.sqrt(np.mean(np.square(reference, dtype=np.float64))) / level)


def _range(name: str, bounds: Sequence[float], least: float = -math.inf) -> tuple[float, float]:
    low, high = bounds
    if not least <= low <= high:
        raise ValueError(f"{name} must be two numbers of at least {least:g}, the smaller one first, given {bounds}")
    return low, high


class AudioFolder:
    """Recordings in a folder and in those in it, found and checked once: noise, impulse responses.

    Args:
        key: in the config, for errors.
        folder: None: no recordings.
    """

    def __init__(self, key: str, folder: str | None) -> None:
        self.key, self.folder = key, folder
        self.recordings: list[Recording] = []

    @cached_property
    def contents(self) -> list[tuple[str, int, int]]:
        """Return the paths in the folder, sizes and checksums of the recordings, see ``file_content``.

        Raises:
            ValueError: there is none.
        """
        return [(str(file.relative_to(place)), *file_content(file)) for file, place in self._files]

    def check(self) -> None:
        """Read what every recording says of itself, once.

        Raises:
            ValueError: one of them cannot be used.
        """
        for file, _ in () if self.recordings else self._files:
            recording, problem = open_recording(file, str(file))
            if recording is None:
                raise ValueError(f"{self.key}: {problem}; repair or remove it")
            self.recordings.append(recording)

    @cached_property
    def _files(self) -> list[tuple[Path, Path]]:
        # once: what is compared with a checkpoint must be what is opened then
        try:
            return [] if self.folder is None else sorted(find_audio([self.folder]).items())
        except ValueError as error:
            raise ValueError(f"{self.key}={self.folder}: {error}") from error

    def read(self, rate_hz: int, rng: np.random.Generator, size: int | None) -> np.ndarray:
        """Return ``size`` samples of the first channel from any place of any recording; None: one from its start.

        Raises:
            UnusableFile: it cannot be read, or holds what is no audio; utterances are not to blame.
        """
        recording = self.recordings[int(rng.integers(len(self.recordings)))]
        try:
            with reading(recording.id):
                return _samples_of(recording, rate_hz, rng, size)
        except ValueError as error:
            raise UnusableFile(f"{self.key}: {recording.id}: {error}; repair or remove it") from error


def _samples_of(recording: Recording, rate_hz: int, rng: np.random.Generator, size: int | None) -> np.ndarray:
    cut: Cut = MonoCut("noise", 0.0, recording.duration, recording.channel_ids[0], recording=recording)
    if size is not None and (part_s := size / rate_hz + SPARE_S) < recording.duration:
        cut = cut.truncate(offset=round(rng.uniform(0, recording.duration - part_s), 3), duration=part_s)
    samples: np.ndarray = at_rate(cut, rate_hz).load_audio()[0]
    if not np.isfinite(samples).all():
        raise ValueError("it contains samples that are not finite")
    if size is None and not samples.any():
        raise ValueError("it contains only silence, which would make all speech silent")
    return samples if size is None else part_of(samples, size, rng)


def part_of(samples: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a part (``size``,) from any place of samples (N,); fewer of them begin again after their end."""
    if len(samples) >= size:
        start = int(rng.integers(len(samples) - size + 1))
        return samples[start : start + size]
    return np.resize(np.roll(samples, -int(rng.integers(len(samples)))), size)
