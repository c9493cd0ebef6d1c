"""Groups runs into systems (runs whose configs differ only in the seed) and gives each system a readable name."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from asr.evaluation.formatting import shortened
from asr.nested import at, flatten, is_within

SEED = "seed"
BUDGET = "trainer.max_steps"
WHOLE_RUN = ("schedule.max_steps", BUDGET)
NUM_KEYS = 5  # differing keys that a message names
MAX_KEY = 100  # characters
MAX_NAME = 200

# returns the keys of a config that do not change the result of its run; all keys below them are free too
FreeKeys = Callable[[Mapping[str, Any]], Collection[str]]


class Systems:
    """Groups runs by what was trained.

    Args:
        typed: the overrides of each run.
        configs: the composed config of each run.
        free: tells of each config which keys do not matter.
    """

    def __init__(self, typed: Sequence[Sequence[str]], configs: Sequence[Mapping[str, Any]], free: FreeKeys) -> None:
        free_keys = [(*free(config), SEED) for config in configs]
        self.configs: list[dict[str, Any]] = []  # of what is trained
        for config, own in zip(configs, free_keys, strict=True):
            # converted from epochs, the budget depends on the seed, and so do schedules that end with it
            budget = at(config, *BUDGET.split("."))
            flat = {key: value for key, value in flatten(config).items() if not is_within(key, own) and key != BUDGET}
            horizons = {key for key, value in flat.items() if key.startswith("schedule.") and value == budget}
            trained = {key: BUDGET if key in horizons else value for key, value in flat.items()}
            # runs from before every schedule knew its end were scheduled alike
            self.configs.append({key: value for key, value in trained.items() if (key, value) != WHOLE_RUN})
        self.typed = [_overrides(words, own) for words, own in zip(typed, free_keys, strict=True)]
        shared = set.intersection(*(set(words.items()) for words in self.typed)) if typed else set()
        plain = [_name(words, shared, config) for words, config in zip(self.typed, configs, strict=True)]
        self.groups: dict[str, list[int]] = defaultdict(list)  # by what is trained
        for run, trained in enumerate(self.configs):
            self.groups[json.dumps([trained, self.typed[run].get(BUDGET)], sort_keys=True, default=str)].append(run)
        self.names, self.problems = [""] * len(typed), list[str]()
        self._give_names(plain)

    def _give_names(self, plain: Sequence[str]) -> None:
        """Name each group after its first run; number groups that would have the same name."""
        same: dict[str, list[list[int]]] = defaultdict(list)
        for group in self.groups.values():
            same[plain[group[0]]].append(group)
        for name, groups in same.items():
            for number, group in enumerate(groups, start=1):
                for run in group:
                    self.names[run] = name if len(groups) == 1 else f"{name} #{number}"
            if len(groups) > 1:
                self.problems.append(
                    f"runs called {name} have different configs and are numbered #1 to #{len(groups)}: "
                    f"{self._differing([group[0] for group in groups])}"
                )

    def _differing(self, runs: Sequence[int]) -> str:
        configs = [self.configs[run] for run in runs]
        rows = {key: [config.get(key, "absent") for config in configs] for key in sorted(set().union(*configs))}
        texts = [
            f"{shortened(key, MAX_KEY)}: {' / '.join(shortened(str(value), 40) for value in values)}"
            for key, values in rows.items()
            if len(set(map(repr, values))) > 1
        ]
        return "; ".join(texts[:NUM_KEYS]) + (f"; and {len(texts) - NUM_KEYS} more" if len(texts) > NUM_KEYS else "")


def _overrides(words: Sequence[str], free: Collection[str]) -> dict[str, str]:
    """Return the last override of each key that matters, the optimizer first."""
    found = {}
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if not is_within(key, free) and key.partition(".")[0] != "hydra":
            found[key] = value
    return dict(sorted(found.items(), key=lambda item: (item[0] != "optimizer", item[0])))


def _name(overrides: Mapping[str, str], shared: set[tuple[str, str]], config: Mapping[str, Any]) -> str:
    """Return the name that a tuning sweep has given, or the optimizer and the overrides that others do not share."""
    label = at(config, "sweep", "tuned", "system")
    if isinstance(label, str) and label:
        return shortened(label, MAX_NAME)
    own = {key: value for key, value in overrides.items() if (key, value) not in shared}
    optimizer = own.pop("optimizer", None)
    # a learning rate says nothing without its optimizer
    if optimizer is None and (not own or any(key.startswith("optimizer.") for key in own)):
        optimizer = overrides.get("optimizer") or str(at(config, "optimizer", "_target_")).rpartition(".")[2]
    options = [f"{key.removeprefix('optimizer.')}={value}" for key, value in own.items()]
    return shortened(" ".join([optimizer, *options] if optimizer else options), MAX_NAME)
