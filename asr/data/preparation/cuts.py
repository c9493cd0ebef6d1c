"""Manifests → cuts for training or evaluation, checked, and the reasons why others are dropped.

What is done with a chunk of a corpus is written to a file of its own, so that it is not done again after a kill.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import CutSet, Recording
from lhotse import Features as StoredFeatures
from lhotse.cut import Cut, MonoCut
from lhotse.utils import fastcopy, to_list
from numpy.typing import NDArray
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from asr.data.features import Features, LogMel, read_features
from asr.data.manifests.audio import ShardMember, audible_channel, audio_problem, reading
from asr.data.manifests.corpus import IN_SHARD, Dropped, Manifests, place_of, storage_of, write_array
from asr.data.manifests.import_manifests import import_manifests
from asr.data.parallel import run_jobs
from asr.data.preparation.prepared import CtcLengths, FormerCuts, IndexedCutSet, parse_cut, with_absolute_paths
from asr.data.preparation.saved_corpus import Chunk, SavedCorpus, digest, portable_line
from asr.text.tokenizer import Tokenizer
from werdict.console import PlainProgress, bar_title, track
from werdict.files import write_whole

SILENT = "silent"  # custom field of cuts of silence that are kept
WHOLE_S = 1e-3  # lhotse reads a recording whole if a cut lacks no more
FEATURES = "features"  # folder of stored ones
NUM_STATISTICS_CUTS = 500
CUTS_PER_JOB = 50  # a process more for fewer would take longer to start


@dataclass(frozen=True)
class Limits:
    """Limits of the cuts that are used.

    Attributes:
        min_duration_s: shorter cuts are dropped.
        max_duration_s: longer cuts are dropped, except from test sets, which are decoded whole.
        keep_silent: keep cuts of silence in training and dev too.
    """

    min_duration_s: float = 0.1
    max_duration_s: float = 30.0
    keep_silent: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_duration_s < self.max_duration_s:
            raise ValueError(
                "limits need 0 <= min_duration_s < max_duration_s, "
                f"given {self.min_duration_s} and {self.max_duration_s}"
            )


def supervised_cuts(manifests: Manifests) -> Iterator[Cut]:
    """Yield one cut per supervision, with its id."""
    segments = defaultdict(list)
    for segment in manifests.supervisions:
        segments[segment.recording_id].append(segment)
    for name, source in manifests.sources().items():
        first_s = 0.0 if isinstance(source, Recording) else source.start
        for segment in segments[name]:
            if segment.start < first_s:  # by rounding
                segment = segment.trim(segment.end, first_s)
            if isinstance(source, Recording) and source.num_channels == 1 and isinstance(segment.channel, int):
                # in a twentieth of the time
                whole_cut = MonoCut(segment.id, 0.0, source.duration, segment.channel, [segment], recording=source)
                yield whole_cut.truncate(offset=segment.start, duration=segment.duration, preserve_id=True)
                continue
            # one at a time: lhotse 1.33 compares every supervision with all that overlap it, which may be all
            whole = Manifests.of([source], [segment])
            recordings = whole.recordings if whole.features is None else None
            cuts = CutSet.from_manifests(recordings, whole.supervisions, whole.features)
            for cut in cuts.trim_to_supervisions(keep_overlapping=False):
                yield cut.with_id(segment.id)


def refuse_unfit(source: Recording | StoredFeatures, features: Features, of_run: bool = False) -> None:
    """Refuse features that a corpus cannot have, before any of its cuts is checked.

    Args:
        source: the first recording, or the first features, of the corpus.
        features: that are read.
        of_run: whether these are those of a trained run, which no option changes.

    Raises:
        ValueError: the features need audio and the corpus has none, or the reverse; or those of the corpus have another
            width or frame shift.
    """
    if isinstance(source, Recording):
        available, choose = "audio", "features=log_mel, or features=log_mel_precomputed to compute them once"
        fits = features.from_audio
    else:
        available = f"features without audio, {source.num_features} per frame every {1000 * source.frame_shift:g} ms"
        choose = f"features=precomputed data.num_features={source.num_features}"
        fits = not features.from_audio and source.num_features == features.num_features
        fits = fits and abs(source.frame_shift - features.frame_shift_s) <= 1e-6
    if not fits:
        origin = ", computed from audio" if features.from_audio else " without audio"
        needed = f"{features.num_features} features per frame every {1000 * features.frame_shift_s:g} ms{origin}"
        raise ValueError(
            f"the run was trained on {needed}, but this is {available}; give data like those of the run"
            if of_run
            else f"the corpus has {available}, but features and data.num_features say {needed}; choose {choose}"
        )


class SourceCheck:
    """Checks that audio or features can be read and agree with their manifest; each recording once.

    Args:
        features: reads features without audio.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.problems: dict[tuple[str, bool], str | None] = {}

    def __call__(self, cut: Cut) -> str | None:
        """Return why the audio or the features of a cut cannot be used, or None."""
        if cut.has_recording:
            key = cut.recording.id, cut.duration >= cut.recording.duration - WHOLE_S
            if key not in self.problems:
                self.problems[key] = audio_problem(cut.recording, key[1])
            return self.problems[key]
        place = place_of(cut.features)
        if cut.features.storage_type != IN_SHARD and not os.path.isfile(place):
            return f"missing features: {place}"
        try:
            read_features(self.features, cut)
        except ValueError as error:
            return f"unreadable features: {error}"
        return None


