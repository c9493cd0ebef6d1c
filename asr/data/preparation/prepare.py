"""Prepares data, or finds them: a corpus is saved, its cuts are checked, and tokenizer, statistics and shards made."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import Recording
from lhotse.qa import validate

from asr.data.features import Features, LogMel
from asr.data.manifests.audio import OPENED, ShardMember
from asr.data.manifests.corpus import Corpus, Dropped, nothing_left, place_of, write_dropped
from asr.data.manifests.import_manifests import ImportedManifests
from asr.data.preparation.cuts import FEATURES, CheckedSplit, Limits, check_corpus, refuse_unfit
from asr.data.preparation.prepared import (
    DROPPED,
    INDEX,
    FormerCuts,
    PreparedData,
    absolute_path,
    fingerprint,
    portable_path,
)
from asr.data.preparation.saved_corpus import CORPUS_INDEX, GZIP_LEVEL, SavedCorpus, corpus_of
from asr.data.preparation.shards import ShardStorage
from asr.processes import is_first_process
from asr.text.tokenizer import KeptTokenizer, unchanged
from werdict.console import PlainConsole, PlainProgress
from werdict.errors import RunFailed
from werdict.files import lock, naming, write_whole

SEVERAL_RATES = "recordings have several sampling rates"
FILE_LIST = "files.json.gz"  # path, size and time of each audio file that a corpus is made of
State = list[int | None]  # size of a file in bytes, and when it was modified, in ns; None if it is missing
console = PlainConsole()


@dataclass(frozen=True)
class PrepareSpec:
    """Specifies how a corpus is prepared: all that depends on options of text and features, and nothing of the model.

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


def prepare(
    root: Path,
    corpus_name: str,
    make_corpus: Callable[[Path], Corpus],
    spec: PrepareSpec,
    spec_name: str,
    may_prepare: bool = True,
    num_jobs: int = 1,
) -> PreparedData:
    """Return prepared data, made now or before.

    Args:
        root: ``data.dir``.
        corpus_name: fingerprint of the recipe's options and source.
        make_corpus: the recipe's prepare function; called with the folder that it may write to.
        spec: how the corpus is prepared.
        spec_name: fingerprint of everything in ``spec``.
        may_prepare: False: return existing data only.
        num_jobs: processes that check audio and compute features; changes nothing in the data.

    Raises:
        ValueError: the corpus cannot be used; data are missing and may not be prepared; a shard of audio is missing, or
            has another size.
    """
    corpus_folder = root.resolve() / corpus_name
    folder = corpus_folder / spec_name
    prepared = _existing(folder, quiet=True)
    if prepared is None and not may_prepare:
        of_shards = "" if spec.shards is None else ", and data.storage.dir=PATH of their shards"
        raise ValueError(
            f"resume: the data of the run are not in {root}, are damaged, or were prepared from another state of their "
            f"source; give data.dir=PATH too, to prepare them there{of_shards}"
        )
    if prepared is None:
        with _lock(corpus_folder), naming(corpus_folder):
            # another process may have prepared them in the meantime
            if (prepared := _existing(folder)) is None:
                console.print_line(f"preparing data in {root} (data.dir)")
                corpus = _corpus(corpus_folder, make_corpus)
                former, unchanged = _former_state(corpus_folder, f"{spec_name}/{INDEX}")
                cuts = FormerCuts(former / spec_name, corpus.splits, unchanged) if former else FormerCuts()
                build_prepared(folder, replace(corpus, former=cuts), spec, num_jobs)
                prepared = PreparedData.load(folder)
    prepared.check_shards()
    return prepared


def load_or_make_corpus(root: Path, corpus_name: str, make_corpus: Callable[[Path], Corpus]) -> SavedCorpus:
    """Return the manifests of a corpus, made now or before, where `prepare` has them too; for mixtures.

    Raises:
        ValueError: the corpus cannot be used.
    """
    corpus_folder = root.resolve() / corpus_name
    with _lock(corpus_folder), naming(corpus_folder):
        return _corpus(corpus_folder, make_corpus)


