"""How the config of a run differs from its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from asr.config.command_line import override_value
from asr.config.help import CONFIGS
from asr.config.resumed_config import ABSENT
from asr.options import has_effect
from asr.plain_data import flatten, read_yaml


def difference_from_recipe(config: Mapping[str, Any], run_dir: Path) -> dict[str, tuple[str, str]]:
    """Return the values of recipe and run by key, where they differ and affect training.

    Empty if the recipe is not found any more.

    Args:
        config: of the run, resolved.
        run_dir: its folder, which records its overrides.
    """
    try:
        composed = compose("train", [f"recipe={recipe_of(run_dir)}"])
    except MissingConfigException:
        return {}  # a resumed run whose recipes_dir is not given
    # a recipe may leave values to its user, which are shown as ???
    recipe, run = flatten(OmegaConf.to_container(composed, resolve=True)), flatten(config)
    pairs = {key: (recipe.get(key, ABSENT), run.get(key, ABSENT)) for key in {**recipe, **run}}
    return {
        key: (_shown(recipe_value), _shown(run_value))
        for key, (recipe_value, run_value) in pairs.items()
        # a value that the recipe leaves to the machine is not a difference
        if recipe_value != run_value and has_effect(key) and (key, recipe_value) != ("trainer.capture", None)
    }


def recipe_of(run_dir: Path) -> str:
    """Return the name of a run's recipe."""
    return str(override_value(read_yaml(run_dir / "overrides.yaml"), "recipe") or default_recipe())


def default_recipe() -> str:
    """Return the name of the recipe that ``asr-train`` has without ``recipe=``."""
    defaults = read_yaml(CONFIGS / "train.yaml")["defaults"]
    return next(str(item["recipe"]) for item in defaults if "recipe" in item)


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
