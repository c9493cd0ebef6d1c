"""What commands compose of words, and what a single file of configs/ says without the defaults around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from asr.run.command_line import config_folder
from asr.run.compose import Composed

CONFIGS = Path(__file__).parents[1] / "configs"


def composed(*words: str, command: str = "train") -> Composed:
    """Return what a command composes of words; nothing of it is built."""
    with initialize_config_dir(str(config_folder(command)), version_base="1.3"):
        return Composed.of(command, compose(command, list(words), return_hydra_config=True))


def choice(group: str, name: str) -> DictConfig:
    """Return a choice with the files that it includes; what it overrides in other groups is left out."""
    node: Any = OmegaConf.load(CONFIGS / group / f"{name}.yaml")
    included = [entry for entry in node.pop("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    places = [entry.partition("@")[0].strip("/").rpartition("/") for entry in included]
    merged = OmegaConf.merge(*(choice(folder or group, file) for folder, _, file in places), node)
    assert isinstance(merged, DictConfig)
    return merged
