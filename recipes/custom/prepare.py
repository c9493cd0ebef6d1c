"""Your own recordings: a table, manifests or folders of lhotse, Kaldi or NeMo; missing splits are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from lhotse import SupervisionSegment

from asr.data.manifests.corpus import Corpus, Dropped, Manifests, Source
from asr.data.manifests.import_manifests import UNSPLIT, ImportedManifests, import_manifests, manifest_files
from asr.data.manifests.source_files import reads
from asr.data.parallel import num_processes
from asr.data.preparation.corpus_facts import chooses
from asr.data.seeding import seed_for
from asr.safe_io import named_path

from .choose import choose_custom

MIN_SPEAKERS = 5  # for each split that is made; fewer would be missed in training


@chooses(choose_custom)
@reads(manifest_files)
def prepare_custom(
    output_dir: Path,
    *,
    source: str | None = None,
    dev_fraction: float = 0.05,
    test_fraction: float = 0.1,
    seed: int = 20261121,
    num_jobs: int | None = 1,
) -> Corpus:
    """Return the manifests of a source, with train, dev and test.

    A missing dev or test is split off the rest: whole speakers, a tenth of them at most, if at least five are known for
    each split that is made, else utterances. The notes say so.

    Args:
        output_dir: unused, audio is not copied.
        source: a TSV or CSV with a header, a manifest of cuts or of NeMo, or a folder of manifests, Shar or Kaldi.
        dev_fraction: share of the utterances to use as dev, if it is missing.
        test_fraction: the same for test.
        seed: of the split.
        num_jobs: processes that read the headers of audio, None for one on each core; changes nothing.

    Raises:
        ValueError: no source is given, it is malformed, or too small to split.
    """
    if source is None:
        raise ValueError("recipe custom needs your recordings: data.source=PATH of a table or of manifests")
    for name, fraction in (("dev_fraction", dev_fraction), ("test_fraction", test_fraction)):
        if not 0 < fraction < 0.5:
            raise ValueError(f"data.prepare.{name} must be above 0 and below 0.5, given {fraction}")
    imported = import_manifests(named_path(source), num_jobs=num_processes(num_jobs))
    _refuse_useless(source, imported)
    segments = {split: list(found.supervisions) for split, found in imported.splits.items()}
    splits, notes = split_off(segments, {"test": test_fraction, "dev": dev_fraction}, seed)
    speakers = {name: {segment.speaker for segment in found} - {None} for name, found in splits.items()}
    manifests = {}
    for name in sorted(splits):
        sources = _sources(imported, name)
        used = {segment.recording_id: sources[segment.recording_id] for segment in splits[name]}
        manifests[name] = Manifests.of(used.values(), splits[name])
        num_shared = len(speakers[name] & speakers["train"])
        if num_shared and name in imported.splits and name != "train":
            notes.append(f"speakers of {name} that are in train too: {num_shared}")
    return Corpus(
        manifests,
        [Dropped("train" if d.split == UNSPLIT else d.split, d.item, d.reason) for d in imported.dropped],
        (*imported.notes, *notes),
    )


def _refuse_useless(source: str, imported: ImportedManifests) -> None:
    """Refuse a split of which nothing can be used, instead of making another one."""
    for split in sorted({*imported.splits, *(item.split for item in imported.dropped)}) or [UNSPLIT]:
        if split not in imported.splits or not len(imported.splits[split].supervisions):
            reasons = [item.reason for item in imported.dropped if item.split == split][:3]
            what = "nothing in it" if split == UNSPLIT else f"nothing of split {split!r}"
            raise ValueError(f"{source}: {what} can be used; the first reasons: {reasons or 'it is empty'}")


def _sources(imported: ImportedManifests, split: str) -> dict[str, Source]:
    """Return the recordings or features that a split's segments may refer to; other splits may have the same ids."""
    origins = (split,) if split in imported.splits and split != "train" else ("train", UNSPLIT)
    found: dict[str, Source] = {}
    for manifests in (imported.splits[origin] for origin in origins if origin in imported.splits):
        for name, source in manifests.sources().items():
            if found.setdefault(name, source) != source:
                raise ValueError(
                    f"recording {name!r} is described twice, differently, in the manifests of train and in those "
                    "without a split; give one of them another id"
                )
    return found


def split_off(
    segments: Mapping[str, list[SupervisionSegment]], fractions: Mapping[str, float], seed: int
) -> tuple[dict[str, list[SupervisionSegment]], list[str]]:
    """Split missing dev and test sets off the training segments.

    Args:
        segments: by split; those of ``all`` are used for training.
        fractions: share of the training segments, by the kind of split to make if it is missing.
        seed: of the choice.

    Returns:
        Segments by split, and a note on every split that was made.

    Raises:
        ValueError: there are too few segments.
    """
    splits = {name: list(found) for name, found in segments.items() if name not in (UNSPLIT, "train")}
    left = [*segments.get("train", []), *segments.get(UNSPLIT, [])]
    missing = [kind for kind in fractions if not any(name.startswith(kind) for name in splits)]
    if splits and not left:
        raise ValueError(f"all utterances are of {' and '.join(sorted(splits))}: give some of split train")
    units, how, max_speakers = _units(left, len(missing))
    if len(units) <= len(missing):
        raise ValueError(
            f"{len(left)} utterances are too few to be split into train{''.join(f' and {kind}' for kind in missing)}; "
            "give more, or a split for each, train too"
        )
    rng = np.random.default_rng(seed_for("split", seed))
    order = [sorted(units)[index] for index in rng.permutation(len(units))]
    notes = []
    for num_made, kind in enumerate(missing, start=1):
        # each of the following splits needs a unit, and so does train
        max_units = min(len(order) - (len(missing) - num_made) - 1, max_speakers)
        chosen = _choose(order, units, fractions[kind] * len(left), max_units)
        order = [name for name in order if name not in chosen]
        splits[kind] = [segment for name in chosen for segment in units[name]]
        notes.append(f"{kind} was split off, {len(splits[kind])} utterances {how}, seed {seed}")
    return {"train": [segment for name in sorted(order) for segment in units[name]], **splits}, notes


def _units(
    segments: list[SupervisionSegment], num_missing: int
) -> tuple[dict[str, list[SupervisionSegment]], str, int]:
    """Group segments that must stay in one split: by speaker if enough are known, else each segment alone.

    Returns:
        The groups, how they were made, and how many of them a split may take.
    """
    speakers = {segment.speaker for segment in segments}
    if None in speakers:
        why = "not every utterance names its speaker"
    elif len(speakers) < MIN_SPEAKERS * num_missing:
        why = f"there are fewer than {MIN_SPEAKERS * num_missing} speakers"
    else:
        why = ""
    units: dict[str, list[SupervisionSegment]] = {}
    for segment in segments:
        units.setdefault(segment.id if why else str(segment.speaker), []).append(segment)
    if why:
        return units, f"by utterance because {why}: voices may be in several splits", len(units)
    return units, "by speaker", max(1, len(units) // 10)


def _choose(
    order: Sequence[str], units: Mapping[str, list[SupervisionSegment]], target: float, max_units: int
) -> list[str]:
    """Choose units that together hold at most ``target`` segments; if all are too large, the smallest."""
    chosen: list[str] = []
    num_chosen = 0
    for name in order:
        if len(chosen) < max_units and num_chosen + len(units[name]) <= max(1, round(target)):
            chosen.append(name)
            num_chosen += len(units[name])
    return sorted(chosen) or [min(order, key=lambda name: len(units[name]))]
