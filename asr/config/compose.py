"""What Hydra composes for a command: its config, or that of a resumed run, and overrides; how a run differs from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

import asr.recipes
from asr.config.command_line import (
    expand_home,
    expand_short_forms,
    fill_keys,
    name_sweep,
    override_value,
    quote_non_ascii,
)
from asr.config.help import CONFIGS
from asr.config.resumed_config import ABSENT
from asr.console import one_line
from asr.errors import ConfigError
from asr.options import has_effect
from asr.plain_data import flatten, read_yaml
from asr.processes import is_first_process
from asr.safe_io import named_path


def composed_from(command: str, arguments: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Return the primary config and the arguments with which Hydra composes the config of a command.

    Args:
        command: its name.
        arguments: of the command line.
        folder: of the command's config.
    """
    arguments = [quote_non_ascii(expand_home(expand_short_forms(word))) for word in fill_keys(command, arguments)]
    if (recipes_dir := override_value(arguments, "recipes_dir")) is not None:
        _add_recipes(recipes_dir)
    if command != "train":
        return command, arguments
    arguments = name_sweep(arguments)
    if (resumed := override_value(arguments, "resume")) is None:
        return command, arguments
    # imported here, because only resumed runs need it
    from asr.config.resumed_config import CONFIG_NAME, run_folder, store_resumed

    store_resumed(run_folder(resumed), folder / f"{command}.yaml", arguments)
    return CONFIG_NAME, arguments


def _add_recipes(recipes_dir: object) -> None:
    """Make a folder a place where recipes, as further choices of their group, and their prepare functions are found.

    Raises:
        ConfigError: there is no such folder.
    """
    path = named_path(recipes_dir).resolve()
    if not path.is_dir():
        raise ConfigError(f"recipes_dir: there is no folder {str(path)!r}")
    if is_first_process():
        print(f"recipes_dir: runs the Python code in {one_line(str(path))}; name only what you trust", flush=True)
    if str(path) not in asr.recipes.__path__:
        asr.recipes.__path__.append(str(path))
    for file in path.rglob("*.yaml"):
        group = Path("recipe", file.relative_to(path)).parent.as_posix()
        ConfigStore.instance().store(f"{file.stem}", OmegaConf.load(file), group, "_global_")


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
