"""Hydra's flags on a command line: which of them a command takes, and what they add to its overrides."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asr.cli.config.words import SEARCHPATH, searchpath, typed_places
from asr.cli.errors import ConfigError

NO_SWEEP = "-m is for sweeps of asr-train; this command runs once"
# flags that read code or another config, and why they are refused
REFUSED_FLAGS = {
    "experimental_rerun": "it unpickles a file, which can run anything; resume=RUN resumes a run",
    "config_name": "every command has its own config; choose a recipe with recipe=…",
    "config_path": "every command has its own configs; --config-dir adds a folder of yours",
}


def typed_overrides(argv: Sequence[str], may_sweep: bool) -> list[str]:
    """Return the overrides of a command line as Hydra sees them, an added folder of configs included.

    Raises:
        ConfigError: a flag of Hydra would read code or another config, or start a sweep of a command without any.
    """
    arguments = _parsed(argv)
    for name, why in REFUSED_FLAGS.items():
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is not used here: {why}")
    if arguments.multirun and not may_sweep:
        raise ConfigError(NO_SWEEP)
    _check_modes(arguments)
    words: list[str] = list(arguments.overrides)
    places = typed_places(words)
    if arguments.config_dir is not None:
        # an empty name would be the current folder
        if not arguments.config_dir.strip() or not Path(arguments.config_dir).is_dir():
            raise ConfigError(f"--config-dir: there is no folder {arguments.config_dir!r}")
        places.append(str(Path(arguments.config_dir).resolve()))
    return [*(word for word in words if not word.startswith(SEARCHPATH)), *([searchpath(places)] if places else [])]


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Return a command line as Hydra's own parser reads it: argparse takes shortened flags and values in many forms."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; --hydra-help tells what Hydra adds")

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_args(list(argv[1:]))


def _check_modes(arguments: argparse.Namespace) -> None:
    """Refuse flags that ask for two things at once, and those without the flag that they belong to."""
    asked = {"-m": arguments.multirun, "-r": arguments.run, "--cfg": arguments.cfg, "--info": arguments.info}
    typed = [flag for flag, value in asked.items() if value]
    if len(typed) > 1:
        why = ": a sweep has no single config; leave out -m, with one value for each key" if "-m" in typed else ""
        raise ConfigError(f"{' and '.join(typed)} cannot be given together{why or '; keep one of them'}")
    for flag, value in (("--package", arguments.package), ("--resolve", arguments.resolve)):
        if value and not arguments.cfg:
            raise ConfigError(f"{flag} is for --cfg, which shows a config; add --cfg job, or leave out {flag}")


def check_shown(config_name: str, folder: Path, argv: Sequence[str], words: Sequence[str]) -> None:
    """Refuse to show a part that the config does not have.

    Args:
        config_name: of the primary config.
        folder: of the configs.
        argv: of the command, whose flags may be ``--cfg`` and ``--package``.
        words: overrides of the command line.

    Raises:
        ConfigError: names the part and what is allowed.
    """
    arguments = _parsed(argv)
    if arguments.package in (None, "_global_"):
        return
    with initialize_config_dir(str(folder), version_base="1.3"):
        config = compose(config_name, overrides=list(words), return_hydra_config=arguments.cfg != "job")
    if arguments.cfg == "hydra":
        config = OmegaConf.masked_copy(config, "hydra")
    with contextlib.suppress(OmegaConfBaseException):  # an index of no list, or a part of a value
        if OmegaConf.select(config, arguments.package, throw_on_missing=False) is not None:
            return
    raise ConfigError(
        f"--package {arguments.package}: the config has no such part, or it is null. Allowed: "
        f"{', '.join(map(str, config))}, and parts of them."
    )
