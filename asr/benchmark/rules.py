"""The rules of the benchmark that a program can check; docs/benchmark/rules.md has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asr.errors import ConfigError
from asr.plain_data import is_within

VERSION = "v1"
TASKS = ("fsdd", "an4", "phrases")  # each is the recipe TASK/benchmark_v1
SEEDS = (1, 2, 3, 4, 5)
NEW_SEEDS = (11, 12, 13, 14, 15)  # of a reproduction
SEEN_SPEAKERS = ("fsdd",)  # tasks whose test speakers are in training, as the notes of their corpora say
BASELINE = "torch_adamw"
LEVEL = 0.975  # of each question on each of two outcomes: of both together, at most 5 of 100 answers are wrong
MAX_BYTES = 300_000  # of an entry
# overrides of asr-train -m, which runs the entry
RULESETS: Mapping[str, tuple[str, ...]] = {
    "as_shipped": (f"seed={','.join(map(str, SEEDS))}",),
    "tuned": (
        "sweep=optimizers",
        f"sweep.seeds=[{','.join(map(str, SEEDS))}]",
        f"sweep.studies={len(SEEDS)}",
        "sweep.trials=5",
        "sweep.max_extra_trials=0",
        "sweep.schedule_modes=[usual]",
        "sweep.with_defaults=false",
    ),
}
FREE = ("optimizer", "schedule", "parameter_rules", "trainer.gradient_clip_val", "callbacks.averaging", "weights")
MACHINE = ("hydra", "recipes_dir", "trust", "data.source", "trainer.accelerator", "trainer.capture")
RANGES = ("sweep.optimizers", "sweep.schedules")


def check_override(word: str) -> None:
    """Refuse an override that changes what the rules fix.

    Raises:
        ConfigError: it does.
    """
    key = word.lstrip("+~").partition("=")[0].replace("/", ".")
    if not is_within(key, (*FREE, *RANGES)):
        raise ConfigError(
            f"{word}: {key} is the same for all entries; free are {', '.join(FREE)}, the ranges "
            f"{' and '.join(RANGES)} of the ruleset tuned, and what names places and machines"
        )


def free_part(system: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry chose itself, of the flat config of a run."""
    return {key: value for key, value in system.items() if is_within(key, FREE)}


def fixed_part(system: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rules fix, of the flat config of a run."""
    return {key: value for key, value in system.items() if not is_within(key, (*FREE, *MACHINE))}
