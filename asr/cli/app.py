"""What every command shares: a Hydra application whose errors are messages and which writes nothing by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import asr.recipes
from asr.cli.errors import ConfigError, did_you_mean
from asr.cli.help import choices, command_help, known_keys
from asr.cli.resuming import with_saved_overrides
from asr.training.errors import TrainingFailed

# configs that Hydra's plugins bring along
PLUGINS = {
    f"hydra/launcher/{name}": f"hydra/launcher: the plugin for {name} is not installed: pip install 'werdict[{extra}]'"
    for name, extra in (("joblib", "joblib"), ("submitit_slurm", "slurm"), ("submitit_local", "slurm"), ("ray", "ray"))
}
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def run_app(config_name: str, task: Callable[[DictConfig], object]) -> None:
    """Compose the config named ``config_name`` with the command line, and call ``task`` with it.

    Exits with 2 and a message where the command line or the config is wrong, with 1 and a message where a training
    cannot go on, and with 130 when interrupted.
    """
    quieten()
    full = "HYDRA_FULL_ERROR" in os.environ

    def guarded(config: DictConfig) -> object:
        # inside the job, because Hydra comments on what leaves it
        try:
            return task(config)
        except (ValueError, TrainingFailed) as error:
            if full:
                raise
            message = f"{error}\n(HYDRA_FULL_ERROR=1 shows where this comes from.)"
            _leave(config_name, message, 1 if isinstance(error, TrainingFailed) else 2)

    try:
        with with_saved_overrides(sys.argv), _external_recipes(sys.argv), _raw_errors():
            if {"--help", "-h"} & set(sys.argv[1:]):
                print(command_help(config_name, config_folder(config_name)))
                return
            folder = str(config_folder(config_name))
            hydra.main(version_base="1.3", config_path=folder, config_name=config_name)(guarded)()
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        if full:
            raise
        _leave(config_name, explain(error, config_name))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def config_folder(config_name: str) -> Path:
    """Return the folder with a command's config and groups; one of its own where a key has the name of a group."""
    own = CONFIGS / config_name
    return own if own.is_dir() else CONFIGS


def _leave(config_name: str, message: str, code: int = 2) -> NoReturn:
    print(f"asr-{config_name}: {message}", file=sys.stderr)
    raise SystemExit(code)


def quieten() -> None:
    """Silence what libraries say about choices that are made on purpose."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    # every process logs the same numbers: they were gathered before
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
    os.environ.setdefault("WANDB_SILENT", "true")


@contextlib.contextmanager
def _raw_errors() -> Iterator[None]:
    """Let Hydra hand its exceptions on, instead of printing them and leaving."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


@contextlib.contextmanager
def _external_recipes(argv: list[str]) -> Iterator[None]:
    """Make ``recipes_dir=PATH`` a place where recipes and their prepare functions are found.

    Hydra searches groups below a folder, so the recipes are linked as the group ``recipe`` of a temporary one.
    """
    words = [word for word in argv if word.startswith("recipes_dir=")]
    given = OverridesParser.create().parse_overrides(words)[-1].value() if words else None
    if given is None:
        yield
        return
    path = Path(str(given)).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(f"recipes_dir: there is no folder {str(path)!r}")
    asr.recipes.__path__.append(str(path))
    with tempfile.TemporaryDirectory(prefix="werdict-recipes-") as folder:
        (Path(folder) / "recipe").symlink_to(path)
        argv.insert(argv.index(words[-1]), f"hydra.searchpath=[file://{folder}]")
        yield


def explain(error: Exception, config_name: str) -> str:
    """Return what was wrong, what was given and what is allowed."""
    text = str(error)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    if isinstance(error, MissingConfigException):
        wanted = error.missing_cfg_file or ""
        # names of recipes hold slashes, as groups of Hydra's do
        group, _, choice = wanted.rpartition("/") if wanted.startswith("hydra/") else wanted.partition("/")
        return PLUGINS.get(wanted) or _explain_choice(group, choice) or text
    if text.startswith("Config group override must be"):
        return _explain_nameless(sys.argv[1:]) or text
    override = re.search(r"Could not override '([^']+)'", text)
    if isinstance(error, ConfigCompositionException) and override:
        return _explain_key(override.group(1), config_name)
    missing = re.search(r"Missing mandatory value: (\S+)", text)
    if missing:
        return f"{missing.group(1)} must be given: {missing.group(1)}=…"
    return text


def _explain_choice(group: str, choice: str) -> str:
    known = list(choices(CONFIGS, group))
    if not known:
        return ""
    return f"{group}={choice}: there is no such {group}.{did_you_mean(choice, known)} Allowed: {', '.join(known)}."


def _explain_nameless(argv: list[str]) -> str:
    """Name the word that chooses null or a number where a file of a group is chosen."""
    words = [word for word in argv if "=" in word and not word.startswith("-")]
    for override in OverridesParser.create().parse_overrides(words):
        if not override.key_or_group:
            return f"{override.input_line!r} names no key"
        if not override.is_delete() and not isinstance(override.value(), str | list):
            explained = _explain_choice(override.key_or_group, str(override.value()))
            if explained:
                return explained
    return ""


def _explain_key(key: str, config_name: str) -> str:
    parent, _, name = key.rpartition(".")
    known = known_keys(config_name, config_folder(config_name), parent)
    if known is None:
        return _explain_key(parent, config_name) if parent else f"{key}: there is no such key"
    where = f"in {parent}" if parent else "at the top level"
    return (
        f"{key}: there is no key {name!r} {where}.{did_you_mean(name, known)} Allowed: {', '.join(known)}. "
        f"(+{key}=… would add it.)"
    )
