"""Recordings of your own: a TSV or lhotse manifests, split where no split is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.data.corpus import Corpus, Dropped, Manifests
from asr.data.manifests import UNSPLIT, read_brought
from asr.data.seeding import seed_for

MIN_SPEAKERS = 3  # one for each of train, dev and test


def prepare_custom(
    output_dir: Path,
    *,
    source: str | None = None,
    dev_fraction: float = 0.05,
    test_fraction: float = 0.1,
    seed: int = 20261121,
) -> Corpus:
    """Return the manifests of a source, with the splits that it lacks.

    Where dev or test is missing, it is split off what is left: whole speakers where at least three are known, else
    utterances. The notes say so.

    Args:
        output_dir: unused, audio stays where it is.
        source: a TSV with a header, a manifest of cuts, or a folder of lhotse manifests.
        dev_fraction: share of the utterances that become dev where there is none.
        test_fraction: likewise for test.
        seed: of the split.

    Raises:
        ValueError: there is no source, it is malformed, or too small to be split.
    """
    if source is None:
        raise ValueError("recipe custom needs your recordings: data.source=PATH of a TSV or of lhotse manifests")
    for name, fraction in (("dev_fraction", dev_fraction), ("test_fraction", test_fraction)):
        if not 0 < fraction < 0.5:
            raise ValueError(f"data.prepare.{name} must be between 0 and 0.5, given {fraction}")
    brought = read_brought(Path(source).expanduser())
    segments = {name: list(manifests.supervisions) for name, manifests in brought.splits.items()}
    splits, notes = split_off(segments, {"test": test_fraction, "dev": dev_fraction}, seed)
    recordings = {r.id: r for manifests in brought.splits.values() for r in manifests.recordings}
    return Corpus(
        {name: _manifests(splits[name], recordings) for name in sorted(splits)},
        [Dropped("train" if d.split == UNSPLIT else d.split, d.item, d.reason) for d in brought.dropped],
        (*brought.notes, *notes),
    )


def split_off(
    segments: Mapping[str, list[SupervisionSegment]], fractions: Mapping[str, float], seed: int
) -> tuple[dict[str, list[SupervisionSegment]], list[str]]:
    """Split dev and test off the training segments where they are missing.

    Args:
        segments: by split; those of ``all`` count as training segments.
        fractions: share of the training segments by the kind of split that may be missing.
        seed: of the choice.

    Returns:
        Segments by split, and a note on every split that was made.

    Raises:
        ValueError: too little is left to train on.
    """
    splits = {name: list(found) for name, found in segments.items() if name not in (UNSPLIT, "train")}
    left = [*segments.get("train", []), *segments.get(UNSPLIT, [])]
    total, notes = len(left), []
    for kind, fraction in fractions.items():
        if any(name.startswith(kind) for name in splits):
            continue
        units, unit = _units(left)
        rng = np.random.default_rng(seed_for("split", kind, seed))
        chosen: set[str] = set()
        for index in rng.permutation(len(units)):
            if sum(map(len, (units[name] for name in chosen))) >= max(1, round(fraction * total)):
                break
            chosen.add(sorted(units)[index])
        splits[kind] = [segment for name in sorted(chosen) for segment in units[name]]
        left = [segment for name in sorted(units.keys() - chosen) for segment in units[name]]
        notes.append(
            f"the source has no {kind} split: {len(splits[kind])} utterances were split off by {unit}, seed {seed}"
        )
    if not left:
        raise ValueError(f"{total} utterances are too few to split into train, dev and test; bring more, or splits")
    return {"train": left, **splits}, notes


def _units(segments: list[SupervisionSegment]) -> tuple[dict[str, list[SupervisionSegment]], str]:
    """Group what must stay together: speakers where enough are known, else nothing but the utterance itself."""
    speakers = {segment.speaker for segment in segments}
    whole = len(speakers) >= MIN_SPEAKERS and None not in speakers
    units: dict[str, list[SupervisionSegment]] = {}
    for segment in segments:
        units.setdefault(str(segment.speaker) if whole else segment.id, []).append(segment)
    return units, "speaker" if whole else "utterance"


def _manifests(segments: list[SupervisionSegment], recordings: Mapping[str, Recording]) -> Manifests:
    used = {segment.recording_id: recordings[segment.recording_id] for segment in segments}
    return Manifests(RecordingSet.from_recordings(used.values()), SupervisionSet.from_segments(segments))
