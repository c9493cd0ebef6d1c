"""Corpus → prepared data: once, resumably, with a table of what was used and what was dropped.

<data.dir>/<fingerprint of corpus options and source>/       audio and manifests of the recipe
<data.dir>/<…>/<fingerprint of text, tokenizer, features>/   cuts, tokenizer, statistics
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.cut import Cut

from asr.console import PlainConsole, track
from asr.data.features import Features, LogMel, cause, read_features
from asr.data.manifests.corpus import SPLIT, Corpus, Dropped, Manifests
from asr.data.manifests.feature_storage import FeatureFiles
from asr.data.manifests.lhotse_jsonl import read_saved
from asr.data.manifests.manifest_checks import contradiction
from asr.data.preparation.cuts import CheckedCuts, Limits, check_cuts, supervised_cuts, too_short
from asr.data.preparation.feature_checks import refuse_unfit
from asr.data.preparation.indexed_cut_set import CutTable
from asr.data.preparation.prepared import DROPPED, INDEX, DamagedData, PreparedData
from asr.safe_io import naming, open_inside, read_json, refuse_links_outside, write_whole
from asr.text.normalise import TextNormalizer
from asr.text.tokenizer import Tokenizer

CORPUS_INDEX = "corpus.json"
MAX_CORPUS_INDEX_BYTES, MAX_CORPUS_INDEX_VALUES = 2**29, 4_000_000  # it names every dropped item
NUM_STATISTICS_CUTS = 500

console = PlainConsole()


@dataclass(frozen=True)
class View:
    """How a corpus is looked at: everything that a change of model or text options may change.

    Attributes:
        text: normaliser of transcripts.
        limits: which cuts are used.
        features: cut → features.
        tokenizer_trainer: transcripts → tokenizer.
        output_frames: frames of an utterance → frames that the encoder leaves.
    """

    text: TextNormalizer
    limits: Limits
    features: Features
    tokenizer_trainer: Any
    output_frames: Callable[[int], int]


def prepare(
    root: Path,
    corpus_name: str,
    make_corpus: Callable[[Path], Corpus],
    view: View,
    view_name: str,
    may_prepare: bool = True,
) -> PreparedData:
    """Return prepared data, made now or found.

    Args:
        root: ``data.dir``.
        corpus_name: fingerprint of the recipe's options and source.
        make_corpus: the recipe's prepare function; called with the folder that it may write to.
        view: how the corpus is looked at.
        view_name: fingerprint of everything in ``view``.
        may_prepare: False: only data that are there already are returned.

    Raises:
        ValueError: the corpus cannot be used, or is not there and may not be made.
    """
    corpus_folder = root.resolve() / corpus_name
    folder = corpus_folder / view_name
    found = _found(folder, view, quiet=True)
    if found is None and not may_prepare:
        raise ValueError(
            f"resume: the data of the run are not in {root}, or are damaged; type data.dir=PATH too, to have them "
            "prepared there"
        )
    if found is None:
        with _lock(root.resolve() / f".{corpus_name}.lock"):
            found = _found(folder, view)
            if found is None:
                corpus_folder.mkdir(parents=True, exist_ok=True)
                refuse_links_outside(corpus_folder)
                with naming(corpus_folder):
                    _build_view(folder, _corpus(corpus_folder, make_corpus), view)
    return found or PreparedData.load(folder)


def _found(folder: Path, view: View, quiet: bool = False) -> PreparedData | None:
    """Return what was prepared before; None if that is nothing, or no longer as it was written, which is said."""
    if not os.path.lexists(folder / INDEX):
        return None
    try:
        prepared = PreparedData.load(folder)
        _refuse_other(prepared, view)
    except ValueError as error:
        if not quiet:
            console.print(f"{error}; preparing again", soft_wrap=True)
        return None
    return prepared


def _refuse_other(prepared: PreparedData, view: View) -> None:
    """Refuse data that this view cannot have made, and tables of cuts that do not fit the index."""
    if len(prepared.mean) != view.features.num_features:
        raise DamagedData(
            f"the prepared data in {prepared.folder} cannot be used: a frame has {len(prepared.mean)} features there, "
            f"not {view.features.num_features}"
        )
    if "train" not in prepared.splits or not prepared.names("dev"):
        raise DamagedData(f"the prepared data in {prepared.folder} cannot be used: they lack train or dev")
    for name in prepared.splits:
        prepared.cuts(name)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time prepare; others wait and say so. The lock goes with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_inside(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"another process is preparing {path.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _corpus(folder: Path, make_corpus: Callable[[Path], Corpus]) -> Corpus:
    if os.path.lexists(folder / CORPUS_INDEX):
        try:
            return _saved_corpus(folder)
        # what damaged manifests make lhotse raise can be anything
        except Exception as error:
            console.print(f"the manifests in {folder} cannot be used: {error}; making them again", soft_wrap=True)
    corpus = make_corpus(folder)
    _refuse_unusable(corpus)
    for name, manifests in corpus.splits.items():
        manifests.save(folder, name)
    index = {
        "splits": list(corpus.splits),
        "notes": corpus.notes,
        "dropped": [(item.split, item.item, item.reason) for item in corpus.dropped],
    }
    write_whole(folder / CORPUS_INDEX, json.dumps(index, indent=1))
    return _saved_corpus(folder)


def _saved_corpus(folder: Path) -> Corpus:
    index = read_json(folder / CORPUS_INDEX, MAX_CORPUS_INDEX_BYTES, MAX_CORPUS_INDEX_VALUES)
    splits = {name: read_saved(folder, name) for name in index["splits"] if SPLIT.fullmatch(name)}
    corpus = Corpus(splits, [Dropped(*map(str, item)) for item in index["dropped"]], tuple(map(str, index["notes"])))
    _refuse_unusable(corpus)
    return corpus


def _refuse_unusable(corpus: Corpus) -> None:
    """Refuse, before anything of it is kept, a corpus that cannot be trained on or whose manifests contradict."""
    if "train" not in corpus.splits or not any(name.startswith("dev") for name in corpus.splits):
        raise ValueError(
            f"the corpus has the splits {', '.join(corpus.splits) or '(none)'}; needed are 'train', and one whose name "
            "starts with 'dev' to choose checkpoints by. Let the prepare function of the recipe make them."
        )
    for name, manifests in corpus.splits.items():
        if not manifests.sources() or next(iter(manifests.supervisions), None) is None:
            reasons = [item.reason for item in corpus.dropped if item.split == name][:3]
            raise ValueError(f"split {name!r} of the corpus is empty; the first reasons: {reasons or 'none is given'}")
        if problem := contradiction(manifests):
            raise ValueError(f"split {name!r} of the corpus: its manifests contradict: {problem}")


def _build_view(folder: Path, corpus: Corpus, view: View) -> None:
    """Build in a folder beside the final one, which appears complete or not at all."""
    for manifests in corpus.splits.values():
        refuse_unfit(manifests, view.features)
    work = folder.with_name(f"{folder.name}.partial")
    _remove(work)
    work.mkdir()
    try:
        _fill(work, folder, corpus, view)
        _remove(folder)
        os.rename(work, folder)
    except BaseException:
        # a full disk has no room for what is of no use
        shutil.rmtree(work, ignore_errors=True)
        raise


def _remove(folder: Path) -> None:
    """Remove a folder, or whatever else has its name, without following a link."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _fill(work: Path, folder: Path, corpus: Corpus, view: View) -> None:
    checked = {
        name: _check(name, manifests, view)
        for name, manifests in track(corpus.splits.items(), "checking data and text", console=console)
    }
    _refuse_emptied(corpus, checked)
    tokenizer = view.tokenizer_trainer.train(cut.supervisions[0].text for cut in checked["train"].cuts)
    for name, part in checked.items():
        _drop_too_short(name, part, tokenizer, view)
    _refuse_emptied(corpus, checked)
    mean, std = _statistics(checked["train"], view.features)
    for name, part in checked.items():
        _store_features(name, part, view.features, work / "features", folder / "features")
    _refuse_emptied(corpus, checked)
    for name, part in checked.items():
        CutTable.write(work / f"cuts_{name}", part.cuts)
    dropped = _reasons(corpus, checked)
    _write_dropped(work / DROPPED, dropped)
    splits = {name: _summary(name, part.cuts, dropped) for name, part in checked.items()}
    PreparedData(work, tokenizer, mean, std, splits, corpus.notes).save()


