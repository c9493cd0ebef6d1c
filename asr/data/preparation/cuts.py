"""Manifests → cuts fit for training, and the reasons why others are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lhotse import CutSet
from lhotse.cut import Cut
from lhotse.utils import fastcopy

from asr.console import track
from asr.data.features import Features
from asr.data.manifests.audio_checks import audio_problem, remember_size, too_long
from asr.data.manifests.corpus import Dropped, Manifests
from asr.data.manifests.import_manifests import import_manifests
from asr.data.preparation.feature_checks import refuse_unfit, stored_problem
from asr.text.normalise import TextNormalizer


@dataclass(frozen=True)
class Limits:
    """Which cuts are used.

    Attributes:
        min_duration_s: shorter cuts are dropped.
        max_duration_s: longer cuts are dropped, from training and development data only; a test set is decoded whole.
    """

    min_duration_s: float = 0.1
    max_duration_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_duration_s < self.max_duration_s:
            raise ValueError(
                "limits need 0 <= min_duration_s < max_duration_s, "
                f"given {self.min_duration_s} and {self.max_duration_s}"
            )


@dataclass
class CheckedCuts:
    """The usable cuts of a split and what was dropped from it."""

    cuts: list[Cut]
    dropped: list[Dropped] = field(default_factory=list)


def supervised_cuts(manifests: Manifests) -> Iterator[Cut]:
    """Yield one cut per supervision, with its id."""
    segments = defaultdict(list)
    for segment in manifests.supervisions:
        segments[segment.recording_id].append(segment)
    for name, source in manifests.sources().items():
        for segment in segments[name]:
            # one at a time: lhotse compares each with all that overlap it, which may be all
            whole = Manifests.of([source], [segment])
            sources = {"recordings": whole.recordings} if whole.features is None else {"features": whole.features}
            cuts = CutSet.from_manifests(**sources, supervisions=whole.supervisions)
            for cut in cuts.trim_to_supervisions(keep_overlapping=False):
                yield cut.with_id(segment.id)


def check_cuts(
    split: str, cuts: Iterable[Cut], normalise: TextNormalizer, limits: Limits, features: Features
) -> CheckedCuts:
    """Normalise transcripts and drop what cannot be used."""
    checked = CheckedCuts([])
    source = SourceCheck(features)
    for cut in cuts:
        supervision = cut.supervisions[0]
        try:
            text = normalise(supervision.text or "")
        except ValueError as error:
            raise ValueError(f"{split}: {cut.id}: {error}") from error
        reason = source(cut) or _unusable(split, cut, text, limits)
        if reason:
            checked.dropped.append(Dropped(split, cut.id, reason))
        else:
            cut.supervisions = [fastcopy(supervision, text=text)]
            if cut.has_recording:
                remember_size(cut)
            checked.cuts.append(cut)
    return checked


class SourceCheck:
    """Looks once at what cuts are cut from: can audio be opened, features be read, and are they as their manifest says?

    Args:
        features: how features without audio are read.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.problems: dict[str, str | None] = {}

    def __call__(self, cut: Cut) -> str | None:
        """Return what is wrong with the audio or the features of a cut, or None."""
        if not cut.has_recording:
            return stored_problem(self.features, cut) if cut.has_features else "no audio and no features"
        recording = cut.recording
        if recording.id not in self.problems:
            self.problems[recording.id] = audio_problem(recording)
        return self.problems[recording.id] or too_long(cut, getattr(self.features, "sampling_rate_hz", 0))


def _unusable(split: str, cut: Cut, text: str, limits: Limits) -> str | None:
    if not text:
        return "empty text"
    if cut.duration < limits.min_duration_s:
        return f"shorter than {limits.min_duration_s} s"
    # a test set is decoded whole, whatever it holds
    if cut.duration > limits.max_duration_s and not split.startswith("test"):
        return f"longer than {limits.max_duration_s} s"
    return None


def evaluation_cuts(path: Path, normalise: Callable[[str], str], features: Features) -> tuple[CutSet, list[Dropped]]:
    """Return everything at ``path``, whatever its split, as cuts with normalised transcripts, and what is left out.

    Empty transcripts stay: they are references like others.

    Raises:
        ValueError: as ``import_manifests``, and where the features cannot be had from it, or nothing is left.
    """
    brought = import_manifests(path)
    for manifests in brought.splits.values():
        refuse_unfit(manifests, features)
    cuts, dropped = [], list(brought.dropped)
    for split, manifests in brought.splits.items():
        # one per split: the same id may name another recording in another split
        source = SourceCheck(features)
        for cut in track(list(supervised_cuts(manifests)), "checking data", transient=True):
            problem = source(cut)
            if problem:
                dropped.append(Dropped(split, cut.id, problem))
            else:
                supervision = cut.supervisions[0]
                cut.supervisions = [fastcopy(supervision, text=normalise(supervision.text or ""))]
                cuts.append(cut)
    if not cuts:
        raise ValueError(f"{path}: there is nothing to decode; the first reasons: {[d.reason for d in dropped[:3]]}")
    return CutSet.from_cuts(cuts), dropped
