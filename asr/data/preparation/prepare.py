"""Corpus → prepared data: made once, reused while nothing has changed, resumed after an interruption.

<data.dir>/<fingerprint of corpus options and source>/               audio and manifests of the recipe
<data.dir>/<…>/<fingerprint of text, limits, features, tokenizer>/   cuts, tokenizer, statistics
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from lhotse.qa import validate

from asr.console import PlainConsole
from asr.data.manifests.corpus import Corpus
from asr.data.manifests.import_manifests import ImportedManifests
from asr.data.preparation.build_prepared import PrepareSpec, build_prepared
from asr.data.preparation.prepared import INDEX, PreparedData
from asr.data.preparation.saved_corpus import CORPUS_INDEX, SavedCorpus
from asr.safe_io import lock, naming

console = PlainConsole()


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
                build_prepared(folder, _corpus(corpus_folder, make_corpus), spec, num_jobs)
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
    return SavedCorpus.save(folder, _checked(make_corpus(folder)))


def _checked(corpus: Corpus) -> Corpus:
    """Return a corpus with all segments within their recordings, before it is saved.

    Raises:
        ValueError: it cannot be trained on, or its manifests contradict each other.
    """
    imported = ImportedManifests()
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
        imported.add(name, manifests)
        for item in imported.dropped:
            raise ValueError(f"split {name!r} of the corpus: {item.item}: {item.reason}")
    several = ", ".join(f"{rate_hz} Hz ({number})" for rate_hz, number in sorted(rates.items()))
    notes = [f"recordings have several sampling rates, and are resampled: {several}"] if len(rates) > 1 else []
    return replace(corpus, splits=imported.splits, notes=(*corpus.notes, *imported.trimmed_note(), *notes))
    rates: Counter[int] = Counter()
        if (twice := Counter(segment.id for segment in manifests.supervisions).most_common(1)[0])[1] > 1:
            raise ValueError(f"split {name!r} of the corpus: the id {twice[0]!r} of an utterance is duplicated")
        rates.update(source.sampling_rate for source in sources.values())
