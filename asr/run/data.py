"""The data of a run: of one corpus or a mixture, prepared by its data options, masked by its encoder."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose
from omegaconf import OmegaConf

from asr.data.features import Features
from asr.data.loading.sampling import Mixing
from asr.data.manifests.corpus import Corpus
from asr.data.manifests.layouts import JSON, TABLES, ending, parts_of
from asr.data.parallel import num_processes
from asr.data.preparation.prepare import PrepareSpec, current_folder, load_or_make_corpus, prepare
from asr.data.preparation.prepared import Lengths, PreparedData, describe_source, fingerprint, portable_folder
from asr.data.preparation.saved_corpus import Mixture, SavedCorpus
from asr.data.preparation.shards import AudioField, FeatureField, ShardStorage
from asr.former_names import with_former_names
from asr.processes import is_first_process
from asr.run.folder import usable_folder
from asr.run.instantiate import build_component, locate
from asr.run.options import Data, MixedCorpus, RunOptions, Storage, Target
from asr.run.parts import DataParts, build_data_parts, build_encoder, outline_device
from asr.run.start import kept_tokenizer
from asr.text.tokenizer import KeptTokenizer
from werdict.console import PlainConsole
from werdict.errors import ConfigError
from werdict.text_files import visible_files


def complete_sources(data: Data) -> list[dict[str, Any]]:
    """Return ``data.sources`` with what the recipe of each says, so that the run's own config holds all of it.

    Raises:
        ConfigError: the corpora do not fit together.
    """
    if data.source is not None:
        raise ConfigError("data.source: in data.sources, each corpus has its own source; leave data.source out")
    complete = [_complete(entry, data.num_jobs) for entry in data.sources or ()]
    for name, count in Counter(entry["name"] for entry in complete).items():
        if count > 1:
            raise ConfigError(f"data.sources: {count} corpora are named {name}; give each its own name:")
    if len({entry["weight"] is None for entry in complete}) > 1:
        raise ConfigError("data.sources: give a weight for each corpus, or for none (shares by size)")
    return complete


def _complete(entry: MixedCorpus, num_jobs: int | None) -> dict[str, Any]:
    options, name = entry.prepare or {}, entry.name
    if "_target_" not in options:  # already complete if a run is resumed
        recipe_data = _data_of(entry.recipe)
        options = {**recipe_data["prepare"], **options}
        name = name or recipe_data["corpus"]
        if "num_jobs" in options:
            options["num_jobs"] = num_jobs
    values = {"source": entry.source, "columns": entry.columns, "weight": entry.weight}
    return {"recipe": entry.recipe, "name": name, **values, "prepare": options}


@functools.cache  # most corpora of a mixture are of one recipe
def _data_of(recipe: str) -> dict[str, Any]:
    """Return the data options of a recipe, which must not be changed."""
    data: Any = OmegaConf.to_container(compose("train", overrides=[f"recipe={recipe}"]).data, resolve=True)
    return dict(data)


def mixing_of(sources: Sequence[MixedCorpus] | None, prepared: PreparedData) -> Mixing | None:
    """Return how a run mixes its corpora; None if it has one.

    Args:
        sources: ``data.sources``, complete.
        prepared: the data.
    """
    if not sources:
        return None
    weights = {str(entry.name): entry.weight for entry in sources if entry.weight is not None}
    if not weights:
        return Mixing(prepared.corpora, dict.fromkeys(prepared.corpora, 1.0))
    return Mixing.by_weight(prepared.corpora, prepared.cuts("train").durations, weights)


LAYOUT = 6  # of the files of prepared data, and of how their numbers are computed
# options of prepare functions that change how fast, not what
SPEED_ONLY = ("num_jobs",)


def data_for_run(
    options: RunOptions,
    parts: DataParts | None = None,
    encoder: Any = None,
    quiet: bool = False,
    may_prepare: bool = True,
    recorded: str | None = None,
) -> PreparedData:
    """Return the data of a run without the training and dev cuts that are too short for its encoder.

    Args:
        options: of the run; what is prepared depends on none of the model's.
        parts: of its data side, if they are built already.
        encoder: likewise; its weights are not used.
        quiet: print no table.
        may_prepare: False: refuse missing data.
        recorded: fingerprint of the data of a resumed run, which is believed, so that no source is read; None: read it.

    Raises:
        ConfigError: an option is refused.
        ValueError: the data cannot be prepared, are missing and may not be, or all cuts of a split are too short.
    """
    parts = parts or build_data_parts(options, kept_tokenizer(options))
    if encoder is None:
        # subsampled lengths need no weights; before preparing, because a wrong option must not cost hours
        with outline_device(options):
            encoder = build_encoder(options.encoder, parts.features.num_features)

    def output_frames(num_frames: Lengths) -> Lengths:
        lengths: Lengths = encoder.output_frames(torch.from_numpy(num_frames)).numpy()
        return lengths

    data, folder = options.data, usable_folder(options.data.dir, "data.dir")
    shards = shard_storage(data.storage, parts.features)
    spec = PrepareSpec(parts.text, parts.limits, parts.features, parts.tokenizer_trainer, shards)
    corpus_name, make_corpus = corpus_of(data, recorded, folder)
    spec_name = fingerprint(with_former_names(_described(options, spec, folder)))
    prepared = prepare(folder, corpus_name, make_corpus, spec, spec_name, may_prepare, num_processes(data.num_jobs))
    prepared = prepared.for_encoder(output_frames)
    if not quiet and is_first_process():
        prepared.print_table(PlainConsole())
        if mixing := mixing_of(data.sources, prepared):
            shares = mixing.shares(mixing.numbers(seed=0, epoch=0), prepared.cuts("train").durations).items()
            listed = (f"{name} {share:.1%} of the audio ({mixing.passes[name]:.3g} passes)" for name, share in shares)
            PlainConsole().print_line(f"mixture, per epoch: {', '.join(listed)}")
    return prepared


def _described(options: RunOptions, spec: PrepareSpec, folder: Path) -> dict[str, Any]:
    """Return all that decides what is prepared of a corpus, as plain data."""
    trainer, shards = spec.tokenizer_trainer, spec.shards
    features = {name: value for name, value in options.features.plain().items() if name != "on_device"}
    described: dict[str, Any] = {"text": options.data.text.plain(), "limits": options.data.limits.plain()}
    described |= {"features": features, "layout": LAYOUT}
    is_kept = isinstance(trainer, KeptTokenizer)
    described["tokenizer"] = trainer.tokenizer.state() if is_kept else options.tokenizer.plain()
    if shards is not None:
        described["shards"] = [portable_folder(str(shards.folder), folder, folder), shards.field.options]
    return described


def source_corpus(data: Data) -> SavedCorpus:
    """Return the manifests of a run's corpus, made now or before; no option of text, features or tokenizer counts.

    Raises:
        ValueError: the corpus cannot be used.
    """
    folder = usable_folder(data.dir, "data.dir")
    return load_or_make_corpus(folder, *corpus_of(data, None, folder))


def corpus_of(data: Data, recorded: str | None, folder: Path) -> tuple[str, Callable[[Path], Corpus]]:
    """Return the fingerprint of a corpus, or of a mixture, and its prepare function."""
    if data.sources:
        return _mixture(data.sources, recorded, folder)
    return _corpus(data.source, data.columns, data.prepare, recorded, folder)


def _corpus(
    source: Any, columns: Mapping[Any, str] | None, chosen: Target | None, recorded: str | None, folder: Path
) -> tuple[str, Callable[[Path], Corpus]]:
    """Return the fingerprint of a corpus, with the state of its audio, and its prepare function."""
    source_options = {key: value for key, value in (("source", source), ("columns", columns)) if value is not None}
    if chosen is not None and (columns or not isinstance(source, str | None)):
        reads_tables = "columns" in inspect.signature(locate(chosen.target, "data.prepare")).parameters
        if not reads_tables:
            key = "data.columns" if columns else "data.source"
            raise ConfigError(
                f"{key}: this recipe reads its corpus as distributed: give one path, or use recipe=custom"
            )
    make_corpus = build_component(chosen, "data.prepare", partial=True, **source_options)
    if recorded is not None and source is not None:
        return recorded.partition("/")[0], make_corpus
    source_files = getattr(getattr(make_corpus, "func", None), "source_files", visible_files)
    assert chosen is not None
    arguments = {name: value for name, value in chosen.plain().items() if name not in SPEED_ONLY}
    described: dict[str, Any] = {"prepare": arguments, "source": describe_source(source, source_files)}
    described |= {"columns": columns} if columns else {}
    if places := _places(source, source_files is not visible_files):
        # a source that moves together with the data keeps its name
        described["places"] = [portable_folder(place, folder, folder) for place in places]
    return current_folder(folder / fingerprint(described)).name, make_corpus


def _places(source: Any, may_be_manifests: bool) -> list[str]:
    """Return the folders that relative names of audio start from: two tables of one text have audio of their own.

    Args:
        source: as it is given.
        may_be_manifests: whether it may hold lhotse's manifests, whose names start from the current folder.
    """
    if source is None:
        return []
    places = []
    for path in (named.path.resolve() for named in parts_of(source)):
        if path.is_file() and not path.name.endswith((*TABLES, ".gz")):
            continue  # an archive, which is unpacked
        places.append(str(path if path.is_dir() else path.parent))
        if may_be_manifests and (path.is_dir() or ending(path) in JSON):
            places.append(os.getcwd())
    return list(dict.fromkeys(places))


@contextlib.contextmanager
def _naming_entry(number: int) -> Iterator[None]:
    """Let errors of a corpus name its place in ``data.sources``."""
    try:
        yield
    except ValueError as error:
        key = f"data.sources.{number}"
        named, count = re.subn(r"\bdata\.(source|prepare)\b", rf"{key}.\1", str(error))
        raise ConfigError(named if count else f"{key}: {error}") from error


def _mixture(
    entries: Sequence[MixedCorpus], recorded: str | None, folder: Path
) -> tuple[str, Callable[[Path], Corpus]]:
    """Return the fingerprint of a mixture and its prepare function; weights change neither."""
    sources: dict[str, tuple[str, Callable[[Path], Corpus]]] = {}
    for number, entry in enumerate(entries):
        with _naming_entry(number):
            chosen = Target.model_validate(entry.prepare)
            corpus_name, make_corpus = _corpus(entry.source, entry.columns, chosen, recorded, folder)
        if recorded is None and (same := [name for name, (other, _) in sources.items() if other == corpus_name]):
            raise ConfigError(f"data.sources: {same[0]} and {entry.name} are the same corpus; leave one out")
        sources[str(entry.name)] = corpus_name, _naming_entry(number)(make_corpus)
    corpora = {
        name: partial(load_or_make_corpus, corpus_name=corpus_name, make_corpus=make)
        for name, (corpus_name, make) in sources.items()
    }
    whole = fingerprint({"mixture": [(name, corpus_name) for name, (corpus_name, _) in sources.items()]})
    return recorded.partition("/")[0] if recorded is not None else whole, Mixture(corpora)


def shard_storage(storage: Storage, features: Features) -> ShardStorage | None:
    """Return how audio, or features, are stored in shards; None if they are read where the corpus has them.

    Args:
        storage: ``data.storage``.
        features: of the run.

    Raises:
        ConfigError: there is no folder for the shards.
    """
    if storage.kind == "files":
        return None
    if storage.dir is None:
        raise ConfigError("data.storage=shar needs a folder for the shards: data.storage.dir=PATH")
    field = FeatureField(features) if features.precomputed else AudioField(storage.audio)
    return ShardStorage(usable_folder(storage.dir, "data.storage.dir"), field)
