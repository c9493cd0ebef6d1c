"""What decoding a cut may take: its seconds and samples, and what the transforms of its recording make of them."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import accumulate
from operator import mul

from lhotse import Recording
from lhotse.augmentation import (
    AudioTransform,
    Clipping,
    Compress,
    DereverbWPE,
    LoudnessNormalization,
    Narrowband,
    Resample,
    ReverbWithImpulseResponse,
    Speed,
    Tempo,
    Volume,
)
from lhotse.augmentation.utils import FastRandomRIRGenerator
from lhotse.cut import Cut

# telephone to ultrasound; another rate in a header would turn seconds into hours when resampled
RATES_HZ = (4_000, 768_000)
# a cut is decoded, resampled and encoded in one piece, and attention takes memory that grows with the square of it
MAX_DECODED_S = 900
MAX_DECODED_SAMPLES = MAX_DECODED_S * 48_000
MAX_RIR_S = 30  # impulse responses of the largest cathedrals have 15
MAX_CHANNELS = 1024  # of libsndfile
MAX_TRANSFORMS = 20
# taps of a resampling filter: the product of both rates without their common factors, 441 × 160 from 44.1 to 16 kHz,
# but 10^9 between two prime rates
MAX_FILTER = 2**20
NARROWBAND_HZ = 8000
OF_NUMBERS = (Clipping, LoudnessNormalization, Resample, Speed, Tempo, Volume)  # whose fields are all numbers

Rates = list[tuple[int, int]]


def too_long(cut: Cut, target_rate_hz: int = 0) -> str | None:
    """Return why decoding a cut, its transforms and resampling would take too much memory, or None.

    This believes the manifest; `audio_checks` compares it with the file.

    Args:
        cut: a part of a recording.
        target_rate_hz: rate to resample to; 0 for none.
    """
    recording = cut.recording
    if not cut.duration <= MAX_DECODED_S:
        return f"longer than {MAX_DECODED_S} s; cut it into parts"
    if problem := rate_problem(recording.sampling_rate):
        return problem
    transforms = recording.transforms or []
    if len(transforms) > MAX_TRANSFORMS:
        return f"impossible transforms: {len(transforms)}, allowed are {MAX_TRANSFORMS}"
    try:
        for transform in transforms:
            _refuse_transform(transform)
        rates = _rates(recording)
        resampled = [*rates, (recording.sampling_rate, target_rate_hz)] if target_rate_hz else rates
        # Speed resamples as if the audio had the last rate, whichever it has
        speeds = [t.factor for t in transforms if isinstance(t, Speed)]
        filters = [*resampled, *((round(recording.sampling_rate * f), recording.sampling_rate) for f in speeds)]
        highest_hz = max(recording.sampling_rate, *map(max, resampled), 0)
        num_samples = _num_channels(cut) * max(_durations_s(recording, cut.duration)) * highest_hz
    except (TypeError, ValueError, OverflowError) as error:  # a manifest may hold a speed of 1e308
        return f"impossible transforms: {error}"
    if not num_samples <= MAX_DECODED_SAMPLES:
        return f"more than {MAX_DECODED_SAMPLES} samples in all channels; cut it into parts"
    problems = (resampling_problem(*each) for each in filters)
    return next(filter(None, problems), None) or _break_in(rates, recording)


def before_transforms(recording: Recording) -> tuple[int, float]:
    """Return the rate and the seconds that the file of a recording must have; transforms change them."""
    rates = _rates(recording)
    return rates[0][0] if rates else recording.sampling_rate, _durations_s(recording, recording.duration)[-1]


def impulse_responses(recording: Recording) -> list[Recording]:
    """Return the recordings that a recording is convolved with, which are files like its own."""
    reverbs = [t for t in recording.transforms or () if isinstance(t, ReverbWithImpulseResponse)]
    return [reverb.rir for reverb in reverbs if isinstance(reverb.rir, Recording)]


def _rates(recording: Recording) -> Rates:
    """Return the rates before and after each change of the rate."""
    rates: Rates = []
    for transform in recording.transforms or ():
        if isinstance(transform, Resample):
            rates.append((transform.source_sampling_rate, transform.target_sampling_rate))
        elif isinstance(transform, Narrowband):
            there = transform.source_sampling_rate, NARROWBAND_HZ
            rates += [there, there[::-1]] if transform.restore_orig_sr else [there]
    return rates


def _durations_s(recording: Recording, duration_s: float) -> list[float]:
    """Return the seconds of a part after its transforms, and before each that changes them, the last one first."""
    factors = [t.factor for t in recording.transforms or () if isinstance(t, Speed | Tempo)]
    return list(accumulate(reversed(factors), mul, initial=float(duration_s)))


def _num_channels(cut: Cut) -> int:
    """Return the channels held together: lhotse reads all of a file, joins those of a cut, and reverb may add some."""
    counts = [len(source.channels) for source in cut.recording.sources]
    counts += [len(t.rir_channels) for t in cut.recording.transforms or () if isinstance(t, ReverbWithImpulseResponse)]
    return max(1, len(cut.channel) if isinstance(cut.channel, list) else 1, *counts)


def rate_problem(rate_hz: int) -> str | None:
    """Return why audio of a rate is not read, or None."""
    if RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        return None
    return f"impossible rate: {rate_hz} Hz, allowed are {RATES_HZ[0]} to {RATES_HZ[1]}"


def resampling_problem(source_hz: int, target_hz: int) -> str | None:
    """Return why audio cannot be resampled, or None."""
    if not all(0 < rate <= RATES_HZ[1] for rate in (source_hz, target_hz)):
        return f"impossible rate: resampling from {source_hz} to {target_hz} Hz, allowed are 1 to {RATES_HZ[1]}"
    if source_hz * target_hz // math.gcd(source_hz, target_hz) ** 2 > MAX_FILTER:
        return (
            f"impossible rate: resampling from {source_hz} to {target_hz} Hz takes a filter of more than "
            f"{MAX_FILTER} numbers; save the audio at a usual rate"
        )
    return None


def _break_in(rates: Rates, recording: Recording) -> str | None:
    """Return where a change of the rate does not begin with the rate that the one before leaves, or None."""
    following = [*(source_hz for source_hz, _ in rates[1:]), recording.sampling_rate]
    for (_, left_hz), rate_hz in zip(rates, following, strict=False):
        if left_hz != rate_hz:
            return f"impossible transforms: audio resampled to {left_hz} Hz is taken for {rate_hz} Hz"
    return None


def _refuse_transform(transform: AudioTransform) -> None:
    """Refuse what would take more memory than its audio.

    Raises:
        ValueError: a field is no number, or a transform is of a kind or size that is not applied.
    """
    name = type(transform).__name__
    if isinstance(transform, ReverbWithImpulseResponse):
        _refuse_reverb(transform)
    elif isinstance(transform, OF_NUMBERS):
        for field in fields(transform):
            value = getattr(transform, field.name)
            if not isinstance(value, int | float):
                raise ValueError(f"{field.name} of {name} must be a number, given {str(value)[:60]!r}")
        if isinstance(transform, Tempo) and not 0 < transform.factor < math.inf:
            raise ValueError(f"a tempo of {transform.factor}")
    elif not isinstance(transform, Compress | Narrowband) and transform != DereverbWPE():
        raise ValueError(f"{name} with these options is not applied")


def _refuse_reverb(reverb: ReverbWithImpulseResponse) -> None:
    channels, rir = reverb.rir_channels, reverb.rir
    if not isinstance(channels, list) or not 0 < len(channels) <= MAX_CHANNELS:
        raise ValueError(f"rir_channels must be a list of 1 to {MAX_CHANNELS}, given {str(channels)[:60]!r}")
    if isinstance(rir, Recording):
        if not rir.duration <= MAX_RIR_S:
            raise ValueError(f"an impulse response of {rir.duration} s, allowed are {MAX_RIR_S}")
        if any(isinstance(t, ReverbWithImpulseResponse) for t in rir.transforms or ()):
            raise ValueError("an impulse response that is convolved with another")
        if problem := too_long(rir.to_cut()):
            raise ValueError(f"an impulse response with {problem}")
    elif rir is not None or not isinstance(reverb.rir_generator, FastRandomRIRGenerator):
        raise ValueError("an impulse response that is no recording")
    else:
        given = reverb.rir_generator
        usual = FastRandomRIRGenerator(given.sr, room_seed=given.room_seed, source_seed=given.source_seed)
        if not RATES_HZ[0] <= given.sr <= RATES_HZ[1] or given != usual:
            raise ValueError("a generator of impulse responses with unusual options")
