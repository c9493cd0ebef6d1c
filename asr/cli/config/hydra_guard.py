"""What Hydra itself would build or run, checked before Hydra sees it.

Hydra instantiates callbacks, launchers and sweepers from the node ``hydra`` right after composing, sets environment
variables and logging from it, and can unpickle a former job. A recipe or a pasted command line could use that.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asr.cli.config.flags import NO_SWEEP
from asr.cli.config.options import resolved
from asr.cli.config.words import SEARCHPATH, leads_to_recipes, typed_places
from asr.cli.errors import ConfigError
from asr.nested import at
from asr.plain_data import checked_scalars

# of Hydra, of its plugins, and of ours; optuna is what Hydra's sweeper of that name is configured with
TARGETS = (
    r"hydra\._internal\.core_plugins\.\w+\.[A-Z]\w*",
    r"hydra\.experimental\.callbacks\.LogJobReturnCallback",
    r"hydra_plugins(\.\w+)+\.[A-Z]\w*",
    r"optuna\.samplers\.[A-Z]\w*",
    r"asr\.cli\.sweeps\.table\.SweepTable",
)
# logging of the standard library builds anything that "()" or "class" names, and opens files
LOGGING = ("job_logging", "hydra_logging")
# keys of all commands that say where files go; numbers go where the node logger says
DESTINATIONS = ("run_dir", "resume", "data.dir", "data.storage.dir", "sweep.name", "output_dir", "output", "out")
# where Hydra would write its own files, over those of the user's; runs and sweeps have folders that we make
PLACES: dict[str, str | None] = {"run.dir": ".", "output_subdir": None}
SWEEP_PLACES: dict[str, str | None] = {"sweep.dir": "runs/${sweep.name}", "sweep.subdir": "."}
MAX_FILES = 10_000  # of a folder of configs
# an interpolation that calls a function, such as ${oc.env:NAME}, or whose name is made by another
RESOLVER = re.compile(r"\$\{[^{}]*(:|\$\{)")


def check_hydra(config_name: str, folder: Path, words: Sequence[str], may_sweep: bool) -> RunMode | None:
    """Compose, and refuse what Hydra would build or run beyond its own.

    Nothing is composed if all configs are our own and no override is for Hydra.
    If configs come from other folders too, every choice of a sweep is composed: Hydra sets logging and environment
    variables of a job before the job can look at them.

    Args:
        config_name: of the primary config.
        folder: of the configs.
        words: overrides of the command line.
        may_sweep: the command has sweeps.

    Returns:
        ``hydra.mode``, if a config or a word sets it.

    Raises:
        ConfigError: names the key and what is allowed.
    """
    parsed = OverridesParser.create().parse_overrides(list(words))
    single = [str(override.input_line) for override in parsed if not override.is_sweep_override()]
    typed = {override.key_or_group for override in parsed}
    places = [str(place) for word in words if word.startswith(SEARCHPATH) for place in typed_places([word])]
    is_own = not places and (folder / f"{config_name}.yaml").is_file()
    if is_own and not any(re.match(r"hydra([./@]|$)", key) for key in typed):
        return None
    strangers = [place for place in places if not leads_to_recipes(Path(place))]
    for place in places:
        _check_yamls(Path(place), trusted=place not in strangers)
    own = _composed(config_name, folder, _own_words(parsed, folder)) if places else None
    mode: RunMode | None = None
    for chosen in ((), *_swept_choices(parsed, folder)) if places else ((),):
        composed = _composed(config_name, folder, [*single, *chosen])
        mode = mode or composed["hydra"]["mode"]
        _check_node(composed["hydra"], typed)
        _check_places(composed["hydra"], may_sweep)
        if own is not None:
            _refuse_changes(own["hydra"], composed["hydra"], "hydra.", chosen)
        if own is not None and strangers:
            _refuse_changes(_destinations(own), _destinations(composed), "", chosen)
    return mode


def _check_yamls(folder: Path, trusted: bool) -> None:
    """Refuse a folder of configs with a yaml that would be read without end, or read the user's environment.

    Args:
        folder: that Hydra searches.
        trusted: it holds a link to the recipes of ``recipes_dir=``, and nothing else.
    """
    root = next(folder.iterdir()).resolve() if trusted else folder
    for number, path in enumerate(root.rglob("*")):
        if number >= MAX_FILES:
            raise ConfigError(f"{root} holds more than {MAX_FILES} files; name a folder of configs alone")
        # Hydra follows links, and the search above does not
        if path.is_symlink() and not trusted and not path.resolve().is_relative_to(root):
            raise ConfigError(
                f"{path} leads out of the folder of configs, to {path.resolve()}; name a folder of configs alone"
            )
        if path.suffix != ".yaml":
            continue
        for value in checked_scalars(path):
            if not trusted and RESOLVER.search(value):
                raise ConfigError(
                    f"{path}: {value[:100]!r} is not allowed: the configs of --config-dir hold values, and "
                    "references to keys by name, alone; recipes_dir is for configs that you trust"
                )


def _check_node(composed: Mapping[str, Any], typed: Collection[str]) -> None:
    for name in ("launcher", "sweeper"):
        if not isinstance(composed.get(name), Mapping) or "_target_" not in composed[name]:
            raise ConfigError(f"hydra.{name} must hold _target_ and options, given {composed.get(name)!r}")
    for name, node in composed["callbacks"].items():
        if not isinstance(node, Mapping):
            raise ConfigError(f"hydra.callbacks.{name} must hold _target_ and options, given {node!r}")
    size = composed["sweeper"].get("max_batch_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(f"hydra.sweeper.max_batch_size must be a whole number of at least 1, or null, given {size!r}")
    jobs = composed["launcher"].get("n_jobs", 1)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs == 0:
        raise ConfigError(
            f"hydra.launcher.n_jobs must be a whole number of at least 1, or -1 for one on each core, given {jobs!r}"
        )
    if not isinstance(composed["verbose"], bool | str | list):
        raise ConfigError(f"hydra.verbose must be true, false, or names of loggers, given {composed['verbose']!r}")
    if composed["job"]["chdir"] and "hydra.job.chdir" in typed:
        raise ConfigError("hydra.job.chdir must be false: runs and data are found from the current folder")
    for key, target in _targets(composed, "hydra"):
        if not any(re.fullmatch(allowed, str(target)) for allowed in TARGETS):
            raise ConfigError(f"{key}: {target!r} is not allowed; only what belongs to Hydra and its plugins is built")
    for name in LOGGING:
        if set(composed.get(name) or {}) - {"version", "root", "disable_existing_loggers"}:
            raise ConfigError(f"hydra.{name} cannot be changed: logging could open files or run code; allowed: none")
    for name in composed["job"]["env_set"] or {}:
        if f"hydra.job.env_set.{name}" not in typed:
            raise ConfigError(f"hydra.job.env_set.{name}: only a command line may set variables of the environment")


def _check_places(composed: Mapping[str, Any], may_sweep: bool) -> None:
    """Refuse places where Hydra would write its own files, and sweeps of other commands, whose list it writes."""
    if composed["mode"] == RunMode.MULTIRUN and not may_sweep:
        raise ConfigError(f"hydra.mode=MULTIRUN: {NO_SWEEP}")
    for name, expected in (PLACES | SWEEP_PLACES if may_sweep else PLACES).items():
        if (given := at(composed, *name.split("."))) != expected:
            raise ConfigError(
                f"hydra.{name} must be {'null' if expected is None else expected}, given {given!r}: Hydra would write "
                "its own files there; run_dir, output_dir and sweep.name say where ours go"
            )


def _own_words(parsed: Sequence[Override], folder: Path) -> list[str]:
    """Return the words that say what Hydra does, and where numbers and files go, without a yaml of another folder."""
    return [
        str(override.input_line)
        for override in parsed
        if not override.is_sweep_override()
        and (key := override.key_or_group) != "hydra.searchpath"
        # a choice of a group is ours, or it is a file of the other folder
        and (key.startswith(("hydra.", "logger.")) or key in DESTINATIONS or key in ("sweep", "logger"))
        and (
            not (folder / key).is_dir()
            or (re.fullmatch(r"\w+", name := str(override.value())) and (folder / key / f"{name}.yaml").is_file())
        )
    ]


def _destinations(composed: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a command writes, and where it sends numbers."""
    config = composed["config"]
    values = {key: config.get(key) for key in ("logger", *DESTINATIONS) if "." not in key}
    return values | {key: at(config, *key.split(".")) for key in DESTINATIONS if "." in key}


