"""Missing dev and test sets: whole speakers where their sizes allow, else parts of large speakers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lhotse import SupervisionSegment

from asr.data.loading.sampling import random_order
from asr.data.manifests.import_manifests import UNSPLIT

LEAST_UTTERANCES, LEAST_WORDS = 50, 300  # with fewer, checkpoints are chosen by chance
LEAST, MOST = 0.8, 1.5  # times the share that is asked for
MOST_SPEAKERS = 0.2  # of all, whole in one split: the others are needed in training

Speakers = dict[str | None, list[SupervisionSegment]]


@dataclass
class HeldOut:
    """A split that is being made.

    Attributes:
        target_s: seconds of audio that it should have.
        segments: what it has.
        whole: speakers that are in no other split.
        parts: speakers that may be in other splits too; None: those that are not named.
    """

    target_s: float
    segments: list[SupervisionSegment] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    parts: set[str | None] = field(default_factory=set)
    duration_s: float = 0.0
    num_words: int = 0

    @property
    def shows_much(self) -> bool:
        """Whether it has enough utterances and words to choose a checkpoint by."""
        return len(self.segments) >= LEAST_UTTERANCES and self.num_words >= LEAST_WORDS

    @property
    def is_enough(self) -> bool:
        """Whether it needs no more."""
        return self.duration_s >= self.target_s and self.shows_much

    def fits(self, segments: list[SupervisionSegment]) -> bool:
        """Return whether it would not become too large with these segments."""
        return self.duration_s + _seconds(segments) <= MOST * self.target_s

    def take(self, segments: list[SupervisionSegment]) -> None:
        """Add segments."""
        self.segments += segments
        self.duration_s += _seconds(segments)
        self.num_words += sum(len((segment.text or "").split()) for segment in segments)

    def note(self, kind: str, num_speakers: int) -> str:
        """Return what it holds, whose voices, and how far a WER on it may be from that of a larger set."""
        utterances, whole = f"{len(self.segments)} utterances", f"{len(self.whole)} of {num_speakers} speakers"
        if None in self.parts:
            held_out = f"{utterances} held out (voices may be in train too)"
        elif not self.parts:
            held_out = f"{whole} ({utterances}) held out"
        else:
            shared = f"{len(self.parts)} speaker{'s' if len(self.parts) > 1 else ''} in train too"
            held_out = f"{utterances} held out, of {f'{whole} and ' if self.whole else ''}{shared}"
        points = 98 / max(1, self.num_words) ** 0.5  # 1.96 standard deviations of a share of a half
        return f"no {kind} split given: {held_out}; expect ±{points:.2g} points"


def split_off(
    segments: Mapping[str, list[SupervisionSegment]], fractions: Mapping[str, float], seed: int
) -> tuple[dict[str, list[SupervisionSegment]], list[str]]:
    """Split missing dev and test sets off the training segments.

    Each has about its share of the audio, and at least 50 utterances and 300 words, if that is not more than 1.5 times
    the share.

    Args:
        segments: by split; those of ``all`` are used for training.
        fractions: share of the audio for training, by the kind of split to make if it is missing.
        seed: of the choice.

    Returns:
        Segments by split, and a note on every split that was made.

    Raises:
        ValueError: there are too few segments.
    """
    splits = {name: list(of_split) for name, of_split in segments.items() if name not in (UNSPLIT, "train")}
    left = [*segments.get("train", []), *segments.get(UNSPLIT, [])]
    missing = [kind for kind in fractions if not any(name.startswith(kind) for name in splits)]
    if splits and not left:
        raise ValueError(f"all utterances are of {' and '.join(sorted(splits))}: give some of split train")
    if len(left) <= len(missing):
        raise ValueError(
            f"{len(left)} utterances are too few to be split into train{''.join(f' and {kind}' for kind in missing)}; "
            "give more, or a split for each, train too"
        )
    speakers: Speakers = defaultdict(list)
    for segment in sorted(left, key=lambda segment: segment.id):
        speakers[segment.speaker].append(segment)
    num_speakers, total_s = len(speakers.keys() - {None}), _seconds(left)
    made = {kind: HeldOut(fractions[kind] * total_s) for kind in missing}
    for split in made.values():
        _take_speakers(split, speakers, int(MOST_SPEAKERS * num_speakers), seed)
    for kind, split in made.items():
        larger = _with_parts(split, speakers, seed)
        if split.duration_s < LEAST * split.target_s or (larger.shows_much and not split.shows_much):
            made[kind] = larger
            taken = {utterance.id for utterance in larger.segments}
            for name in larger.parts:
                speakers[name] = [utterance for utterance in speakers[name] if utterance.id not in taken]
    notes = [split.note(kind, num_speakers) for kind, split in made.items()]
    splits |= {kind: sorted(split.segments, key=lambda utterance: utterance.id) for kind, split in made.items()}
    held_out = {utterance.id for split in made.values() for utterance in split.segments}
    return {"train": [utterance for utterance in left if utterance.id not in held_out], **splits}, notes


def _take_speakers(split: HeldOut, speakers: Speakers, most: int, seed: int) -> None:
    """Move whole speakers, at most so many, into a split in random order until it is large enough."""
    names = sorted(name for name in speakers if name is not None)
    for name in (names[index] for index in random_order(len(names), "speakers", seed)):
        if not split.is_enough and len(split.whole) < most and split.fits(speakers[name]):
            split.take(speakers.pop(name))
            split.whole.append(name)


def _with_parts(split: HeldOut, speakers: Speakers, seed: int) -> HeldOut:
    """Return a split with utterances of the largest speaker, and of all who have half as much, until it is enough."""
    split = replace(split, segments=[*split.segments], parts=set())
    fitting = {name: [segment for segment in segments if split.fits([segment])] for name, segments in speakers.items()}
    sizes_s = {name: _seconds(segments) for name, segments in fitting.items()}
    pool = [
        segment
        for name, segments in fitting.items()
        if sizes_s[name] >= max(sizes_s.values()) / 2
        for segment in segments
    ]
    # where long utterances are few, training needs most of the others
    for index in random_order(len(pool), "parts", seed)[: max(1, len(pool) // 3)]:
        if not split.is_enough and split.fits([pool[index]]):
            split.take([pool[index]])
            split.parts.add(pool[index].speaker)
    if not split.segments:
        shortest = min(
            (segment for segments in speakers.values() for segment in segments), key=lambda segment: segment.duration
        )
        split.take([shortest])
        split.parts.add(shortest.speaker)
    return split


def _seconds(segments: Iterable[SupervisionSegment]) -> float:
    return sum(segment.duration for segment in segments)
