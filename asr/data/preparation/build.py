"""Builds prepared data from a corpus: checked cuts, a tokenizer, feature statistics, precomputed features."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.utils import fastcopy

from asr.console import PlainConsole, track
from asr.data.features import Features, LogMel, cause, read_features
from asr.data.manifests.corpus import Corpus, Dropped, write_dropped
from asr.data.manifests.feature_storage import FeatureFiles
from asr.data.preparation.ctc_lengths import CtcLengths
from asr.data.preparation.cuts import CheckedCuts, Limits, check_cuts, supervised_cuts
from asr.data.preparation.feature_checks import refuse_unfit
from asr.data.preparation.indexed_cut_set import IndexedCutSet
from asr.data.preparation.prepared import DROPPED, PreparedData
from asr.data.resampling import at_rate
from asr.errors import refuse_lack_of_resources
from asr.text.normalize import TextNormalizer

NUM_STATISTICS_CUTS = 500

console = PlainConsole()


@dataclass(frozen=True)
class PrepareSpec:
    """How a corpus is prepared: all that depends on options of text and features, and nothing of the model.

    Attributes:
        text: normalizer of transcripts.
        limits: which cuts are used.
        features: cut → features.
        tokenizer_trainer: transcripts → tokenizer.
    """

    text: TextNormalizer
    limits: Limits
    features: Features
    tokenizer_trainer: Any


def build_prepared(folder: Path, corpus: Corpus, spec: PrepareSpec) -> None:
    """Build in a folder next to the final one, which appears complete or not at all."""
    for manifests in corpus.splits.values():
        refuse_unfit(manifests, spec.features)
    work = folder.with_name(f"{folder.name}.partial")
    _remove(work)
    work.mkdir()
    try:
        _fill(work, folder, corpus, spec)
        _remove(folder)
        os.rename(work, folder)
    except BaseException:
        # after a full disk the next attempt needs the room
        shutil.rmtree(work, ignore_errors=True)
        raise


def _remove(folder: Path) -> None:
    """Remove a folder, or whatever else has its name, without following a link."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _fill(work: Path, folder: Path, corpus: Corpus, spec: PrepareSpec) -> None:
    checked = {
        name: check_cuts(name, supervised_cuts(manifests), spec.text, spec.limits, spec.features)
        for name, manifests in track(corpus.splits.items(), "checking data and text", console=console)
    }
    _refuse_emptied(corpus, checked)
    tokenizer = spec.tokenizer_trainer.train(cut.supervisions[0].text for cut in checked["train"].cuts)
    mean, std = _statistics(checked["train"], spec.features)
    if spec.features.precomputed and isinstance(spec.features, LogMel):
        for name, part in checked.items():
            _store_features(name, part, spec.features, work / "features", folder / "features")
        _refuse_emptied(corpus, checked)
    dropped = _all_dropped(corpus, checked)
    write_dropped(work / DROPPED, dropped)
    for name, part in checked.items():
        IndexedCutSet.write(work / f"cuts_{name}", part.cuts)
        CtcLengths.of(part.cuts, tokenizer, spec.features.frame_shift_s).save(work / f"ctc_lengths_{name}.npz")
    splits = {name: _counts(name, part, dropped) for name, part in checked.items()}
    PreparedData(work, tokenizer, mean, std, splits, corpus.notes).save()


def _refuse_emptied(corpus: Corpus, checked: dict[str, CheckedCuts]) -> None:
    for name, part in checked.items():
        if not part.cuts:
            first = [f"{item.item}: {item.reason}" for item in _all_dropped(corpus, checked) if item.split == name][:5]
            raise ValueError(
                f"nothing is left of split {name!r}; the first reasons: {first}. Correct these items, leave the split "
                "out, or change data.limits or data.text."
            )


def _all_dropped(corpus: Corpus, checked: dict[str, CheckedCuts]) -> list[Dropped]:
    return [*corpus.dropped, *(item for part in checked.values() for item in part.dropped)]


def _statistics(part: CheckedCuts, features: Features) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of each feature over evenly spread training cuts; drop those that cannot be read."""
    chosen = part.cuts[:: max(1, len(part.cuts) // NUM_STATISTICS_CUTS)]
    read, unreadable = [], {}
    for cut in track(chosen, "measuring features", console=console):
        try:
            read.append(read_features(features, cut))
        except ValueError as error:
            unreadable[cut.id] = cause(error)
    if not read:
        raise ValueError(
            f"no features of split 'train' could be read; the first reasons: {list(unreadable.items())[:5]}"
        )
    _drop_unreadable("train", part, unreadable)
    frames = np.concatenate(read).astype(np.float64)
    std = np.maximum(frames.std(axis=0), 1e-3)  # a constant feature would be divided by 0
    return tuple(np.round(frames.mean(axis=0), 6).tolist()), tuple(np.round(std, 6).tolist())


def _store_features(split: str, part: CheckedCuts, features: LogMel, work: Path, final: Path) -> None:
    done, unreadable = [], {}
    with FeatureFiles(work) as storage:
        for cut in track(part.cuts, f"storing features of {split}", console=console):
            try:
                stored = at_rate(cut, features.sampling_rate_hz).compute_and_store_features(features.extractor, storage)
                # lhotse alone reads its own transforms
                cut = fastcopy(cut.resample(features.sampling_rate_hz), features=stored.features)
                read_features(features, cut)
            except Exception as error:  # a decoder may raise anything on a broken file
                if storage.failure is not None:
                    raise storage.failure from error
                refuse_lack_of_resources(error, cut.id)
                unreadable[cut.id] = cause(error)
            else:
                # the work folder is renamed at the end, and cuts hold absolute paths
                cut.features.storage_path = str(final)
                done.append(cut)
    _drop_unreadable(split, part, unreadable)
    part.cuts = done


def _drop_unreadable(split: str, part: CheckedCuts, unreadable: dict[str, str]) -> None:
    """Drop cuts whose audio has a good header and end, but cannot be decoded, or decodes to infinite numbers."""
    part.dropped += [Dropped(split, cut_id, f"unreadable audio: {why}") for cut_id, why in unreadable.items()]
    part.cuts = [cut for cut in part.cuts if cut.id not in unreadable]


def _counts(name: str, part: CheckedCuts, dropped: list[Dropped]) -> dict[str, float]:
    return {
        "num_utterances": len(part.cuts),
        "hours": round(sum(cut.duration for cut in part.cuts) / 3600, 4),
        "num_speakers": len({cut.supervisions[0].speaker for cut in part.cuts} - {None}),
        "num_dropped": sum(item.split == name for item in dropped),
    }
