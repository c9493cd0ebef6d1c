"""Builds prepared data from a corpus: checked cuts, a tokenizer, feature statistics, precomputed features."""

from __future__ import annotations

import os
import shutil
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.cut import Cut

from asr.console import PlainConsole, track
from asr.data.features import Features, LogMel, cause, read_features
from asr.data.jobs import run_jobs
from asr.data.manifests.corpus import Dropped, write_dropped
from asr.data.manifests.feature_storage import IN_SHARD
from asr.data.manifests.shar.members import ShardMember
from asr.data.preparation.cuts import Limits
from asr.data.preparation.feature_checks import refuse_unfit
from asr.data.preparation.indexed_cut_set import IndexedCutSet
from asr.data.preparation.mixture import corpus_of
from asr.data.preparation.moments import moments
from asr.data.preparation.parts import SplitParts, cut_of
from asr.data.preparation.prepared import DROPPED, PreparedData
from asr.data.preparation.saved_corpus import SavedCorpus, first_source
from asr.data.preparation.shards.writing import ShardStorage, write_shards
from asr.data.preparation.stages import CheckChunk, check_corpus, ctc_lengths, store_features
from asr.errors import RunFailed
from asr.text.normalize import TextNormalizer

FEATURES = "features"  # folder of stored ones
NUM_STATISTICS_CUTS = 500
CUTS_PER_JOB = 50  # a process more for fewer would take longer to start

console = PlainConsole()


@dataclass(frozen=True)
class PrepareSpec:
    """How a corpus is prepared: all that depends on options of text and features, and nothing of the model.

    Attributes:
        text: normalizer of transcripts.
        limits: which cuts are used.
        features: cut → features.
        tokenizer_trainer: transcripts → tokenizer.
        shards: where audio, or features, are stored; None: where the corpus has them.
    """

    text: TextNormalizer
    limits: Limits
    features: Features
    tokenizer_trainer: Any
    shards: ShardStorage | None = None


def build_prepared(folder: Path, corpus: SavedCorpus, spec: PrepareSpec, num_jobs: int = 1) -> None:
    """Build in a folder next to the final one, which appears complete or not at all.

    A kill or an interruption leaves what was done with whole chunks of the corpus, in a folder of its own, from which
    the next call continues.
    """
    for split in corpus.splits:
        refuse_unfit(first_source(corpus, split), spec.features)
    work, parts = (folder.with_name(f"{folder.name}.{kind}") for kind in ("partial", "parts"))
    _remove(work)
    _ensure_folder(parts)
    work.mkdir()
    try:
        _fill(work, folder, parts, corpus, spec, num_jobs)
        if (parts / FEATURES).is_dir():
            # first, because they say of these features that they are there
            for part in parts.glob("*.jsonl"):
                part.unlink()
            os.rename(parts / FEATURES, work / FEATURES)
        _remove(folder)
        os.rename(work, folder)
    except BaseException as error:
        # after a full disk the next attempt needs the room
        shutil.rmtree(work, ignore_errors=True)
        if not isinstance(error, KeyboardInterrupt | SystemExit | RunFailed):
            _remove(parts)
        raise
    _remove(parts)


def _ensure_folder(path: Path) -> None:
    """Make a folder, or keep that of an interrupted call; what else has its name is removed."""
    if path.is_symlink() or not path.is_dir():
        _remove(path)
    path.mkdir(exist_ok=True)


