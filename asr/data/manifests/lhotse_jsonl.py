"""Reads lhotse's manifests line by line, and checks each before lhotse makes an object of it.

lhotse's own reader (1.33) guesses what a line describes, runs a path that begins with ``pipe:``, and keeps one of two
items with the same id.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lhotse import Features, FeatureSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.console import track
from asr.data.manifests.audio_checks import refuse_foreign_sources
from asr.data.manifests.corpus import Dropped, Manifests
from asr.data.manifests.decoding_limits import MAX_CHANNELS, MAX_TRANSFORMS, impulse_responses
from asr.data.manifests.feature_storage import refuse_foreign_storage
from asr.data.manifests.manifest_fields import (
    CUT,
    CUT_OPTIONAL,
    FEATURES,
    FEATURES_OPTIONAL,
    RECORDING,
    RECORDING_OPTIONAL,
    SUPERVISION,
    SUPERVISION_OPTIONAL,
    check_fields,
)
from asr.data.manifests.source_files import decoded_lines, refuse_unspeakable
from asr.errors import raise_if_out_of_resources

Item = TypeVar("Item", Recording, Features, SupervisionSegment)
HALF = re.compile(r"\\u[dD][89a-fA-F]")
READABLE_CUTS = ("MonoCut", "MultiCut")
MAX_SUPERVISIONS = 20_000  # of a cut; more than a day of speech has


def read_recordings(path: Path) -> RecordingSet:
    """Read ``recordings*.jsonl(.gz)``.

    Raises:
        ValueError: a line is malformed, repeats an id, or names audio that is no file.
    """
    return RecordingSet.from_recordings(_items(path, parse_recording).values())


def read_features(path: Path) -> FeatureSet:
    """Read ``features*.jsonl(.gz)``, which replace recordings without audio.

    Raises:
        ValueError: a line is malformed, repeats a recording's id, or names another storage than numpy files.
    """
    return FeatureSet.from_features(_items(path, parse_features).values())


def read_supervisions(path: Path) -> SupervisionSet:
    """Read ``supervisions*.jsonl(.gz)``.

    Raises:
        ValueError: a line is malformed, or repeats an id.
    """
    return SupervisionSet.from_segments(_items(path, parse_supervision).values())


def read_cuts(path: Path, split: str) -> tuple[Manifests, list[Dropped]]:
    """Read ``cuts*.jsonl(.gz)`` as the recordings and supervisions of the cuts.

    Several cuts may hold the same supervision of the same recording; it is read once.

    Returns:
        Manifests, and the cuts without audio or supervision.

    Raises:
        ValueError: a line is malformed, mixes recordings, or gives another meaning to an id of a line before.
    """
    recordings: dict[str, Recording] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped = []
    last: tuple[Any, Recording] | None = None
    for where, data in objects(path):
        kind = data.get("type")
        if kind is None:
            of_nemo = " (this looks like a manifest of NeMo, which is not read)" if "audio_filepath" in data else ""
            raise ValueError(
                f"{where}: this is no cut of lhotse: its type is missing{of_nemo}. Give a table with the columns audio "
                "and text, and perhaps speaker"
            )
        if kind not in READABLE_CUTS:
            raise ValueError(
                f"{where}: a cut of type {kind!r} is not read, only {' and '.join(READABLE_CUTS)}: what is mixed or "
                "padded would be lost. Save its audio to a file, and a cut of that file."
            )
        data = check_fields(where, data, CUT, CUT_OPTIONAL)
        if not data.get("recording") or not data.get("supervisions"):
            lacking = "supervision" if data.get("recording") else "recording"
            dropped.append(Dropped(split, data["id"], f"no {lacking}: the cut has none"))
            continue
        if len(data["supervisions"]) > MAX_SUPERVISIONS:
            given = len(data["supervisions"])
            raise ValueError(f"{where}: the cut has {given} supervisions; at most {MAX_SUPERVISIONS} are read")
        # most cuts of a recording follow each other; parsing each again would take most of the time
        if last is None or last[0] != data["recording"]:
            last = data["recording"], parse_recording(where, data["recording"])
            add_item(recordings, last[1], where, may_repeat=True)
        recording = last[1]
        for supervision in data["supervisions"]:
            segment = parse_supervision(where, supervision).with_offset(data["start"])
            add_item(supervisions, replace(segment, recording_id=recording.id), where, may_repeat=True)
    found = RecordingSet.from_recordings(recordings.values()), SupervisionSet.from_segments(supervisions.values())
    return Manifests(*found), dropped


def parse_manifests(kind: str, sources: Iterable[str], segments: Iterable[str], where: str) -> Manifests:
    """Parse lines of saved manifests, with the checks for any manifest.

    Args:
        kind: of the sources: recordings or features.
        sources: a line for each.
        segments: a line for each supervision.
        where: these lines are from, for messages.

    Raises:
        ValueError: a line is malformed, or repeats an id.
    """
    parse: Callable[[str, Any], Any] = parse_recording if kind == "recordings" else parse_features
    found = _parsed(f"{where}, {kind}", sources, parse)
    return Manifests.of(found.values(), _parsed(f"{where}, supervisions", segments, parse_supervision).values())


def _parsed(where: str, lines: Iterable[str], parse: Callable[[str, Any], Item]) -> dict[str, Item]:
    found: dict[str, Item] = {}
    for number, line in enumerate(lines, start=1):
        place = f"{where}, line {number}"
        try:
            data = _object(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: {error}") from error
        add_item(found, parse(place, data), place, may_repeat=False)
    return found


def _items(path: Path, parse: Callable[[str, Any], Item]) -> dict[str, Item]:
    found: dict[str, Item] = {}
    for where, data in objects(path):
        add_item(found, parse(where, data), where, may_repeat=False)
    return found


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place in the file, for messages, and the object of each line."""
    number = 1
    try:
        for line in track(decoded_lines(path), f"reading {path.name}", transient=True):
            # null in a line is an empty line
            if line.strip() and (data := _object(line)) is not None:
                yield f"{path}, line {number}", data
            number += 1
    except (ValueError, RecursionError, EOFError, zlib.error, OSError) as error:
        raise_if_out_of_resources(error, str(path))
        raise ValueError(f"{path}, near line {number}: this is no jsonl manifest: {error}") from error