def _check(name: str, manifests: Manifests, view: View) -> CheckedCuts:
    return check_cuts(name, supervised_cuts(manifests), view.text, view.limits, view.features)


def _refuse_emptied(corpus: Corpus, checked: dict[str, CheckedCuts]) -> None:
    for name, part in checked.items():
        if not part.cuts:
            reasons = [f"{item.item}: {item.reason}" for item in _reasons(corpus, checked) if item.split == name][:5]
            raise ValueError(
                f"nothing is left of split {name!r}; the first reasons: {reasons}. Mend these items, leave the split "
                "out, or change data.limits or data.text."
            )


def _drop_too_short(split: str, part: CheckedCuts, tokenizer: Tokenizer, view: View) -> None:
    usable = []
    for cut in part.cuts:
        reason = too_short(cut, tokenizer, view.features.frame_shift_s, view.output_frames)
        if reason and not split.startswith("test"):
            part.dropped.append(Dropped(split, cut.id, reason))
        else:
            usable.append(cut)
    part.cuts = usable


def _store_features(split: str, part: CheckedCuts, features: Features, work: Path, final: Path) -> None:
    if not features.stored or not isinstance(features, LogMel):
        return
    done, unreadable = [], {}
    with FeatureFiles(work) as storage:
        for cut in track(part.cuts, f"storing features of {split}", console=console):
            if cut.sampling_rate != features.sampling_rate_hz:
                cut = cut.resample(features.sampling_rate_hz)
            try:
                cut = cut.compute_and_store_features(features.extractor, storage)
                read_features(features, cut)
            except Exception as error:  # a decoder may raise anything on a broken file
                if storage.failure is not None:
                    raise storage.failure from error
                unreadable[cut.id] = cause(error)
            else:
                cut.features.storage_path = str(final)
                done.append(cut)
    _drop_unreadable(split, part, unreadable)
    part.cuts = done


