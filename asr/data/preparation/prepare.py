"""Corpus → prepared data: made once, reused while nothing has changed, resumed after an interruption.

<data.dir>/<fingerprint of corpus options and source>/               audio and manifests of the recipe
<data.dir>/<…>/<fingerprint of text, limits, features, tokenizer>/   cuts, tokenizer, statistics
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from asr.console import PlainConsole
from asr.data.manifests.corpus import Corpus
from asr.data.manifests.manifest_checks import contradiction
from asr.data.preparation.audio_sample import refuse_changed_audio
from asr.data.preparation.build import PrepareSpec, build_prepared
from asr.data.preparation.prepared import INDEX, DamagedData, PreparedData
from asr.data.preparation.saved_corpus import CORPUS_INDEX, SavedCorpus
from asr.safe_io import check_inside, lock, naming, open_inside, refuse_links_outside

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
        ValueError: the corpus cannot be used; data are missing and may not be prepared; a link leads out of ``root``;
            a shard of audio is missing, or has another size.
    """
    corpus_folder = root.resolve() / corpus_name
    folder = corpus_folder / spec_name
    for path in (corpus_folder, folder):
        check_inside(path, root)
    if spec.shards is not None or (spec.features.precomputed and spec.features.from_audio):
        refuse_changed_audio(corpus_folder)
    found = _existing(folder, spec, quiet=True)
    if found is None and not may_prepare:
        of_shards = "" if spec.shards is None else ", and data.storage.dir=PATH of their shards"
        raise ValueError(
            f"resume: the data of the run are not in {root}, are damaged, or were prepared from another state of their "
            f"source; type data.dir=PATH too, to have them prepared there{of_shards}"
        )
    if found is None:
        with _lock(root.resolve() / f".{corpus_name}.lock"):
            # another process may have prepared them in the meantime
            found = _existing(folder, spec)
            if found is None:
                with _open_corpus(corpus_folder, make_corpus) as corpus:
                    build_prepared(folder, corpus, spec, num_jobs)
    prepared = found or PreparedData.load(folder)
    prepared.check_shards()
    return prepared


def load_or_make_corpus(root: Path, corpus_name: str, make_corpus: Callable[[Path], Corpus]) -> SavedCorpus:
    """Return the manifests of a corpus, made now or before, where `prepare` has them too; for mixtures.

    Raises:
        ValueError: the corpus cannot be used, or a link leads out of ``root``.
    """
    corpus_folder = root.resolve() / corpus_name
    check_inside(corpus_folder, root)
    with _lock(root.resolve() / f".{corpus_name}.lock"), _open_corpus(corpus_folder, make_corpus) as corpus:
        return corpus


@contextlib.contextmanager
def _open_corpus(folder: Path, make_corpus: Callable[[Path], Corpus]) -> Iterator[SavedCorpus]:
    """Give the corpus in a folder, which is locked, and name the folder in errors about files."""
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links_outside(folder)
    with naming(folder):
        yield _corpus(folder, make_corpus)


def _existing(folder: Path, spec: PrepareSpec, quiet: bool = False) -> PreparedData | None:
    """Return the data of an earlier call; None if they do not exist, or are damaged, which is printed."""
    if not os.path.lexists(folder / INDEX):
        return None
    try:
        prepared = PreparedData.load(folder)
        _refuse_other(prepared, spec)
    except ValueError as error:
        if not quiet:
            console.print_line(f"{error}; preparing again")
        return None
    return prepared


def _refuse_other(prepared: PreparedData, spec: PrepareSpec) -> None:
    """Refuse data that this spec cannot have made, and files of cuts that do not fit the index."""
    if len(prepared.mean) != spec.features.num_features:
        raise DamagedData(
            f"the prepared data in {prepared.folder} cannot be used: a frame has {len(prepared.mean)} features there, "
            f"not {spec.features.num_features}"
        )
    if "train" not in prepared.splits or not prepared.names("dev"):
        raise DamagedData(f"the prepared data in {prepared.folder} cannot be used: they lack train or dev")
    for name in prepared.splits:
        prepared.cuts(name)
        prepared.ctc_lengths(name)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time prepare; others wait and say so. The lock ends with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_inside(path, "a") as file:
        try:
            lock(file)
        except BlockingIOError:
            console.print(f"another process is preparing {path.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _corpus(folder: Path, make_corpus: Callable[[Path], Corpus]) -> SavedCorpus:
    """Return the corpus of an earlier call, or make and save it."""
    if os.path.lexists(folder / CORPUS_INDEX):
        try:
            saved = SavedCorpus.load(folder)
            _refuse_lack_of_splits(saved.splits)
            return saved
        # whatever is wrong with a damaged index
        except Exception as error:
            console.print_line(f"the manifests in {folder} cannot be used: {error}; making them again")
    corpus = make_corpus(folder)
    _refuse_unusable(corpus)
    return SavedCorpus.save(folder, corpus)


def _refuse_lack_of_splits(names: Collection[str]) -> None:
    if "train" not in names or not any(name.startswith("dev") for name in names):
        raise ValueError(
            f"the corpus has the splits {', '.join(names) or '(none)'}; needed are 'train', and one whose name "
            "starts with 'dev' to choose checkpoints by. Let the prepare function of the recipe make them."
        )


def _refuse_unusable(corpus: Corpus) -> None:
    """Refuse a corpus that cannot be trained on, or whose manifests contradict each other, before it is saved."""
    _refuse_lack_of_splits(corpus.splits)
    for name, manifests in corpus.splits.items():
        if not manifests.sources() or next(iter(manifests.supervisions), None) is None:
            reasons = [item.reason for item in corpus.dropped if item.split == name][:3]
            raise ValueError(f"split {name!r} of the corpus is empty; the first reasons: {reasons or 'none is given'}")
        if problem := contradiction(manifests):
            raise ValueError(f"split {name!r} of the corpus: its manifests contradict: {problem}")