def with_audible_channel(cut: Cut, former: Cut | None = None) -> tuple[Cut, bool]:
    """Return a cut of one channel, the first of its own that is not silent, and whether all of them are."""
    if not cut.has_recording:
        return cut, False
    channels = to_list(cut.channel)
    try:
        if former:
            audible = None if SILENT in (former.custom or ()) else former.channel
        else:
            audible = audible_channel(cut.recording, channels, cut.start, cut.duration)
    except ValueError:  # what is damaged after its header is named where it is decoded
        audible = channels[0]
    if len(channels) > 1:
        channel = channels[0] if audible is None else audible
        supervisions = [fastcopy(segment, channel=channel) for segment in cut.supervisions]
        cut = MonoCut(cut.id, cut.start, cut.duration, channel, supervisions, None, cut.recording, cut.custom)
    return cut, audible is None


def check_cuts(
    split: str,
    cuts: Iterable[Cut],
    normalize: Callable[[str], str],
    limits: Limits,
    features: Features,
    find_former: Callable[[Cut], Cut | None] = lambda cut: None,
) -> tuple[list[Cut], list[Dropped], bool]:
    """Normalize transcripts and drop cuts that cannot be used; what was made of unchanged audio before is believed.

    Returns:
        The usable cuts, what was dropped, and whether bad audio or features were a reason.
    """
    used, dropped, bad_sources = [], [], False
    source_problem = SourceCheck(features)
    for cut in cuts:
        supervision = cut.supervisions[0]
        try:
            text = normalize(supervision.text or "")
        except ValueError as error:
            raise ValueError(f"{split}: {cut.id}: {error}") from error
        former = find_former(cut)
        problem = None if former else source_problem(cut)
        if problem:
            bad_sources = True
        elif not text:
            problem = "empty text"
        elif cut.duration < limits.min_duration_s:
            problem = f"shorter than {limits.min_duration_s} s"
        elif cut.duration > limits.max_duration_s and not split.startswith("test"):  # which is decoded whole
            problem = f"longer than {limits.max_duration_s} s"
        else:
            cut, is_silent = with_audible_channel(cut, former)
            if is_silent and not limits.keep_silent and not split.startswith("test"):
                problem, bad_sources = f"silent: {cut.recording.sources[0].source}", True
            elif is_silent:
                cut.custom = {**(cut.custom or {}), SILENT: True}
        if problem:
            dropped.append(Dropped(split, cut.id, problem))
            continue
        cut.supervisions = [fastcopy(supervision, text=text)]
        # of what is in a shard, which others may write again
        if not cut.has_recording and (member := ShardMember.find(place_of(cut.features))):
            cut.features = fastcopy(cut.features, **storage_of(member.checked()))
        for source in cut.recording.sources if cut.has_recording else ():
            if member := ShardMember.find(source.source):
                source.source = str(member.checked())
        used.append(cut)
    return used, dropped, bad_sources