def _drop_unreadable(split: str, part: CheckedCuts, unreadable: dict[str, str]) -> None:
    """Drop what has a good header and end, but cannot be decoded in between, or decodes to nonsense."""
    part.dropped += [Dropped(split, cut_id, f"unreadable audio: {why}") for cut_id, why in unreadable.items()]
    part.cuts = [cut for cut in part.cuts if cut.id not in unreadable]


def _statistics(part: CheckedCuts, features: Features) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each feature over evenly spread training cuts; those that cannot be read are dropped."""
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
    std = np.maximum(frames.std(axis=0), 1e-3)
    return tuple(np.round(frames.mean(axis=0), 6).tolist()), tuple(np.round(std, 6).tolist())


def _reasons(corpus: Corpus, checked: dict[str, CheckedCuts]) -> list[Dropped]:
    return [*corpus.dropped, *(item for part in checked.values() for item in part.dropped)]


def _summary(name: str, cuts: list[Cut], dropped: list[Dropped]) -> dict[str, float]:
    speakers = {cut.supervisions[0].speaker for cut in cuts} - {None}
    return {
        "num_utterances": len(cuts),
        "hours": round(sum(cut.duration for cut in cuts) / 3600, 4),
        "num_speakers": len(speakers),
        "num_dropped": sum(item.split == name for item in dropped),
    }


def _write_dropped(path: Path, dropped: list[Dropped]) -> None:
    # names of files that are no UTF-8 are shown with escapes
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(("split", "item", "reason"))
        writer.writerows((item.split, item.item, item.reason) for item in dropped)
