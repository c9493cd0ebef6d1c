"""What a sweep that tunes comes to only after hours, looked at before its first job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from omegaconf import DictConfig

from asr.cli.errors import ConfigError
from asr.cli.sweeps.search_space import Choice
from asr.cli.sweeps.tuning import Settings, TunedSystem

UNTUNED = "untuned "  # before the name of an optimizer, the system with its own default options


def system_names(found: Sequence[TunedSystem], with_defaults: bool) -> list[str]:
    """Return the names of the systems that can be compared: the tuned ones, then each optimizer untuned."""
    return [
        *(one.name for one in found),
        *(f"{UNTUNED}{one.optimizer}" for one in found if with_defaults and one.is_usual),
    ]


def check_compared(compared: Collection[str] | None, known: Sequence[str]) -> None:
    """Refuse to compare a system that is not tuned.

    Args:
        compared: the systems to compare; None: all.
        known: names of systems.

    Raises:
        ConfigError: names the first that is unknown.
    """
    unknown = [name for name in compared or () if name not in known]
    if unknown:
        raise ConfigError(f"sweep.compared: no system is called {unknown[0]!r}; there are {', '.join(known)}")


def extreme_settings(system: TunedSystem) -> Iterator[Settings]:
    """Yield settings among which are every choice of a key, and both ends of every range."""
    num = max([2, *(len(one.values) for one in system.space.values() if isinstance(one, Choice))])
    for place in range(num):
        yield {key: one.at(place / (num - 1)) for key, one in system.space.items()}


def try_parts(composed: DictConfig, words: Sequence[str]) -> None:
    """Build the parts of a run that a sweep may vary, without memory for weights.

    Args:
        composed: config of a job, whose accelerator may be that of another machine.
        words: overrides of the job.

    Raises:
        ConfigError: a part is refused.
    """
    # here, because the libraries take seconds, and what is wrong with the sweep itself is told before
    from asr.cli.builders.build import build_data_parts, outline_recognizer, plain
    from asr.cli.builders.dry_run import VOCAB_SIZE, try_updates
    from asr.cli.builders.replaced_defaults import drop_replaced_defaults

    drop_replaced_defaults(composed, words)
    config = plain(composed)
    on_cpu = config["trainer"].get("accelerator") == "cpu"
    num_features = build_data_parts(config).features.num_features
    try_updates(config, outline_recognizer(config, VOCAB_SIZE, num_features), on_cpu)