def _refuse_changes(own: Mapping[str, Any], composed: Mapping[str, Any], prefix: str, chosen: Sequence[str]) -> None:
    """Refuse a yaml from another folder that changes what only the user's own words, and our configs, may."""
    for key in sorted(composed.keys() | own.keys()):
        if composed.get(key) != own.get(key):
            which = f"{' '.join(chosen)}: " if chosen else ""
            raise ConfigError(
                f"{which}a yaml of another folder changes {prefix}{key}, which only a command line may"
                + ("" if prefix else ", or recipes_dir=…, for configs that you trust")
            )


def _swept_choices(parsed: Sequence[Override], folder: Path) -> Iterator[tuple[str]]:
    """Yield each choice of the groups that are swept, as an override."""
    for override in parsed:
        group = override.key_or_group
        if not override.is_sweep_override() or "." in group or not (folder / group).is_dir():
            continue
        value = override.value()
        if isinstance(value, Glob):
            raise ConfigError(f"{override.input_line}: name the choices of {group}; some configs come from elsewhere")
        for choice in override.sweep_string_iterator():
            yield (f"{group}={choice}",)


def _composed(config_name: str, folder: Path, words: list[str]) -> dict[str, Any]:
    """Return the config, and the node ``hydra`` without what only repeats the command line."""
    with initialize_config_dir(str(folder), version_base="1.3"):
        config = compose(config_name, overrides=words, return_hydra_config=True)
    with contextlib.suppress(OmegaConfBaseException):  # some values are known to a running job alone
        resolved(config)
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    node = container.pop("hydra")
    job = {key: value for key, value in node["job"].items() if key != "override_dirname"}
    kept = {str(key): value for key, value in node.items() if key not in ("overrides", "runtime", "job", "searchpath")}
    return {"hydra": {**kept, "job": job}, "config": container}


def _targets(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name in ("_target_", "()"):
                yield f"{key}.{name}", value
            else:
                yield from _targets(value, f"{key}.{name}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _targets(value, f"{key}.{number}")
