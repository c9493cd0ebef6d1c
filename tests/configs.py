"""What a single file of configs/ says, without a command's defaults around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

CONFIGS = Path(__file__).parents[1] / "configs"


def choice(group: str, name: str) -> DictConfig:
    """Return a choice with the files that it includes; what it overrides in other groups is left out."""
    node: Any = OmegaConf.load(CONFIGS / group / f"{name}.yaml")
    included = [entry for entry in node.pop("defaults", []) if isinstance(entry, str) and entry.startswith("/")]
    parts = [OmegaConf.load(CONFIGS / f"{entry.partition('@')[0].strip('/')}.yaml") for entry in included]
    merged = OmegaConf.merge(*parts, node)
    assert isinstance(merged, DictConfig)
    return merged
