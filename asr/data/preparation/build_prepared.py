"""Builds prepared data from a corpus: checked cuts, a tokenizer, feature statistics, precomputed features."""

from __future__ import annotations

import functools
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.cut import Cut
from numpy.typing import NDArray

from asr.console import PlainProgress, track
from asr.data.features import Features, LogMel, read_features
from asr.data.manifests.corpus import Dropped, write_dropped
from asr.data.manifests.feature_storage import IN_SHARD
from asr.data.manifests.shar.members import ShardMember
from asr.data.parallel import run_jobs
from asr.data.preparation.checked_chunks import FEATURES, CheckedSplit, check_corpus, ctc_lengths, store_features
from asr.data.preparation.cuts import SILENT, Limits, refuse_unfit
from asr.data.preparation.indexed_cut_set import IndexedCutSet, parse_cut
from asr.data.preparation.mixture import corpus_of
from asr.data.preparation.portable_paths import portable_path, with_absolute_paths
from asr.data.preparation.prepared import DROPPED, PreparedData
from asr.data.preparation.saved_corpus import SavedCorpus
from asr.data.preparation.shards import ShardStorage, write_shards
from asr.errors import RunFailed
from asr.text.tokenizer import KeptTokenizer, unchanged

NUM_STATISTICS_CUTS = 500
CUTS_PER_JOB = 50  # a process more for fewer would take longer to start


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

    text: Callable[[str], str]
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
        refuse_unfit(corpus.first_source(split), spec.features)
    work, chunks = (folder.with_name(f"{folder.name}.{kind}") for kind in ("partial", "chunks"))
    shutil.rmtree(work, ignore_errors=True)
    chunks.mkdir(exist_ok=True)
    work.mkdir()
    try:
        _fill(work, chunks, corpus, spec, num_jobs)
        if (chunks / FEATURES).is_dir():
            # first, because they say of these features that they are there
            for chunk in chunks.glob("*.jsonl"):
                chunk.unlink()
            os.rename(chunks / FEATURES, work / FEATURES)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(work, folder)
    except BaseException as error:
        # after a full disk the next attempt needs the room
        shutil.rmtree(work, ignore_errors=True)
        if not isinstance(error, KeyboardInterrupt | SystemExit | RunFailed):
            shutil.rmtree(chunks, ignore_errors=True)
        raise
    shutil.rmtree(chunks)


def _fill(work: Path, chunks: Path, corpus: SavedCorpus, spec: PrepareSpec, num_jobs: int) -> None:
    splits = check_corpus(corpus, chunks, spec.text, spec.limits, spec.features, num_jobs)
    _all_dropped(corpus, splits)
    with PlainProgress(transient=True) as progress:
        progress.add_task("training the tokenizer", total=None)
        tokenizer = spec.tokenizer_trainer.train(splits["train"].texts())
        if not isinstance(spec.tokenizer_trainer, KeptTokenizer):  # which has looked at them already
            for _ in unchanged(tokenizer, splits["train"].texts()):
                pass
    if (features := spec.features).precomputed and isinstance(features, LogMel) and spec.shards is None:
        splits = {name: store_features(split, features, num_jobs, corpus.former) for name, split in splits.items()}
    mean, std = _statistics(splits["train"], features, num_jobs)
    if spec.shards is not None:
        splits = write_shards(splits, spec.shards, num_jobs)
    dropped = _all_dropped(corpus, splits)
    write_dropped(work / DROPPED, dropped)
    counts: dict[str, dict[str, float]] = {}
    tars: set[str] = set()
    speakers: dict[str, set[str]] = {name: set() for name in splits}
    for name, split in splits.items():
        counts[name] = _write_cuts(work / f"cuts_{name}", split, tars, speakers[name])
        counts[name]["num_dropped"] = sum(item.split == name for item in dropped)
        lengths = ctc_lengths(split, tokenizer, spec.features.frame_shift_s, num_jobs)
        lengths.save(work / f"ctc_lengths_{name}.npz")
    for name in splits:
        # a comparison then says nothing of other speakers
        if name != "train" and (num_seen := len(speakers[name] & speakers["train"])):
            counts[name]["num_seen_speakers"] = num_seen
    num_cuts = Counter(corpus_of(data["id"]) for _, data in splits["train"].lines()) if corpus.sources else {}
    if emptied := [name for name in corpus.sources if not num_cuts[name]]:
        raise ValueError(f"data.sources: nothing is left of split 'train' of {emptied[0]}; leave it out of the mixture")
    sizes = {name: num_cuts[name] for name in corpus.sources}
    shards = {portable_path(tar, work, work.parents[1]): os.stat(tar).st_size for tar in sorted(tars)}
    PreparedData(work, tokenizer, mean, std, counts, corpus.notes, sizes, shards).save()


def _all_dropped(corpus: SavedCorpus, splits: dict[str, CheckedSplit]) -> list[Dropped]:
    """Return what was dropped; refuse a split of which nothing is left."""
    dropped = [*corpus.dropped, *(item for split in splits.values() for item in split.dropped)]
    if (name := next((name for name, split in splits.items() if not len(split)), None)) is not None:
        first = [f"{item.item}: {item.reason}" for item in dropped if item.split == name][:5]
        raise ValueError(
            f"nothing is left of split {name!r}; the first reasons: {first}. Correct these items, leave the split "
            "out, or change data.limits or data.text."
        )
    return dropped


def _statistics(split: CheckedSplit, features: Features, num_jobs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of each feature over evenly spread training cuts; drop those that cannot be read."""
    step = max(1, len(split) // NUM_STATISTICS_CUTS)
    folder = split.chunks[0].path.parent
    chosen = (parse_cut(line, folder) for line, _ in islice(split.lines(), 0, None, step))

    def read(cut: Cut) -> tuple[str, np.ndarray | None, str]:
        try:
            return cut.id, read_features(features, cut), ""
        except ValueError as error:
            return cut.id, None, str(error)

    num_chosen = len(range(0, len(split), step))
    measured = run_jobs(read, chosen, min(num_jobs, 1 + num_chosen // CUTS_PER_JOB))
    matrices = []
    for cut_id, matrix, why in track(measured, "measuring features", total=num_chosen):
        if matrix is None:
            split.left_out[cut_id] = why
        else:
            matrices.append(matrix)
    if not matrices:
        raise ValueError(
            f"no features of split 'train' could be read; the first reasons: {list(split.left_out.items())[:5]}"
        )
    mean, std = mean_and_deviation(matrices)
    std = np.maximum(std, 1e-3)  # a constant feature would be divided by 0
    return tuple(np.round(mean, 6).tolist()), tuple(np.round(std, 6).tolist())


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


def _write_cuts(path: Path, split: CheckedSplit, tars: set[str], speakers: set[str]) -> dict[str, float]:
    """Write the cuts of a split, return its counts, and add its speakers and the shards of its audio or features."""
    seconds = array("d")
    counts: dict[str, float] = {}

    def lines() -> Iterator[tuple[bytes, float]]:
        for line, data in split.lines():
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
