"""What is compared: trainings whose configs are the same but for the seed, under a name that people read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from asr.safe_io import at

SEED = "seed"
BUDGET = "trainer.max_steps"  # converted from epochs it depends on the seed, and with it the horizon of schedules
NUM_KEYS = 5  # differing keys that a sentence names


class Contestants:
    """Groups runs by what was trained.

    Args:
        typed: the overrides of each run.
        configs: the composed config of each run.
        free: keys that change nothing of what is trained; everything below them is free too.
    """

    def __init__(
        self, typed: Sequence[Sequence[str]], configs: Sequence[Mapping[str, Any]], free: Sequence[str]
    ) -> None:
        self.free = (*free, SEED)
        self.configs = [self._trained(config) for config in configs]
        self.typed = [self._words(words) for words in typed]
        shared = set.intersection(*(set(words.items()) for words in self.typed)) if typed else set()
        plain = [_name(words, shared, config) for words, config in zip(self.typed, configs, strict=True)]
        self.groups: dict[str, list[int]] = defaultdict(list)  # by what identifies the training
        for run, config in enumerate(self.configs):
            self.groups[json.dumps([config, self.typed[run].get(BUDGET)], sort_keys=True, default=str)].append(run)
        self.names, self.problems = [""] * len(typed), list[str]()
        self._give_names(plain)

    def _give_names(self, plain: Sequence[str]) -> None:
        """Name each group after its first run; tell groups of one name apart by a number."""
        same: dict[str, list[list[int]]] = defaultdict(list)
        for group in self.groups.values():
            same[plain[group[0]]].append(group)
        for name, groups in same.items():
            for number, group in enumerate(groups, start=1):
                for run in group:
                    self.names[run] = name if len(groups) == 1 else f"{name} #{number}"
            if len(groups) > 1:
                self.problems.append(
                    f"runs called {name} were trained differently and are told apart as #1 to #{len(groups)}: "
                    f"{self._differing([group[0] for group in groups])}"
                )

    def _differing(self, runs: Sequence[int]) -> str:
        configs = [self.configs[run] for run in runs]
        keys = [
            key
            for key in sorted(set().union(*configs))
            if len({repr(config.get(key, "absent")) for config in configs}) > 1
        ]
        texts = [f"{key}: {' / '.join(_short(config.get(key, 'absent')) for config in configs)}" for key in keys]
        return "; ".join(texts[:NUM_KEYS]) + (f"; and {len(texts) - NUM_KEYS} more" if len(texts) > NUM_KEYS else "")

    def _is_free(self, key: str) -> bool:
        return any(f"{key}.".startswith(f"{free}.") for free in self.free)

    def _trained(self, config: Mapping[str, Any]) -> dict[str, Any]:
        budget = at(config, *BUDGET.split("."))
        flat = {key: value for key, value in _flat(config).items() if not self._is_free(key) and key != BUDGET}
        horizons = {key for key, value in flat.items() if key.startswith("schedule.") and value == budget}
        return {key: BUDGET if key in horizons else value for key, value in flat.items()}

    def _words(self, words: Sequence[str]) -> dict[str, str]:
        """Overrides by key, the last one counting, the optimizer first."""
        found = {}
        for word in words:
            key, _, value = word.lstrip("+~").partition("=")
            if not self._is_free(key) and key.partition(".")[0] != "hydra":
                found[key] = value
        return dict(sorted(found.items(), key=lambda item: (item[0] != "optimizer", item[0])))


def _name(words: Mapping[str, str], shared: set[tuple[str, str]], config: Mapping[str, Any]) -> str:
    """Name the optimizer, and what else sets a run apart from the others."""
    own = {key: value for key, value in words.items() if (key, value) not in shared}
    optimizer = own.pop("optimizer", None)
    # a learning rate says nothing without its optimizer
    if optimizer is None and (not own or any(key.startswith("optimizer.") for key in own)):
        optimizer = words.get("optimizer") or str(at(config, "optimizer", "_target_")).rpartition(".")[2]
    options = [f"{key.removeprefix('optimizer.')}={value}" for key, value in own.items()]
    return " ".join([optimizer, *options] if optimizer else options)


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(node, Mapping) and node:
        return {key: value for name, item in node.items() for key, value in _flat(item, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): node}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