def _object(line: str) -> Any:
    """Return the object of a line, or None for null."""
    data = json.loads(line)
    if data is not None and not isinstance(data, dict):
        raise ValueError(f"an object in braces is expected, given {line[:60]!r}")
    _refuse_halves(line, data)
    return data


def _refuse_halves(line: str, data: Any) -> None:
    """Refuse halves of surrogate pairs, which JSON can escape but UTF-8 cannot encode."""
    if HALF.search(line):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"it holds {half!r}, half of a surrogate pair, which is no character") from error


def parse_recording(where: str, data: Any) -> Recording:
    """Return a recording of plain data.

    Raises:
        ValueError: it is malformed, or names audio that is no file.
    """
    fields = check_fields(where, data, RECORDING, RECORDING_OPTIONAL)
    _refuse_many(where, fields)
    if fields["sampling_rate"] <= 0:
        raise ValueError(f"{where}: field 'sampling_rate' must be positive, given {fields['sampling_rate']}")
    try:
        recording = Recording.from_dict(fields)
        refuse_foreign_sources([recording])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except Exception as error:  # lhotse checks few types, and raises whatever follows
        raise ValueError(f"{where}: this recording cannot be read: {type(error).__name__}: {error}") from error
    for source in (source for one in (recording, *impulse_responses(recording)) for source in one.sources):
        # prepared data must not depend on where a command is started
        source.source = os.path.abspath(source.source)
    return recording


def _refuse_many(where: str, fields: dict[str, Any]) -> None:
    """Refuse more channels or transforms than any recording has: they are checked for each supervision."""
    sources = [source if isinstance(source, dict) else {} for source in fields["sources"]]
    channels = [source["channels"] if isinstance(source.get("channels"), list) else [] for source in sources]
    found = max(len(sources), sum(map(len, channels)), len(fields.get("channel_ids", ())))
    if not all(channels) or not sources:
        raise ValueError(f"{where}: field 'sources' must name the file and the channels of the audio, given neither")
    if found > MAX_CHANNELS:
        raise ValueError(f"{where}: the recording has {found} channels; at most {MAX_CHANNELS} are read")
    if len(fields.get("transforms", ())) > MAX_TRANSFORMS:
        raise ValueError(
            f"{where}: the recording has {len(fields['transforms'])} transforms; at most {MAX_TRANSFORMS} are read"
        )


def parse_features(where: str, data: Any) -> Features:
    """Return features of plain data.

    Raises:
        ValueError: they are malformed, or in a storage that is not read.
    """
    features = Features(**{"type": "unknown"} | check_fields(where, data, FEATURES, FEATURES_OPTIONAL))
    # prepared data must not depend on where a command is started
    features.storage_path = os.path.abspath(features.storage_path)
    try:
        refuse_foreign_storage(features)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return features


def parse_supervision(where: str, data: Any) -> SupervisionSegment:
    """Return a supervision of plain data.

    Raises:
        ValueError: it is malformed.
    """
    fields = check_fields(where, data, SUPERVISION, SUPERVISION_OPTIONAL)
    refuse_unspeakable(where, fields.get("text", ""))
    channels = fields.get("channel")
    if isinstance(channels, list):
        if len(channels) > MAX_CHANNELS:
            raise ValueError(f"{where}: the supervision has more than {MAX_CHANNELS} channels")
        if not all(isinstance(channel, int) for channel in channels):
            raise ValueError(f"{where}: field 'channel' must hold whole numbers, given {str(channels)[:60]}")
    # an empty string would count as a speaker
    return SupervisionSegment(**fields | {"speaker": fields.get("speaker", "").strip() or None})


def add_item(found: dict[str, Item], item: Item, where: str, may_repeat: bool) -> None:
    """Add an item by its id.

    Raises:
        ValueError: another item has this id, or, unless it may repeat, the same.
    """
    name = str(item.recording_id) if isinstance(item, Features) else item.id
    known = found.setdefault(name, item)
    if known is not item and not (may_repeat and known == item):
        raise ValueError(
            f"{where}: the id {name!r} of a {type(item).__name__} was given before; every item needs an id of its own"
        )
