"""What a single file of configs/ says, without a command's defaults around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

CONFIGS = Path(__file__).parents[1] / "configs"


def choice(group: str, name: str) -> DictConfig:
    """Return a choice with the files that it includes; what it overrides in other groups is left out."""
    node: Any = OmegaConf.load(CONFIGS / group / f"{name}.yaml")
    included = [entry for entry in node.pop("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    places = [entry.partition("@")[0].strip("/").rpartition("/") for entry in included]
    merged = OmegaConf.merge(*(choice(folder or group, file) for folder, _, file in places), node)
    assert isinstance(merged, DictConfig)
    return merged
