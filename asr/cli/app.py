"""What every command shares: a Hydra application whose errors are messages and which writes nothing by itself."""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import hydra
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from lightning.pytorch import Trainer
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import asr.recipes
from asr.cli.__main__ import INTERRUPTED, MORE_MEMORY
from asr.cli.errors import ConfigError, did_you_mean
from asr.cli.help import choices, command_help, known_keys
from asr.cli.hydra_guard import check_hydra, typed_overrides
from asr.cli.rehearsal import REFUSED
from asr.cli.resuming import CONFIG_NAME, resumed_folder, store_resumed, typed_value
from asr.console import printable
from asr.error_text import first_line, is_out_of_memory
from asr.training.errors import TrainingFailed
from asr.training.lost_workers import hush_freed_workers
from asr.training.processes import is_first_process

# configs that Hydra's plugins bring along
PLUGINS = {
    f"hydra/launcher/{name}": f"hydra/launcher: the plugin for {name} is not installed: pip install 'werdict[{extra}]'"
    for name, extra in (("joblib", "joblib"), ("submitit_slurm", "slurm"), ("submitit_local", "slurm"), ("ray", "ray"))
}
MEMORY = (MemoryError, RuntimeError, ImportError)  # among these are errors that say that memory ran out
MAX_MESSAGE = 5000  # characters; a file may hold names without end
MAX_SWEPT = 10_000  # values of one key
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def run_app(config_name: str, task: Callable[[DictConfig], object]) -> None:
    """Compose the config named ``config_name`` with the command line, and call ``task`` with it.

    Exits with 2 and a message if the command line or a file is wrong, with 1 and a message if the machine or the
    training cannot continue, and with 130 when interrupted.
    """
    quieten()
    full = "HYDRA_FULL_ERROR" in os.environ

    def guarded(config: DictConfig) -> object:
        # inside the job, because Hydra comments on what leaves it
        try:
            return task(config)
        except Exception as error:
            if full or not (isinstance(error, ValueError | TrainingFailed | OSError) or is_out_of_memory(error)):
                raise
            message, code = _told(error)
            _leave(config_name, f"{message}\n(HYDRA_FULL_ERROR=1 shows where this comes from.)", code)

    try:
        _compose_and_run(config_name, guarded)
    except RecursionError:
        if full:
            raise
        _leave(config_name, "the configs are nested too deeply, or refer to each other without end")
    except (ValueError, OSError, HydraException, OmegaConfBaseException, yaml.YAMLError, *MEMORY) as error:
        if full or (isinstance(error, MEMORY) and not is_out_of_memory(error)):
            raise
        # Hydra's error about a missing config is an OSError too
        is_machine = isinstance(error, (OSError, *MEMORY)) and not isinstance(error, HydraException)
        _leave(config_name, *(_told(error) if is_machine else (explain(error, config_name), 2)))
    except KeyboardInterrupt as error:
        # a second Ctrl-C would interrupt the clearing away
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if "LOCAL_RANK" in os.environ:
            raise SystemExit(INTERRUPTED) from None  # the process that started this one says it
        _leave(config_name, "interrupted" + (f"; {error}" if str(error) else ""), INTERRUPTED)


def _compose_and_run(config_name: str, task: Callable[[DictConfig], object]) -> None:
    # no child may import from the current folder, which may be somebody else's
    os.environ["PYTHONSAFEPATH"] = "1"
    with _external_recipes(sys.argv), _raw_errors():
        folder, primary = config_folder(config_name), config_name
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(command_help(config_name, folder))
            return
        if {"-sc", "--shell-completion"} & set(sys.argv[1:]):
            hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(task)()
            return
        words = typed_overrides(sys.argv)
        _check_choices(words)
        resumed = resumed_folder(words) if config_name == "train" else None
        if resumed is not None:
            store_resumed(resumed, folder / f"{config_name}.yaml", words)
            primary = CONFIG_NAME
        check_hydra(primary, folder, words)
        hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(task)()


def _told(error: Exception) -> tuple[str, int]:
    """Return what an error says, and the exit code."""
    if is_out_of_memory(error) and not isinstance(error, ValueError | TrainingFailed):
        return f"out of memory: {first_line(error)}; {MORE_MEMORY}", 1
    if isinstance(error, OSError):
        return explain_os_error(error)
    return str(error), 1 if isinstance(error, TrainingFailed) else 2


def config_folder(config_name: str) -> Path:
    """Return the folder with a command's config and groups; one of its own where a key has the name of a group."""
    own = CONFIGS / config_name
    return own if own.is_dir() else CONFIGS


