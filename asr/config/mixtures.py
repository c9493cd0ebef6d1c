"""``data.sources``: the corpora of several recipes as the data of one run."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from asr.data.loading.mixing import Mixing
from asr.data.preparation.mixture import NAME
from asr.data.preparation.prepared import PreparedData
from asr.errors import ConfigError

KEYS = ("recipe", "name", "source", "weight", "prepare")
MIN_WEIGHT = 0.001
RECIPE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")


def complete_sources(config: DictConfig) -> None:
    """Add to each of ``data.sources`` what its recipe says, so that the run's own config holds all of it.

    Raises:
        ConfigError: an entry has other keys or values than those that are allowed.
    """
    given = config.data.get("sources")
    if given is None:
        return
    entries = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_list(given) else given
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(
            f"data.sources must be a list of corpora, as in [{{recipe: fsdd/transformer_ctc, source: PATH}}], given "
            f"{entries!r}"
        )
    if config.data.source is not None:
        raise ConfigError("data.source: data.sources says of each corpus where it lies; leave data.source out")
    complete = [_complete(entry, f"data.sources.{i}", config.data.num_jobs) for i, entry in enumerate(entries)]
    for name, count in Counter(entry["name"] for entry in complete).items():
        if count > 1:
            raise ConfigError(f"data.sources: {count} corpora are named {name}; give each a name: of its own")
    if len({entry["weight"] is None for entry in complete}) > 1:
        raise ConfigError("data.sources: give each corpus a weight, or none of them, for shares by size")
    config.data.sources = complete


def _complete(entry: Mapping[str, Any], key: str, num_jobs: object) -> dict[str, Any]:
    _check(entry, key)
    options, name = dict(entry.get("prepare") or {}), entry.get("name")
    if "_target_" not in options:  # of a run that is resumed it is complete
        own = _data_of(entry["recipe"])
        options = {**own["prepare"], **options}
        name = own["corpus"] if name is None else name
        if "num_jobs" in options:
            options["num_jobs"] = num_jobs
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{key}.name must be a name of letters, digits and . _ + -, given {name!r}")
    return {"recipe": entry["recipe"], "name": name, **{k: entry.get(k) for k in ("source", "weight")}} | {
        "prepare": options
    }


@functools.cache  # most corpora of a mixture are of one recipe
def _data_of(recipe: str) -> dict[str, Any]:
    """Return the data options of a recipe, which must not be changed."""
    own: Any = OmegaConf.to_container(compose("train", overrides=[f"recipe={recipe}"]).data, resolve=True)
    return dict(own)


def _check(entry: Mapping[str, Any], key: str) -> None:
    if unknown := [name for name in entry if name not in KEYS]:
        raise ConfigError(f"{key} has no option {unknown[0]}; allowed are {', '.join(KEYS)}")
    recipe, weight, source = entry.get("recipe"), entry.get("weight"), entry.get("source")
    if not isinstance(recipe, str) or not RECIPE.fullmatch(recipe):
        raise ConfigError(f"{key}.recipe must be the name of a recipe, as of recipe=, given {recipe!r}")
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if weight is not None and not (is_number and MIN_WEIGHT <= weight <= 1 / MIN_WEIGHT):
        raise ConfigError(
            f"{key}.weight must be a number from {MIN_WEIGHT} to {1 / MIN_WEIGHT:g}, or null for a share by size, "
            f"given {weight!r}"
        )
    if not isinstance(source, str | None):
        raise ConfigError(f"{key}.source must be a path, or null, given {source!r}")
    options = entry.get("prepare")
    if not isinstance(options, Mapping | None) or {"output_dir", "source"} & set(options or ()):
        raise ConfigError(
            f"{key}.prepare must be options of the recipe's prepare function, without output_dir and source, given "
            f"{options!r}"
        )


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
