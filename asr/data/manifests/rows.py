"""Rows of any table or tree → recordings that were opened, and utterances in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lhotse import SupervisionSegment

from asr.data.manifests.audio_checks import TOLERATED_S, open_recordings
from asr.data.manifests.corpus import Dropped, Manifests
from asr.data.parallel import num_processes
from asr.text_files import composed


@dataclass(frozen=True, slots=True)
class Row:
    """An utterance: a file, or a part of it, and what is said.

    Attributes:
        stem: path of the audio as it is written, without its ending.
        audio: the file, which may be missing.
        text: transcript as written.
        where: file and line, for messages.
        speaker: None where unknown.
        split: as written; None where it says none.
        id: as it is given; None: from the path.
        start_s: where it begins in its file.
        end_s: where it ends; None: at the end of the file.
        channel: of the file, from 0; None: the first that is not silent.
        language: None where unknown.
    """

    stem: str
    audio: Path
    text: str
    where: str
    speaker: str | None = None
    split: str | None = None
    id: str | None = None
    start_s: float = 0.0
    end_s: float | None = None
    channel: int | None = None
    language: str | None = None


def manifests_of_rows(rows: Sequence[tuple[str, Row]], num_jobs: int) -> dict[str, tuple[Manifests, list[Dropped]]]:
    """Return, by split, the manifests of the rows whose audio can be used, and the others.

    The id of a recording is its path as written without the ending, or as much of it as no other file has. So is that
    of an utterance, unless it is given; several parts of a file are numbered.

    Args:
        rows: of a whole source, in order, each with its split.
        num_jobs: processes that read headers.

    Raises:
        ValueError: an id occurs twice, or a file twice as a whole; names file and line.
    """
    rows, repeats = _without_repeats(rows)
    names = _names_of_files(row for _, row in rows)
    opened = open_recordings([*names.items()], "reading headers of audio", num_jobs)
    recordings = dict(zip(names, opened, strict=True))
    first: dict[str, str] = {}
    by_split: dict[str, tuple[list[SupervisionSegment], list[Dropped]]] = defaultdict(lambda: ([], []))
    for id, (split, row) in zip(_ids(rows, names), rows, strict=True):
        if first.setdefault(id, row.where) != row.where:
            raise ValueError(
                f"{row.where}: the id {id!r} occurs before, in {first[id]}; name each file once, or add a column id"
            )
        recording, problem = recordings[row.audio]
        segments, dropped = by_split[split]
        if recording is None:
            dropped.append(Dropped(split, id, problem, str(row.audio)))
        else:
            end_s = recording.duration if row.end_s is None else row.end_s
            if abs(end_s - recording.duration) <= TOLERATED_S:  # durations are rounded
                end_s = recording.duration
            duration_s = end_s - row.start_s
            channels = recording.channel_ids if recording.num_channels > 1 else 0
            channel = channels if row.channel is None else row.channel
            place = id, recording.id, row.start_s, duration_s, channel
            segments.append(SupervisionSegment(*place, row.text, row.language, row.speaker))
    for split, row, reason in repeats:
        by_split[split][1].append(Dropped(split, names[row.audio], reason))
    usable = [recording for recording, _ in recordings.values() if recording]
    # of each split only the recordings that it uses are kept later
    return {split: (Manifests.of(usable, segments), dropped) for split, (segments, dropped) in by_split.items()}


def manifests_of_split(split: str, rows: Iterable[Row], num_jobs: int | None) -> tuple[Manifests, list[Dropped]]:
    """Return the manifests of the rows of one split, and those that cannot be used; see `manifests_of_rows`.

    Args:
        split: that they belong to; it may be empty.
        rows: with ids of their own.
        num_jobs: processes that read headers, None for one on each core.
    """
    by_split = manifests_of_rows([(split, row) for row in rows], num_processes(num_jobs))
    return by_split.get(split, (Manifests.of((), ()), []))


def _without_repeats(
    rows: Sequence[tuple[str, Row]],
) -> tuple[list[tuple[str, Row]], list[tuple[str, Row, str]]]:
    """Return rows without those that only repeat another, and these with the reason; an id would make them different.

    Raises:
        ValueError: two rows give one part of a file different texts.
    """
    first: dict[object, Row] = {}
    unique, repeats = [], []
    for split, row in rows:
        other = row if row.id else first.setdefault((split, row.audio, row.start_s, row.end_s, row.channel), row)
        if other.text != row.text:
            raise ValueError(
                f"{row.where}: {other.where} gives the same audio another text; keep one of them, or give both an id"
            )
        if other is row:
            unique.append((split, row))
        else:
            repeats.append((split, row, f"repeated: {row.where} is the same as {other.where}"))
    return unique, repeats


def _ids(rows: Sequence[tuple[str, Row]], names: Mapping[Path, str]) -> Iterator[str]:
    """Yield the id of each utterance."""
    in_file, counts = Counter(row.audio for _, row in rows), Counter[Path]()
    for _, row in rows:
        counts[row.audio] += 1
        is_whole = row.start_s == 0 and row.end_s is None
        number = "" if is_whole or in_file[row.audio] == 1 else f"-{counts[row.audio]}"
        yield composed(row.id or f"{names[row.audio]}{number}")


def _names_of_files(rows: Iterable[Row]) -> dict[Path, str]:
    """Return a name for each file: no two files have one."""
    stems = {row.audio: row.stem for row in rows}
    files: dict[str, list[Path]] = defaultdict(list)
    for file, stem in stems.items():
        files[stem].append(file)
    names = {}
    for file, stem in stems.items():
        others = files[stem]
        with_ending = f"{stem}{file.suffix}"
        is_only_ending = len({other.suffix for other in others}) == len(others) and with_ending not in files
        names[file] = stem if len(others) == 1 else with_ending if is_only_ending else str(file)
    return names