def _leave(config_name: str, message: str, code: int = 2) -> NoReturn:
    # standard error may be closed, or a pipe that nobody reads any more
    with contextlib.suppress(OSError):
        shown = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}… ({len(message)} characters)"
        print(f"asr-{config_name}: {printable(shown)}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def quieten() -> None:
    """Silence what libraries say about choices that are made on purpose, and what the last line says in its words."""
    hush_freed_workers()
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
    given = typed_value(words, "recipes_dir")
    if given is None:
        yield
        return
    path = Path(str(given)).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(f"recipes_dir: there is no folder {str(path)!r}")
    if is_first_process():
        print(f"recipes_dir: runs the Python code in {printable(str(path))}; name only what you trust", flush=True)
    asr.recipes.__path__.append(str(path))
    with tempfile.TemporaryDirectory(prefix="werdict-recipes-") as folder:
        (Path(folder) / "recipe").symlink_to(path)
        argv.insert(argv.index(words[-1]), f"hydra.searchpath=[file://{folder}]")
        yield


def _check_sweep(override: Override) -> None:
    """Refuse a sweep that Hydra could never list, and one over the folders that jobs get by themselves."""
    value, key = override.value(), override.key_or_group
    if isinstance(value, RangeSweep):
        start, stop, step = value.start or 0, value.stop, value.step
        if stop is None or step == 0 or (stop - start) / step > MAX_SWEPT:
            raise ConfigError(f"{override.input_line}: at most {MAX_SWEPT} values of a key are swept")
    if key in ("run_dir", "resume"):
        raise ConfigError(f"{override.input_line}: jobs of a sweep get folders of their own, below runs/<sweep.name>")


def explain_os_error(error: OSError) -> tuple[str, int]:
    """Return what the operating system refused, in a line, and the exit code.

    1 where the machine's state is to blame, 2 where another name on the command line would help.
    """
    where = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    told = f"{error.strerror or error}" + (f": {where}" if where else "")
    if not where and error.errno == errno.ENOENT:
        return "the current folder no longer exists; change to one that does", 2
    if not where and error.errno == errno.ENOSPC:
        told += " (standard output, or a file that the system does not name)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{told}; free some space, then run the same command again, or resume=RUN for a run that had begun", 1
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
        return f"{told}; name another file or folder", 2
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{told}; it may not be written or read here: name another folder, or change its permissions", 1
    if error.errno == errno.EPIPE:
        return "the program that read the output has ended", 1
    return f"{told}; the machine could not do it", 1


def explain(error: Exception, config_name: str) -> str:
    """Return what was wrong, what was given and what is allowed."""
    # OmegaConf adds lines about its own types
    text = str(error).splitlines()[0] if isinstance(error, OmegaConfBaseException) else str(error)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    if isinstance(error, MissingConfigException):
        wanted = error.missing_cfg_file or ""
        # names of recipes hold slashes, as groups of Hydra's do
        group, _, choice = wanted.rpartition("/") if wanted.startswith("hydra/") else wanted.partition("/")
        return PLUGINS.get(wanted) or _explain_choice(group, choice) or text
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


def _check_choices(words: list[str]) -> None:
    """Refuse a word without a key, and one that chooses a number or a mapping where a file of a group is chosen.

    Raises:
        ConfigError: names the word and what is allowed.
    """
    for override in OverridesParser.create().parse_overrides(words):
        if not override.key_or_group:
            raise ConfigError(f"{override.input_line!r} names no key")
        if override.is_delete():
            continue
        if override.is_sweep_override():
            _check_sweep(override)
            continue
        value = override.value()
        names = value if isinstance(value, list) else [value]
        if not all(isinstance(name, str) for name in names):
            explained = _explain_choice(override.key_or_group, str(value))
            if explained:
                raise ConfigError(explained)


def _explain_key(key: str, config_name: str) -> str:
    parent, _, name = key.rpartition(".")
    known = known_keys(config_name, config_folder(config_name), parent)
    if known is None:
        return _explain_key(parent, config_name) if parent else f"{key}: there is no such key"
    if parent == "trainer" and name in inspect.signature(Trainer).parameters:
        if name in REFUSED:
            return f"{key} cannot be given: {REFUSED[name]}"
        return f"{key}: an option of Lightning's Trainer that the config does not list; +{key}=… adds it"
    where = f"in {parent}" if parent else "at the top level"
    return (
        f"{key}: there is no key {name!r} {where}.{did_you_mean(name, known)} Allowed: {', '.join(known)}. "
        f"(+{key}=… would add it.)"
    )