@dataclass(frozen=True)
class CheckedChunk:
    """The cuts of a chunk that can be used, and what was dropped of it.

    Attributes:
        path: a line of JSON with what follows, and a line for each cut.
        split: that the cuts are of.
        num_cuts: number of cuts.
        duration_s: of the whole chunk.
        dropped: items of the chunk that are not used.
    """

    path: Path
    split: str
    num_cuts: int
    duration_s: float
    dropped: tuple[Dropped, ...]

    @classmethod
    def write(
        cls, path: Path, split: str, made_of: str | None, cuts: Iterable[Cut], dropped: list[Dropped], duration_s: float
    ) -> CheckedChunk:
        """Write the file, which appears complete or not at all.

        Args:
            path: of the file, in a folder of ``<data.dir>/<corpus>``.
            split: that the cuts are of.
            made_of: digest of all that the chunk depends on; None: a repaired file would change it too, so that a later
                call makes it again.
            cuts: that can be used.
            dropped: items that cannot.
            duration_s: of the whole chunk.
        """
        lines = [portable_line(cut, path.parent, path.parents[2]) for cut in cuts]
        header: dict[str, Any] = {"made_of": made_of, "num_cuts": len(lines), "duration_s": duration_s}
        header["dropped"] = [(item.item, item.reason) for item in dropped]
        write_whole(path, b"".join([json.dumps(header).encode(), b"\n", *lines]))
        return cls(path, split, len(lines), duration_s, tuple(dropped))

    @classmethod
    def found(cls, path: Path, split: str, made_of: str) -> CheckedChunk | None:
        """Return the chunk of an earlier call, if it is made of the same, and no repaired file would change it."""
        if not path.is_file():
            return None
        with path.open("rb") as file:
            header = json.loads(file.readline())
        dropped = tuple(Dropped(split, *item) for item in header["dropped"])
        same = header["made_of"] == made_of
        return cls(path, split, header["num_cuts"], header["duration_s"], dropped) if same else None

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield the line of each cut, with its end, and its content."""
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                yield line, json.loads(line)

    def sibling(self, kind: str) -> Path:
        """Return the path of what is made of this chunk: of another kind, such as ``checked``, with the same number."""
        return self.path.with_name(f"{kind}-{self.path.name.partition('-')[2]}")


@dataclass
class CheckedSplit:
    """The chunks of a split.

    Attributes:
        name: of the split.
        chunks: in order.
        earlier: items that were dropped before the chunks were made.
        left_out: ids of cuts of the chunks that were found to be unreadable since, and why.
    """

    name: str
    chunks: list[CheckedChunk]
    earlier: list[Dropped] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(chunk.num_cuts for chunk in self.chunks) - len(self.left_out)

    @property
    def dropped(self) -> list[Dropped]:
        """Items that are not used, in the order in which that was found."""
        later = [unreadable(self.name, name, why) for name, why in self.left_out.items()]
        return [*self.earlier, *(item for chunk in self.chunks for item in chunk.dropped), *later]

    def lines(self, chunk: CheckedChunk | None = None) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield line and content of each cut that is used, of one chunk or of all."""
        for chunk_read in self.chunks if chunk is None else [chunk]:
            yield from (line for line in chunk_read.lines() if line[1]["id"] not in self.left_out)

    def rebuilt(self, work: Callable[[CheckedChunk], CheckedChunk], num_jobs: int, title: str) -> CheckedSplit:
        """Return what work makes of the chunks, and show how far it is."""
        done = run_jobs(work, self.chunks, min(num_jobs, len(self.chunks)))
        total_s = sum(chunk.duration_s for chunk in self.chunks)
        return CheckedSplit(self.name, list(track_hours(done, total_s, title)), self.dropped)

    def texts(self) -> Iterator[str]:
        """Yield the transcripts."""
        return (_text(data) for _, data in self.lines())

    def store_features(self, features: LogMel, num_jobs: int, former: FormerCuts) -> CheckedSplit:
        """Store features beside the chunks, computed or copied, or find which an earlier call has stored."""

        def store(chunk: CheckedChunk) -> CheckedChunk:
            path, lines = chunk.sibling("stored"), [line for line, _ in self.lines(chunk)]
            made_of = digest(lines)
            if stored := CheckedChunk.found(path, chunk.split, made_of):
                return stored
            done, dropped = [], []
            for line in lines:
                cut = parse_cut(line, path.parent)
                try:
                    same = former.find(chunk.split, cut)
                    with reading(cut.id):
                        cut = fastcopy(same, supervisions=cut.supervisions) if same else features.with_features(cut)
                    matrix = read_features(features, cut)
                except ValueError as error:
                    dropped.append(unreadable(chunk.split, cut.id, str(error)))
                    continue
                # the same name in every preparation, which may be interrupted
                key = hashlib.sha256(f"{chunk.split}/{cut.id}".encode()).hexdigest()[:32]
                place = write_array(path.with_name(FEATURES), key, matrix)
                done.append(fastcopy(cut, features=fastcopy(cut.features, **place)))
            return CheckedChunk.write(path, chunk.split, None if dropped else made_of, done, dropped, chunk.duration_s)

        return self.rebuilt(store, num_jobs, f"storing features of {self.name}")

    def statistics(self, features: Features, num_jobs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of each feature over evenly spread cuts; leave out those that cannot be read."""
        step = max(1, len(self) // NUM_STATISTICS_CUTS)
        folder = self.chunks[0].path.parent
        chosen = (parse_cut(line, folder) for line, _ in islice(self.lines(), 0, None, step))

        def read(cut: Cut) -> tuple[str, np.ndarray | None, str]:
            try:
                return cut.id, read_features(features, cut), ""
            except ValueError as error:
                return cut.id, None, str(error)

        num_chosen = len(range(0, len(self), step))
        measured = run_jobs(read, chosen, min(num_jobs, 1 + num_chosen // CUTS_PER_JOB))
        matrices = []
        for cut_id, matrix, why in track(measured, "measuring features", total=num_chosen):
            if matrix is None:
                self.left_out[cut_id] = why
            else:
                matrices.append(matrix)
        if not matrices:
            reasons = list(self.left_out.items())[:5]
            raise ValueError(f"no features of split {self.name!r} could be read; the first reasons: {reasons}")
        mean, std = mean_and_deviation(matrices)
        std = np.maximum(std, 1e-3)  # a constant feature would be divided by 0
        return tuple(np.round(mean, 6).tolist()), tuple(np.round(std, 6).tolist())

    def ctc_lengths(self, tokenizer: Tokenizer, frame_shift_s: float, num_jobs: int) -> CtcLengths:
        """Return the lengths of the cuts."""

        def of_chunk(chunk: CheckedChunk) -> CtcLengths:
            cuts = [data for _, data in self.lines(chunk)]
            return CtcLengths.of((data["duration"] for data in cuts), map(_text, cuts), tokenizer, frame_shift_s)

        lengths = run_jobs(of_chunk, self.chunks, min(num_jobs, len(self.chunks)))
        parts = track(lengths, f"counting tokens of {self.name}", len(self.chunks), transient=True)
        return CtcLengths(*map(np.concatenate, zip(*parts, strict=True)))

    def write(self, path: Path, tars: set[str], speakers: set[str]) -> dict[str, float]:
        """Write the cuts, return their counts, and add their speakers and the shards of their audio or features."""
        seconds = array("d")
        counts: dict[str, float] = {}

        def lines() -> Iterator[tuple[bytes, float]]:
            for line, data in self.lines():
                seconds.append(data["duration"])
                if (speaker := data["supervisions"][0].get("speaker")) is not None:
                    speakers.add(speaker)
                if SILENT in data.get("custom", ()):
                    counts["num_silent"] = counts.get("num_silent", 0) + 1
                data = with_absolute_paths(data, path.parent)
                for source in data["recording"]["sources"] if data.get("recording") else ():
                    if member := ShardMember.find(source["source"]):
                        tars.add(member.tar)
                if (features := data.get("features")) and features["storage_type"] == IN_SHARD:
                    tars.add(features["storage_path"])
                yield line, data["duration"]

        IndexedCutSet.write(path, lines())
        return {
            "num_utterances": len(seconds),
            "hours": round(sum(seconds) / 3600, 4),
            "num_speakers": len(speakers),
            **counts,
        }


def _text(data: Mapping[str, Any]) -> str:
    return str(data["supervisions"][0]["text"])


def unreadable(split: str, cut_id: str, why: str, kind: str = "audio") -> Dropped:
    """Return the entry of a cut whose audio, or features, seemed good when they were checked, but cannot be read."""
    return Dropped(split, cut_id, f"unreadable {kind}: {why}")


def check_corpus(
    corpus: SavedCorpus, folder: Path, text: Callable[[str], str], limits: Limits, features: Features, num_jobs: int
) -> dict[str, CheckedSplit]:
    """Check audio and text of all chunks of a corpus, or find which an earlier call has checked.

    Args:
        corpus: to check.
        folder: of the checked chunks.
        text: normalizer of transcripts.
        limits: which cuts are used.
        features: cut → features.
        num_jobs: processes.
    """

    def check(chunk: Chunk) -> CheckedChunk:
        path = folder / f"checked-{chunk.split}-{chunk.number:06d}.jsonl"
        made_of = digest([*chunk.sources, *chunk.segments])
        if stored := CheckedChunk.found(path, chunk.split, made_of):
            return stored
        manifests = chunk.manifests()
        find_former = functools.partial(corpus.former.find, chunk.split)
        used, dropped, bad = check_cuts(chunk.split, supervised_cuts(manifests), text, limits, features, find_former)
        duration_s = sum(segment.duration for segment in manifests.supervisions)
        return CheckedChunk.write(path, chunk.split, None if bad else made_of, used, dropped, duration_s)

    splits = {split: CheckedSplit(split, []) for split in corpus.splits}
    done = run_jobs(check, corpus.chunks(), min(num_jobs, sum(len(split.sizes) for split in corpus.splits.values())))
    total_s = sum(split.duration_s for split in corpus.splits.values())
    for chunk in track_hours(done, total_s, "checking data and text"):
        splits[chunk.split].chunks.append(chunk)
    return splits


def track_hours(done: Iterable[CheckedChunk], total_s: float, description: str) -> Iterator[CheckedChunk]:
    """Yield what is done, and show how many hours of audio that is, how fast, and the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    begin, done_s = time.monotonic(), 0.0
    with PlainProgress(*columns) as progress:
        line = progress.add_task(bar_title(description), total=total_s, status="")
        for chunk in done:
            done_s += chunk.duration_s
            rate = done_s / max(time.monotonic() - begin, 1e-3)
            status = f"{done_s / 3600:.2f} of {total_s / 3600:.2f} h, {rate:,.0f} × real time"
            progress.update(line, completed=done_s, status=status)
            yield chunk
        # sums of rounded seconds need not be equal
        progress.update(line, completed=total_s)


def evaluation_cuts(
    path: Path,
    normalize: Callable[[str], str],
    features: Features,
    option: str = "manifest",
    columns: Mapping[Any, str] | None = None,
) -> tuple[CutSet, list[Dropped], list[str]]:
    """Return the cuts of all splits at ``path`` with normalized transcripts, what was dropped, and notes on the import.

    Empty transcripts stay, because they are references like others.

    Args:
        path: of the source.
        normalize: transcript → transcript.
        features: that are read.
        option: that names the source, for messages.
        columns: of tables, by what they are.

    Raises:
        ValueError: as ``import_manifests``; or the source lacks the features, or nothing is left.
    """
    imported = import_manifests(path, option, columns=columns)
    for manifests in imported.splits.values():
        for source in islice(manifests.sources().values(), 1):
            refuse_unfit(source, features, of_run=True)
    cuts, dropped = [], list(imported.dropped)
    for split, manifests in imported.splits.items():
        # per split, because the same id may name another recording in another split
        check = SourceCheck(features)
        for cut in track(list(supervised_cuts(manifests)), "checking data", transient=True):
            if problem := check(cut):
                dropped.append(Dropped(split, cut.id, problem))
            else:
                cut, _ = with_audible_channel(cut)
                supervision = cut.supervisions[0]
                cut.supervisions = [fastcopy(supervision, text=normalize(supervision.text or ""))]
                cuts.append(cut)
    if not cuts:
        raise ValueError(f"{path}: there is nothing to decode; the first reasons: {[d.reason for d in dropped[:3]]}")
    together = f"the splits {', '.join(map(str, imported.splits))} are read as one set"
    return CutSet.from_cuts(cuts), dropped, [*imported.notes, *([together] if len(imported.splits) > 1 else [])]


def mean_and_deviation(matrices: Sequence[NDArray[np.floating]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation (F,) over the frames of matrices (T, F), in float64, without joining them."""

    def added(frames: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
        # one frame after the other, as numpy adds those of one long matrix
        return functools.reduce(lambda total, matrix: np.vstack([total, matrix]).sum(axis=0), frames, zero)

    zero = np.zeros((0, matrices[0].shape[1]))
    num_frames = sum(map(len, matrices))
    mean = added(matrix.astype(np.float64) for matrix in matrices) / num_frames
    squares = added(np.square(matrix.astype(np.float64) - mean) for matrix in matrices)
    return mean, np.sqrt(squares / num_frames)
