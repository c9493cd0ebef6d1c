"""What a run's config says of its system: runs that share it, and differ in their seeds, are compared as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asr.options import decides
from asr.plain_data import at, flatten, is_within

BUDGET = "trainer.max_steps"
OWN_CALLBACKS = "asr.training.callbacks."
AVERAGING = f"{OWN_CALLBACKS}averaging.WeightAveraging"
# other callbacks may stop the training
WATCHING = tuple(
    f"lightning.pytorch.callbacks.{name}" for name in ("DeviceStatsMonitor", "LearningRateMonitor", "ModelSummary")
)


def run_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``system``, ``seed`` and ``budget`` (updates) of a run, for its summary.

    Args:
        config: of the run, resolved.
    """
    return {"system": system_of(config), "seed": config["seed"], "budget": at(config, *BUDGET.split("."))}


def system_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return by dotted key what decides the result of a run beside its seed.

    Args:
        config: of the run, resolved.
    """
    decoded, is_raw = config["decode"][0], config["weights"] == "raw"
    callbacks = {
        name: node
        for name, node in (config["callbacks"] or {}).items()
        if not _only_watches(node, is_raw and decoded != "average")
    }
    without = [*(["weights"] if is_raw else []), *(["decode"] if decoded == "best" else [])]
    tuned = at(config, "sweep", "tuned") or {}
    if tuned.get("studies", 1) != 1:
        without += tuned["keys"]  # each study has found its own
    system = {
        key: value
        for key, value in flatten({**config, "callbacks": callbacks, "decode": decoded}).items()
        if decides(key) in ("updates", "result") and not is_within(key, without)
    }
    for key in ("trainer.devices", "trainer.num_nodes"):
        count = system.get(key)  # or a list of devices
        # more processes make larger updates
        if count in (None, 1, "1") or (isinstance(count, list) and len(count) == 1):
            system.pop(key, None)
    if at(config, "trainer", "max_epochs") == -1:
        # converted from epochs, the budget depends on the seed, and so do schedules that end with it
        budget = system.pop(BUDGET)
        system = {
            key: BUDGET if key.startswith("schedule.") and value == budget else value for key, value in system.items()
        }
    return system


def _only_watches(node: Any, without_averages: bool) -> bool:
    """Return whether a callback leaves alone what the run is decoded with."""
    target = str(at(node, "_target_"))
    if target == AVERAGING:
        return without_averages
    return node is None or target in WATCHING or target.startswith(OWN_CALLBACKS)
