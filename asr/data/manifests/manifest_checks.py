"""Checks that manifests agree with each other."""

from __future__ import annotations

from lhotse import Features, Recording, SupervisionSegment
from lhotse.qa import validate, validate_features, validate_recordings_and_supervisions

from asr.data.manifests.corpus import Manifests, Source

TOLERATED_SEGMENT_S = 1e-3  # what lhotse's validation allows


def contradiction(manifests: Manifests) -> str | None:
    """Return what is wrong with the manifests of a split, or None."""
    try:
        if manifests.features is None:
            validate_recordings_and_supervisions(manifests.recordings, manifests.supervisions)
        else:
            validate(manifests.supervisions)
            for features in manifests.features:
                validate_features(features)
    except AssertionError as error:
        return str(error)
    sources = {} if manifests.features is None else manifests.sources()
    if len(sources) < len(manifests.features or ()):
        return "two features are of the same recording; give each a recording_id of its own"
    for segment in manifests.supervisions if sources else ():
        if problem := segment_problem(segment, sources.get(segment.recording_id)):
            return f"{segment.id}: {problem}"
    return None


def segment_problem(segment: SupervisionSegment, source: Source | None) -> str | None:
    """Return why a supervised part of a recording, or of its features, cannot be used, or None."""
    if source is None:
        return f"missing recording: {segment.recording_id}"
    first_s = source.start if isinstance(source, Features) else 0.0
    last_s = first_s + source.duration
    inside = first_s - TOLERATED_SEGMENT_S <= segment.start and first_s < segment.end <= last_s + TOLERATED_SEGMENT_S
    if not inside or segment.duration <= 0:
        return f"outside its recording: {segment.start} to {segment.end} s of {source.duration} s"
    channels = segment.channel if isinstance(segment.channel, list) else [segment.channel]
    # lhotse makes cuts of channel 0 from features without channels
    present = source.channel_ids if isinstance(source, Recording) else source.channels or 0
    present = present if isinstance(present, list) else [present]
    if not set(channels) <= set(present):
        return f"missing channel: {segment.channel}, the recording has {present}"
    return None