def _remove(folder: Path) -> None:
    """Remove a folder, or whatever else has its name, without following a link."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _fill(work: Path, folder: Path, parts: Path, corpus: SavedCorpus, spec: PrepareSpec, num_jobs: int) -> None:
    splits = check_corpus(corpus, CheckChunk(parts, spec.text, spec.limits, spec.features), num_jobs)
    _refuse_emptied(corpus, splits)
    tokenizer = spec.tokenizer_trainer.train(splits["train"].texts())
    mean, std = _statistics(splits["train"], spec.features, num_jobs)
    if spec.shards is None and spec.features.precomputed and isinstance(spec.features, LogMel):
        places = parts / FEATURES, folder / FEATURES
        splits = {name: store_features(split, spec.features, *places, num_jobs) for name, split in splits.items()}
        _refuse_emptied(corpus, splits)
    if spec.shards is not None:
        splits = write_shards(splits, spec.shards, num_jobs)
        _refuse_emptied(corpus, splits)
    dropped = _all_dropped(corpus, splits)
    write_dropped(work / DROPPED, dropped)
    counts: dict[str, dict[str, float]] = {}
    tars: set[str] = set()
    for name, split in splits.items():
        counts[name] = _write_cuts(work / f"cuts_{name}", split, tars)
        counts[name]["num_dropped"] = sum(item.split == name for item in dropped)
        lengths = ctc_lengths(split, tokenizer, spec.features.frame_shift_s, num_jobs)
        lengths.save(work / f"ctc_lengths_{name}.npz")
    sizes = _sizes(corpus, splits["train"])
    shards = {tar: os.stat(tar).st_size for tar in sorted(tars)}
    PreparedData(work, tokenizer, mean, std, counts, corpus.notes, sizes, shards).save()


def _sizes(corpus: SavedCorpus, train: SplitParts) -> dict[str, int]:
    """Return the number of training cuts of each corpus of a mixture; none for a single corpus."""
    found = Counter(corpus_of(data["id"]) for _, data in train.lines()) if corpus.sources else {}
    for name in corpus.sources:
        if not found[name]:
            raise ValueError(f"data.sources: nothing is left of split 'train' of {name}; leave it out of the mixture")
    return {name: found[name] for name in corpus.sources}


def _refuse_emptied(corpus: SavedCorpus, splits: dict[str, SplitParts]) -> None:
    for name, split in splits.items():
        if not len(split):
            first = [f"{item.item}: {item.reason}" for item in _all_dropped(corpus, splits) if item.split == name][:5]
            raise ValueError(
                f"nothing is left of split {name!r}; the first reasons: {first}. Correct these items, leave the split "
                "out, or change data.limits or data.text."
            )


def _all_dropped(corpus: SavedCorpus, splits: dict[str, SplitParts]) -> list[Dropped]:
    return [*corpus.dropped, *(item for split in splits.values() for item in split.dropped)]


def _statistics(split: SplitParts, features: Features, num_jobs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of each feature over evenly spread training cuts; drop those that cannot be read."""
    step = max(1, len(split) // NUM_STATISTICS_CUTS)
    chosen = (cut_of(line, "a checked cut") for line, _ in islice(split.lines(), 0, None, step))

    def read(cut: Cut) -> tuple[str, np.ndarray | None, str]:
        try:
            return cut.id, read_features(features, cut), ""
        except ValueError as error:
            return cut.id, None, cause(error)

    num_chosen = len(range(0, len(split), step))
    found = run_jobs(read, chosen, min(num_jobs, 1 + num_chosen // CUTS_PER_JOB))
    matrices = []
    for cut_id, matrix, why in track(found, "measuring features", total=num_chosen, console=console):
        if matrix is None:
            split.left_out[cut_id] = why
        else:
            matrices.append(matrix)
    if not matrices:
        raise ValueError(
            f"no features of split 'train' could be read; the first reasons: {list(split.left_out.items())[:5]}"
        )
    mean, std = moments(matrices)
    std = np.maximum(std, 1e-3)  # a constant feature would be divided by 0
    return tuple(np.round(mean, 6).tolist()), tuple(np.round(std, 6).tolist())


def _write_cuts(path: Path, split: SplitParts, tars: set[str]) -> dict[str, float]:
    """Write the cuts of a split, return its counts, and add the shards that hold its audio or features."""
    seconds, speakers = array("d"), set()

    def lines() -> Iterator[tuple[bytes, float]]:
        for line, data in split.lines():
            seconds.append(data["duration"])
            speakers.add(data["supervisions"][0].get("speaker"))
            tars.update(_tars_of(data))
            yield line, data["duration"]

    IndexedCutSet.write_lines(path, lines())
    return {
        "num_utterances": len(seconds),
        "hours": round(sum(seconds) / 3600, 4),
        "num_speakers": len(speakers - {None}),
    }


def _tars_of(data: Mapping[str, Any]) -> Iterator[str]:
    sources = data["recording"]["sources"] if data.get("recording") else ()
    yield from (member.tar for source in sources if (member := ShardMember.find(source["source"])))
    if (features := data.get("features")) and features["storage_type"] == IN_SHARD:
        yield features["storage_path"]
