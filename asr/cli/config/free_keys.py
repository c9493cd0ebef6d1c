"""Which keys of a run's config cannot change its result: runs that differ in nothing else are one system."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from asr.nested import at
from asr.systems import WITHOUT_EFFECT

MAX_CALLBACKS = 100  # that are looked at; a config has ten
OWN = "asr.training.callbacks."
AVERAGING = f"{OWN}averaging.WeightAveraging"
# others stop the training
WATCHING = tuple(
    f"lightning.pytorch.callbacks.{name}" for name in ("DeviceStatsMonitor", "LearningRateMonitor", "ModelSummary")
)


def free_in_comparison(config: Mapping[str, Any]) -> list[str]:
    """Return the keys that cannot change a run's result; all keys below them are free too.

    Args:
        config: of the run, which may be older than some keys.
    """
    free = [*WITHOUT_EFFECT]
    callbacks = config.get("callbacks")
    if not at(config, "trainer", "compile"):  # older runs lack it
        free.append("trainer.compile")
    # both are lacking in older runs
    is_raw = config.get("weights", "raw") == "raw"
    if is_raw:
        free.append("weights")
    decoded = config.get("decode", ["best"])
    first = decoded[0] if isinstance(decoded, list) and decoded else None
    if first == "best":
        free.append("decode")
    if isinstance(callbacks, Mapping):
        some = itertools.islice(callbacks.items(), MAX_CALLBACKS)
        free += [f"callbacks.{name}" for name, node in some if _only_watches(node, is_raw and first != "average")]
    tuned = at(config, "sweep", "tuned")
    if isinstance(tuned, Mapping) and tuned.get("studies") != 1 and isinstance(tuned.get("keys"), list):
        free += [str(key) for key in tuned["keys"]]  # each study has found its own
    for key in ("devices", "num_nodes"):
        count = at(config, "trainer", key)  # or a list of devices
        # more processes make larger updates
        if count in (None, 1, "1") or (isinstance(count, list) and len(count) == 1):
            free.append(f"trainer.{key}")
    return free


def _only_watches(node: Any, is_raw: bool) -> bool:
    """Return whether a callback leaves alone what the run is decoded with."""
    target = str(at(node, "_target_"))
    if target == AVERAGING:
        return is_raw
    return node is None or target in WATCHING or target.startswith(OWN)
