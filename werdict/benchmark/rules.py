"""The rules of the benchmark: tasks, rulesets, what is fixed and what is free, and the seeds that nobody chose."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from werdict.errors import ConfigError
from werdict.files import is_within

VERSION = "v2"
TASKS = ("an4", "phrases")  # each is the recipe TASK/benchmark_v2
BASELINE = "torch_adamw"
LOOKS = (5, 10)  # runs of an entry when it is compared; the second look is taken if the first leaves a question open
LEVEL = 0.975  # of each question by each of two outcomes, both looks together
NUM_TRIALS = 8  # of each tuned entry
MAX_BYTES = 300_000  # of an entry on a task
# overrides of asr-train -m, which runs the entry
RULESETS: Mapping[str, tuple[str, ...]] = {
    "as_shipped": (),
    "tuned": (
        "sweep=optimizers",
        f"sweep.trials={NUM_TRIALS}",
        "sweep.max_extra_trials=0",
        "sweep.schedule_modes=[usual]",
        "sweep.with_defaults=false",
    ),
}
FREE = ("optimizer", "schedule", "parameter_rules", "trainer.gradient_clip_val", "callbacks.averaging", "weights")
MACHINE = ("hydra", "recipes_dir", "trust", "data.source", "trainer.accelerator", "trainer.cuda_graphs")
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


def drawn_seeds(commit: str, task: str) -> tuple[int, ...]:
    """Return the seeds of all runs on a task of the entries that a commit has brought.

    Nobody chooses the hash of a merge commit before the entry is merged. A preview draws from another text.
    """
    digests = (hashlib.sha256(f"{commit} {task} {number}".encode()) for number in range(LOOKS[-1]))
    return tuple(int.from_bytes(digest.digest()[:4]) >> 1 for digest in digests)