def _existing(folder: Path, quiet: bool = False) -> PreparedData | None:
    """Return the data of an earlier call; None if they do not exist, or are damaged, which is printed."""
    if not (folder / INDEX).exists():
        return None
    try:
        return PreparedData.load(folder)
    except ValueError as error:
        if not quiet:
            console.print_line(f"the prepared data in {folder} are damaged: {error}; preparing again")
        return None


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time prepare; others wait and say so. The lock ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("a") as file:
        try:
            lock(file)
        except BlockingIOError:
            console.print(f"another process is preparing {folder.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _corpus(folder: Path, make_corpus: Callable[[Path], Corpus]) -> SavedCorpus:
    """Return the corpus of an earlier call, or make and save it."""
    if (folder / CORPUS_INDEX).exists():
        return SavedCorpus.load(folder)
    began_ns = time.time_ns()
    former, unchanged = _former_state(folder, CORPUS_INDEX)
    chunks = SavedCorpus.load(former).chunks() if former else ()
    for recording in (recording for chunk in chunks for recording in chunk.manifests().recordings):
        if not recording.transforms and len(recording.sources) == 1 and recording.sources[0].source in unchanged:
            OPENED[recording.sources[0].source] = recording
    try:
        corpus = _checked(make_corpus(folder))
    finally:
        OPENED.clear()
    _list_files(folder, corpus, began_ns)
    return SavedCorpus.save(folder, corpus)


def _checked(corpus: Corpus) -> Corpus:
    """Return a corpus with all segments within their recordings, before it is saved.

    Raises:
        ValueError: it cannot be trained on, or its manifests contradict each other.
    """
    imported = ImportedManifests()
    rates: Counter[int] = Counter()
    if "train" not in corpus.splits or not any(name.startswith("dev") for name in corpus.splits):
        raise ValueError(
            f"the corpus has the splits {', '.join(corpus.splits) or '(none)'}; it needs 'train', and one whose name "
            "starts with 'dev' to choose checkpoints by. The recipe's prepare function must return them."
        )
    for name, manifests in corpus.splits.items():
        sources = manifests.sources()
        if not sources or next(iter(manifests.supervisions), None) is None:
            reasons = [item.reason for item in corpus.dropped if item.split == name][:3]
            raise ValueError(f"split {name!r} of the corpus is empty; the first reasons: {reasons or 'none is given'}")
        try:
            # one by one: of a whole set lhotse warns of what is allowed here, several rates and overlapping speakers
            for each in (*sources.values(), *manifests.supervisions):
                validate(each)
        except AssertionError as error:
            raise ValueError(f"split {name!r} of the corpus: {error}") from error
        if (twice := Counter(segment.id for segment in manifests.supervisions).most_common(1)[0])[1] > 1:
            raise ValueError(f"split {name!r} of the corpus: the id {twice[0]!r} of an utterance is duplicated")
        rates.update(source.sampling_rate for source in sources.values())
        imported.add(name, manifests)
        for item in imported.dropped:
            raise ValueError(f"split {name!r} of the corpus: {item.item}: {item.reason}")
    notes = [*corpus.notes, *imported.trimmed_note()]
    if len(rates) > 1 and not any(SEVERAL_RATES in note for note in notes):  # of a corpus of a mixture
        numbers = ", ".join(f"{rate_hz} Hz ({number})" for rate_hz, number in sorted(rates.items()))
        notes.append(f"{SEVERAL_RATES}, and are resampled: {numbers}")
    return replace(corpus, splits=imported.splits, notes=tuple(notes))


def current_folder(folder: Path) -> Path:
    """Return the folder of a corpus for its audio files as they are now: each state of them has a folder of its own.

    Runs that are at work, or are resumed, read the data of the state that they began with. Removed files are no other
    state: shards or features may hold them, their disk may be missing for a while, and training names those it lacks.

    Args:
        folder: of the first state.
    """
    newest, listed = _newest([folder, *folder.parent.glob(f"{folder.name}-*")])
    changed = [(path, [name, *now]) for name, path, before, now in listed if now != before and now[0] is not None]
    if newest is None or not changed:
        return newest or folder
    current = folder.with_name(f"{folder.name}-{fingerprint([newest.name, [named for _, named in changed]])}")
    if not (current / CORPUS_INDEX).exists() and is_first_process():
        console.print_line(
            f"{len(changed)} of {len(listed)} audio files have changed since they were prepared, such as "
            f"{changed[0][0]}; they are prepared again"
        )
    return current


def _former_state(folder: Path, needed: str) -> tuple[Path | None, set[str]]:
    """Return the folder of the newest other state of a corpus that holds a file, and its files that are unchanged."""
    name = folder.name.partition("-")[0]
    others = {folder.with_name(name), *folder.parent.glob(f"{name}-*")} - {folder}
    former, listed = _newest(other for other in others if (other / needed).exists())
    return former, {path for _, path, before, now in listed if before == now}


def _newest(folders: Iterable[Path]) -> tuple[Path | None, list[tuple[str, str, State, State]]]:
    """Return the newest of some states of a corpus, and of each file its name, its path, and its state then and now."""
    lists = [path for folder in folders if (path := folder / FILE_LIST).exists()]
    if not lists:
        return None, []
    newest = max(lists, key=lambda path: path.stat().st_mtime_ns)
    paths = ((absolute_path(line[0], newest.parent), line) for line in json.loads(gzip.decompress(newest.read_bytes())))
    return newest.parent, [(name, path, before, _state(path)) for path, (name, *before) in paths]


def _list_files(folder: Path, corpus: Corpus, began_ns: int) -> None:
    """Write the state of each audio file of a corpus; one that was written later than it began may have been read half.

    Shards have checksums, files below the folder are the recipe's own, and a mixture has those of its corpora.
    """
    sources = [source for manifests in corpus.splits.values() for source in manifests.sources().values()]
    paths = [place_of(source) for source in sources if not isinstance(source, Recording)]
    paths += [str(part.source) for source in sources if isinstance(source, Recording) for part in source.sources]
    listed: list[tuple[str, int | None, int | None]] = []
    for path in dict.fromkeys([*paths, *(item.audio for item in corpus.dropped if item.audio)]):
        if not corpus.sources and ShardMember.find(path) is None and not path.startswith(f"{folder}{os.sep}"):
            size, time_ns = _state(path)
            is_known = time_ns is not None and time_ns < began_ns
            listed.append((portable_path(path, folder, folder.parent), size, time_ns if is_known else None))
    write_whole(folder / FILE_LIST, gzip.compress(json.dumps(listed).encode(), GZIP_LEVEL, mtime=0))


def _state(path: str) -> State:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return [None, None]
    return [status.st_size, status.st_mtime_ns]


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
        splits = {name: split.store_features(features, num_jobs, corpus.former) for name, split in splits.items()}
    mean, std = splits["train"].statistics(features, num_jobs)
    if spec.shards is not None:
        splits = spec.shards.write(splits, num_jobs)
    dropped = _all_dropped(corpus, splits)
    write_dropped(work / DROPPED, dropped)
    counts: dict[str, dict[str, float]] = {}
    tars: set[str] = set()
    speakers: dict[str, set[str]] = {name: set() for name in splits}
    for name, split in splits.items():
        counts[name] = split.write(work / f"cuts_{name}", tars, speakers[name])
        counts[name]["num_dropped"] = sum(item.split == name for item in dropped)
        lengths = split.ctc_lengths(tokenizer, spec.features.frame_shift_s, num_jobs)
        np.savez(work / f"ctc_lengths_{name}.npz", **lengths._asdict())
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
        advice = "Correct these items, leave the split out, or change data.limits or data.text."
        raise nothing_left(name, dropped, advice)
    return dropped
