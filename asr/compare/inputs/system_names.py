"""Groups runs of this toolkit into systems, and gives each system a readable name."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from asr.compare.inputs.run_files import RunFiles
from asr.evaluation.formatting import shortened, shortlist
from asr.options import has_effect
from asr.plain_data import at, flatten, is_within

MAX_VALUE = 40  # characters
MAX_NAME = 200


def name_systems(runs: Sequence[RunFiles]) -> tuple[list[str], list[str]]:
    """Return the name of each run's system, and messages on systems that would have the same name and are numbered."""
    overrides = [_overrides(run) for run in runs]
    shared = set.intersection(*(set(run_overrides.items()) for run_overrides in overrides)) if runs else set()
    groups: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        groups[json.dumps(run.settings["system"], sort_keys=True)].append(place)
    # a group has the name of its first run
    same: dict[str, list[list[int]]] = defaultdict(list)
    for group in groups.values():
        same[_name(overrides[group[0]], shared, runs[group[0]].config)].append(group)
    names, problems = [""] * len(runs), []
    for name, alike in same.items():
        for number, group in enumerate(alike, start=1):
            for place in group:
                names[place] = name if len(alike) == 1 else f"{name} #{number}"
        if len(alike) > 1:
            systems = [runs[group[0]].settings["system"] for group in alike]
            rows = {
                key: [str(system.get(key, "absent")) for system in systems] for key in sorted(set().union(*systems))
            }
            differing = (
                f"{key}: {' / '.join(shortened(value, MAX_VALUE) for value in values)}"
                for key, values in rows.items()
                if len(set(values)) > 1
            )
            problems.append(
                f"runs called {name} have different configs and are numbered #1 to #{len(alike)} "
                f"({shortlist(differing)})"
            )
    return names, problems


def concerns_system(key: str, run: RunFiles) -> bool:
    """Return whether an override of a key decides what system a run belongs to."""
    if not has_effect(key):  # also if the config lacks it, as after ~logger
        return False
    configured = [subkey for subkey in flatten(run.config) if is_within(subkey, (key,))]
    # the config does not hold the choice of a group by itself, such as recipe=digits/transformer_ctc
    return not configured or any(is_within(subkey, (key,)) for subkey in run.settings["system"])


def _overrides(run: RunFiles) -> dict[str, str]:
    """Return the last override of each key that concerns the system, the optimizer first."""
    different = {}
    for word in run.overrides:
        key, _, value = word.lstrip("+~").partition("=")
        if concerns_system(key, run):
            different[key] = value
    return dict(sorted(different.items(), key=lambda item: (item[0] != "optimizer", item[0])))


def _name(overrides: Mapping[str, str], shared: set[tuple[str, str]], config: Mapping[str, Any]) -> str:
    """Return the name that a tuning sweep has given, or the optimizer and the overrides that others do not share."""
    if label := at(config, "sweep", "tuned", "system"):
        return str(label)
    unshared = {key: value for key, value in overrides.items() if (key, value) not in shared}
    optimizer = unshared.pop("optimizer", None)
    # a learning rate says nothing without its optimizer
    if optimizer is None and (not unshared or any(key.startswith("optimizer.") for key in unshared)):
        optimizer = overrides.get("optimizer") or str(at(config, "optimizer", "_target_")).rpartition(".")[2]
    options = [f"{key.removeprefix('optimizer.')}={value}" for key, value in unshared.items()]
    return shortened(" ".join([optimizer, *options] if optimizer else options), MAX_NAME)
