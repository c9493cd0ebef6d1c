"""``data.sources``: the corpora of several recipes as the data of one run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from asr.data.loading.sampling import Mixing
from asr.data.preparation.prepared import PreparedData
from asr.errors import ConfigError


def complete_sources(config: DictConfig) -> None:
    """Add to each of ``data.sources`` what its recipe says, so that the run's own config holds all of it.

    Raises:
        ConfigError: the corpora do not fit together.
    """
    if config.data.sources is None:
        return
    if config.data.source is not None:
        raise ConfigError("data.source: in data.sources, each corpus has its own source; leave data.source out")
    entries: Any = OmegaConf.to_container(config.data.sources, resolve=True)
    complete = [_complete(entry, config.data.num_jobs) for entry in entries]
    for name, count in Counter(entry["name"] for entry in complete).items():
        if count > 1:
            raise ConfigError(f"data.sources: {count} corpora are named {name}; give each its own name:")
    if len({entry["weight"] is None for entry in complete}) > 1:
        raise ConfigError("data.sources: give a weight for each corpus, or for none (shares by size)")
    config.data.sources = complete


def _complete(entry: Mapping[str, Any], num_jobs: int | None) -> dict[str, Any]:
    options, name = entry.get("prepare") or {}, entry.get("name")
    if "_target_" not in options:  # already complete if a run is resumed
        recipe_data = _data_of(entry["recipe"])
        options = {**recipe_data["prepare"], **options}
        name = name or recipe_data["corpus"]
        if "num_jobs" in options:
            options["num_jobs"] = num_jobs
    values = {key: entry.get(key) for key in ("source", "columns", "weight")}
    return {"recipe": entry["recipe"], "name": name, **values, "prepare": options}


@functools.cache  # most corpora of a mixture are of one recipe
def _data_of(recipe: str) -> dict[str, Any]:
    """Return the data options of a recipe, which must not be changed."""
    data: Any = OmegaConf.to_container(compose("train", overrides=[f"recipe={recipe}"]).data, resolve=True)
    return dict(data)


def mixing_of(sources: Sequence[Mapping[str, Any]] | None, prepared: PreparedData) -> Mixing | None:
    """Return how a run mixes its corpora; None if it has one.

    Args:
        sources: ``data.sources``, complete.
        prepared: the data.
    """
    if not sources:
        return None
    weights = {entry["name"]: entry["weight"] for entry in sources}
    if None in weights.values():
        return Mixing(prepared.corpora, dict.fromkeys(prepared.corpora, 1.0))
    return Mixing.by_weight(prepared.corpora, prepared.cuts("train").durations, weights)


def describe_mixing(mixing: Mixing, durations: np.ndarray) -> str:
    """Return a line about the share of each corpus in the audio of an epoch.

    Args:
        mixing: of a run.
        durations: (N,) seconds of all training cuts.
    """
    shares = mixing.shares(mixing.numbers(seed=0, epoch=0), durations)
    listed = (f"{name} {share:.1%} of the audio ({mixing.passes[name]:.3g} passes)" for name, share in shares.items())
    return f"mixture, per epoch: {', '.join(listed)}"
