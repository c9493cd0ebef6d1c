"""Manifests → cuts for training or evaluation, and the reasons why others are dropped."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lhotse import CutSet, Recording, SupervisionSegment
from lhotse import Features as StoredFeatures
from lhotse.cut import Cut, MonoCut
from lhotse.utils import add_durations, fastcopy, to_list

from asr.data.features import Features, read_features
from asr.data.manifests.audio import ShardMember, audible_channel, audio_problem
from asr.data.manifests.corpus import IN_SHARD, Dropped, Manifests, place_of, with_checksum
from asr.data.manifests.import_manifests import import_manifests
from werdict.console import track

SILENT = "silent"  # custom field of cuts of silence that are kept
WHOLE_S = 1e-3  # lhotse reads a recording whole if a cut lacks no more
LEAST_PLAIN_S = 0.01  # of segments that are cut out without lhotse


@dataclass(frozen=True)
class Limits:
    """Which cuts are used.

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
            if isinstance(source, Recording) and _is_plain(source, segment):
                yield _trimmed(source, segment)
                continue
            # one at a time: lhotse 1.33 compares every supervision with all that overlap it, which may be all
            whole = Manifests.of([source], [segment])
            recordings = whole.recordings if whole.features is None else None
            cuts = CutSet.from_manifests(recordings, whole.supervisions, whole.features)
            for cut in cuts.trim_to_supervisions(keep_overlapping=False):
                yield cut.with_id(segment.id)


def _is_plain(recording: Recording, segment: SupervisionSegment) -> bool:
    """Return whether a segment is of the one channel of a recording, within it, and longer than any rounding."""
    one_channel = recording.num_channels == 1 and isinstance(segment.channel, int)
    inside = segment.start >= 0 and segment.end <= recording.duration and segment.duration >= LEAST_PLAIN_S
    return one_channel and inside


def _trimmed(recording: Recording, segment: SupervisionSegment) -> Cut:
    """Return what lhotse's ``trim_to_supervisions`` gives, in a twentieth of the time."""
    rate_hz = recording.sampling_rate
    until = add_durations(segment.start, segment.duration, sampling_rate=rate_hz)
    start = add_durations(segment.start, sampling_rate=rate_hz)
    duration = add_durations(until, -segment.start, sampling_rate=rate_hz)
    past_end = add_durations(start, duration, -recording.duration, sampling_rate=rate_hz)
    if past_end > 0:
        duration = add_durations(duration, -past_end, sampling_rate=rate_hz)
    moved = segment.with_offset(-segment.start)
    return MonoCut(segment.id, start, duration, segment.channel, [moved], recording=recording)


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
        if not cut.has_recording:
            cut.features = with_checksum(cut.features)
        for source in cut.recording.sources if cut.has_recording else ():
            if member := ShardMember.find(source.source):
                source.source = str(member.checked())
        used.append(cut)
    return used, dropped, bad_sources


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


def evaluation_cuts(
    path: Path,
    normalize: Callable[[str], str],
    features: Features,
    option: str = "manifest",
    columns: Mapping[str, str] | None = None,
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
