"""Checks that manifests agree with each other and with themselves."""

from __future__ import annotations

import math

from lhotse import Features, Recording, SupervisionSegment
from lhotse.qa import validate, validate_features, validate_recordings_and_supervisions

from asr.data.manifests.corpus import Manifests, Source
from asr.data.manifests.truncated_audio import TOLERATED_S

TOLERATED_SEGMENT_S = 1e-3  # what lhotse's validation allows


def contradiction(manifests: Manifests) -> str | None:
    """Return what is wrong with the manifests of a split, or None."""
    try:
        if manifests.features is None:
            validate_recordings_and_supervisions(manifests.recordings, manifests.supervisions)
        else:
            validate(manifests.supervisions)
    except AssertionError as error:
        return str(error)
    return None if manifests.features is None else _misplaced(manifests)


def _misplaced(manifests: Manifests) -> str | None:
    sources = manifests.sources()
    if len(sources) < len(manifests.features or ()):
        return "two features are of the same recording; give each a recording_id of its own"
    for segment in manifests.supervisions:
        if problem := segment_problem(segment, sources.get(segment.recording_id)):
            return f"{segment.id}: {problem}"
    return None


def segment_problem(segment: SupervisionSegment, source: Source | None) -> str | None:
    """Return why a supervised part of a recording, or of its features, cannot be used, or None."""
    if source is None:
        return f"missing recording: {segment.recording_id}"
    if problem := _contradictory_features(source) if isinstance(source, Features) else _contradictory(source):
        return problem
    if not math.isfinite(segment.start) or not 0 < segment.duration < math.inf:
        return f"impossible segment: start {segment.start} s, duration {segment.duration} s"
    first_s = source.start if isinstance(source, Features) else 0.0
    last_s = first_s + source.duration
    inside = first_s - TOLERATED_SEGMENT_S <= segment.start and first_s < segment.end <= last_s + TOLERATED_SEGMENT_S
    if not inside:
        return f"outside its recording: {segment.start} to {segment.end} s of {source.duration} s"
    channels = segment.channel if isinstance(segment.channel, list) else [segment.channel]
    # lhotse makes cuts of channel 0 from features without channels
    present = source.channel_ids if isinstance(source, Recording) else source.channels or 0
    present = present if isinstance(present, list) else [present]
    if not set(channels) <= set(present):
        return f"missing channel: {segment.channel}, the recording has {present}"
    return None


def _contradictory(recording: Recording) -> str | None:
    stated_s = recording.num_samples / recording.sampling_rate
    # negated, because every comparison with NaN is false
    if recording.duration <= 0 or not abs(stated_s - recording.duration) <= TOLERATED_S:
        return (
            f"contradictory recording: {recording.duration} s, but {recording.num_samples} samples are {stated_s:.3f} s"
        )
    return None


def _contradictory_features(features: Features) -> str | None:
    try:
        validate_features(features)
    except Exception as error:  # lhotse's arithmetic overflows on infinite numbers
        return f"contradictory features: {error}"
    return None
