"""What Hydra composes for a command: its own config, or that of a resumed run, and the overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore
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
from asr.console import one_line
from asr.errors import ConfigError
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
