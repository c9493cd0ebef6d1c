"""What a user brings: a table, or lhotse manifests, of whatever splits."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lhotse import CutSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.utils import fastcopy
from rich.progress import track

from asr.data.audio_checks import audio_problem, refuse_foreign_sources, segment_problem
from asr.data.corpus import Dropped, Manifests
from asr.data.cuts import AudioCheck, supervised_cuts
from asr.data.tables import Row, read_table

UNSPLIT = "all"
SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass
class Brought:
    """Manifests as they were found.

    Attributes:
        splits: by name; ``all`` holds what names no split.
        dropped: items whose audio cannot be used.
        notes: what was passed over or read differently.
    """

    splits: dict[str, Manifests]
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_brought(path: Path) -> Brought:
    """Read a TSV, a cuts manifest, or a folder of recordings and supervisions, or of cuts.

    In a folder ``recordings_train.jsonl.gz`` goes with ``supervisions_train.jsonl.gz``; what follows the first ``_`` or
    ``-`` is the split. Only lhotse's jsonl is read, which holds data and no code.

    Raises:
        ValueError: nothing readable is there, or it is malformed, or it would do more than read files.
    """
    if path.is_dir():
        brought = _read_folder(path)
    elif path.name.endswith(SUFFIXES):
        brought = Brought({_split_of(path): _from_cuts(_load(CutSet, path))})
    elif path.is_file():
        brought = _read_tsv(path)
    else:
        raise ValueError(f"there is no file or folder {str(path)!r}")
    for split, manifests in brought.splits.items():
        refuse_foreign_sources(manifests.recordings)
        # lhotse's paths are relative to the folder it runs in; the next command may run in another
        absolute = manifests.recordings.with_path_prefix(Path.cwd())
        brought.splits[split] = Manifests(absolute.to_eager(), manifests.supervisions)
    brought.notes += _channel_notes(brought.splits.values())
    return brought


def evaluation_cuts(path: Path, normalise: Callable[[str], str]) -> tuple[CutSet, list[Dropped]]:
    """Return everything at ``path``, whatever its split, as cuts with normalised transcripts, and what has no audio.

    Empty transcripts stay: they are references like others.
    """
    brought = read_brought(path)
    audio, cuts, dropped = AudioCheck(), [], list(brought.dropped)
    for split, manifests in brought.splits.items():
        recordings = {recording.id: recording for recording in manifests.recordings}
        problems = {s.id: segment_problem(s, recordings.get(s.recording_id)) for s in manifests.supervisions}
        dropped += [Dropped(split, name, problem) for name, problem in problems.items() if problem]
        sound = manifests.supervisions.filter(lambda segment, problems=problems: not problems[segment.id])
        for cut in supervised_cuts(Manifests(manifests.recordings, sound.to_eager())):
            problem = audio(cut)
            if problem:
                dropped.append(Dropped(split, cut.id, problem))
            else:
                supervision = cut.supervisions[0]
                cut.supervisions = [fastcopy(supervision, text=normalise(supervision.text or ""))]
                cuts.append(cut)
    if not cuts:
        raise ValueError(f"{path}: there is nothing to decode; the first reasons: {dropped[:3]}")
    return CutSet.from_cuts(cuts), dropped


def _read_tsv(path: Path) -> Brought:
    rows, notes = read_table(path)
    brought = Brought({}, notes=notes)
    found: dict[str, list[tuple[Recording, SupervisionSegment]]] = defaultdict(list)
    for row in track(rows, "reading audio headers", transient=True):
        split = row.split or UNSPLIT
        recording, problem = _open(row)
        if recording is None:
            brought.dropped.append(Dropped(split, row.id, problem))
        else:
            found[split].append((recording, _supervision(row, recording)))
    for split, pairs in found.items():
        brought.splits[split] = Manifests(
            RecordingSet.from_recordings(recording for recording, _ in pairs),
            SupervisionSet.from_segments(supervision for _, supervision in pairs),
        )
    return brought


def _open(row: Row) -> tuple[Recording | None, str]:
    if not os.path.isfile(row.audio):  # a name too long for a file is a missing file
        return None, f"missing audio: {row.audio}"
    try:
        recording = Recording.from_file(row.audio.resolve(), recording_id=row.id)
    except Exception as error:  # a decoder may raise anything on a file that is no audio
        return None, f"unreadable audio: {row.audio}: {type(error).__name__}"
    if recording.num_samples == 0:
        return None, f"empty audio: {row.audio}"
    problem = audio_problem(recording)
    return (None, problem) if problem else (recording, "")


def _supervision(row: Row, recording: Recording) -> SupervisionSegment:
    return SupervisionSegment(
        id=row.id, recording_id=row.id, start=0.0, duration=recording.duration, text=row.text, speaker=row.speaker
    )


def _read_folder(folder: Path) -> Brought:
    files = sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES))
    recordings = {_split_of(file): file for file in files if file.name.startswith("recordings")}
    supervisions = {_split_of(file): file for file in files if file.name.startswith("supervisions")}
    cuts = {_split_of(file): file for file in files if file.name.startswith("cuts")}
    if recordings.keys() != supervisions.keys():
        lonely = sorted(recordings.keys() ^ supervisions.keys())
        raise ValueError(f"{folder}: split {lonely[0]!r} has recordings or supervisions, but not both")
    splits = {
        split: Manifests(_load(RecordingSet, file), _load(SupervisionSet, supervisions[split]))
        for split, file in recordings.items()
    }
    if not splits:
        splits = {split: _from_cuts(_load(CutSet, file)) for split, file in cuts.items()}
    if not splits:
        raise ValueError(
            f"{folder}: no manifests are there; needed are recordings*.jsonl(.gz) with supervisions*.jsonl(.gz), or "
            "cuts*.jsonl(.gz). Name the file itself if it is a TSV."
        )
    return Brought(splits)


def _split_of(path: Path) -> str:
    """Return the split that a manifest's name holds: cuts_dev-clean.jsonl.gz is of dev-clean."""
    split = re.split(r"[_-]", path.name.split(".")[0], maxsplit=1)[1:]
    if not split:
        return UNSPLIT
    if split[0] != "train" and not split[0].startswith(("dev", "test")):
        raise ValueError(
            f"{path}: there is no split {split[0]!r}; behind the first '_' or '-' stands train, or a name that begins "
            "with dev or test"
        )
    return split[0]


def _load(kind: type, path: Path) -> RecordingSet | SupervisionSet | CutSet:
    try:
        return kind.from_jsonl_lazy(path).to_eager()  # type: ignore[attr-defined]
    except Exception as error:  # lhotse lets pass whatever goes wrong inside
        raise ValueError(f"{path} is no {kind.__name__} of lhotse: {type(error).__name__}: {error}") from error


def _from_cuts(cuts: CutSet) -> Manifests:
    recordings, supervisions, _ = cuts.decompose()
    if recordings is None or supervisions is None:
        raise ValueError("the cuts hold no recordings or no supervisions; both are needed")
    return Manifests(recordings.to_eager(), supervisions.to_eager())


def _channel_notes(all_manifests: Iterable[Manifests]) -> list[str]:
    several = sum(r.num_channels > 1 for manifests in all_manifests for r in manifests.recordings)
    return [f"of {several} recordings with several channels the first is used"] if several else []
