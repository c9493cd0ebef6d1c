"""What all commands share: a Hydra application that reports errors as messages and writes no files itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import asr.recipes
from asr.cli.__main__ import INTERRUPTED, RUN_DIR_VARIABLE, advice_at_start, ended_code, importing
from asr.cli.builders.own_code import name_origin, trust
from asr.cli.config.effects import check_effects, check_no_sweep, check_scorers
from asr.cli.config.flags import check_shown, typed_overrides
from asr.cli.config.help import command_help, config_folder
from asr.cli.config.hydra_guard import check_hydra
from asr.cli.config.known_keys import check_known
from asr.cli.config.options import GROUPS, PLACE, check_options
from asr.cli.config.resuming import CONFIG_NAME, resumed_folder, store_resumed, typed_value
from asr.cli.config.words import (
    SEARCHPATH,
    check_bounds,
    check_words,
    expand_shorthands,
    flags_first,
    name_sweep,
    quote_non_ascii,
    searchpath,
    typed_places,
)
from asr.cli.errors import ConfigError
from asr.cli.messages import explain_error, is_explained, leave
from asr.console import one_line
from asr.error_text import first_line
from asr.errors import LOST_PEER, PeerLost, silence_freed_workers
from asr.safe_io import named_path
from asr.signals import Terminated, end_if_asked, end_with, restored_handlers
from asr.subprocesses import is_first_process

FULL_ERROR = "HYDRA_FULL_ERROR"  # a variable of Hydra: exceptions are shown as they are
TOLERANCE = "LHOTSE_AUDIO_DURATION_MISMATCH_TOLERANCE"  # which lhotse reads at each recording

_links = contextlib.ExitStack()  # closes by removing the folder that leads to recipes_dir


def run_app(config_name: str, task: Callable[[DictConfig], object] | None = None) -> None:
    """Compose the config named ``config_name`` with the command line, and call ``task`` with it.

    Without a task, the command of that name is imported after its command line was checked: its libraries take seconds.

    Exits with 2 and a message if the command line or a file is wrong, with 1 and a message if the machine or the
    training cannot continue (77 if training diverged, which its settings have caused), and with 130 after Ctrl-C. After
    another signal that ends the process: with 75 if the same command can be run again, else with 128 + the signal's
    number.
    """
    if task is not None:
        quieten()
    flags_first(sys.argv)
    expand_shorthands(sys.argv)
    quote_non_ascii(sys.argv)
    if config_name == "train":
        name_sweep(sys.argv)
    with restored_handlers():
        end_with(lambda: advice_at_start(config_name))
        try:
            _run_explained(config_name, task)
        except Terminated as ended:
            code = ended_code(config_name, ended.signal)
            if not is_first_process():
                raise SystemExit(code) from None
            leave(config_name, f"ended by {ended.signal.name}{ended.advice()}", code)


@dataclass
class _GuardedTask:
    """A command's task, which leaves with one message for what a user can mend.

    Attributes:
        config_name: the command.
        task: None for the command's own.
        full: whether errors are shown as they are.
        begun: whether the config was composed.
    """

    config_name: str
    task: Callable[[DictConfig], object] | None
    full: bool
    begun: bool = False

    def run(self, config: DictConfig) -> object:
        """Run the task inside Hydra's job, because Hydra comments on what leaves it."""
        self.begun = True
        if not self.full:
            os.environ.pop(FULL_ERROR, None)  # which children would inherit
        try:
            _check(self.config_name, config)
            trust(config.get("trust", ()))
            return (self.task or own_task(self.config_name))(config)
        except Exception as error:
            end_if_asked(error)
            if self.full or not is_explained(error):
                name_origin(error, OmegaConf.to_container(config))
                raise
            if isinstance(error, PeerLost) and RUN_DIR_VARIABLE in os.environ:
                raise SystemExit(LOST_PEER) from None  # the launcher says which process was the first to end
            lines, code = explain_error(error, self.config_name)
            leave(self.config_name, (*lines, f"({FULL_ERROR}=1 shows where this comes from.)"), code)
        finally:
            os.environ[FULL_ERROR] = "1"


def _run_explained(config_name: str, task: Callable[[DictConfig], object] | None) -> None:
    guarded = _GuardedTask(config_name, task, full=FULL_ERROR in os.environ)
    try:
        try:
            _compose_and_run(config_name, guarded.run)
        except Exception as error:
            end_if_asked(error)
            raise
    except RecursionError:
        if guarded.full:
            raise
        leave(config_name, "the configs are nested too deeply, or refer to each other without end")
    except Exception as error:
        if guarded.full:
            raise
        if is_explained(error):
            leave(config_name, *explain_error(error, config_name))
        if guarded.begun:
            raise
        # Hydra may raise anything if an override indexes a list, or if its own settings are invalid
        leave(config_name, f"what was typed cannot be composed: {first_line(error)}; see --cfg all")
    except KeyboardInterrupt as error:
        # a second Ctrl-C would interrupt the clean-up
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if "LOCAL_RANK" in os.environ:
            raise SystemExit(INTERRUPTED) from None  # the process that started this one says it
        leave(config_name, "interrupted" + (f"; {error}" if str(error) else ""), INTERRUPTED)


def _check(config_name: str, config: DictConfig) -> None:
    check_known(config_name, config_folder(config_name), config)
    check_options(config_name, config)
    if config_name == "train":
        check_effects(config, HydraConfig.get())
    else:
        check_no_sweep(config_name, HydraConfig.get())
    check_scorers(config, HydraConfig.get().overrides.task)


@functools.cache  # the jobs of a sweep ask again
def own_task(command: str) -> Callable[[DictConfig], object]:
    """Return what a command does, whose libraries are imported for it."""
    with restored_handlers(), importing(command, clear=_links.close):
        own: Callable[[DictConfig], object] = importlib.import_module(f"asr.cli.{command}").run
    quieten()  # only now, because Lightning sets the levels of its loggers when it is imported
    return own


def _compose_and_run(config_name: str, task: Callable[[DictConfig], object]) -> None:
    _check_environment()
    # no child may import from the current folder, which may be somebody else's
    os.environ["PYTHONSAFEPATH"] = "1"
    with _raw_errors(), _external_recipes(sys.argv):
        folder, primary = config_folder(config_name), config_name
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(command_help(config_name, folder))
            return
        if "--version" in sys.argv[1:]:
            print(f"werdict {version('werdict')}")
            return
        if {"-sc", "--shell-completion"} & set(sys.argv[1:]):
            hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(task)()
            return
        may_sweep = config_name == "train"
        words = typed_overrides(sys.argv, may_sweep)
        check_words(words, folder, removable=() if config_name in ("train", "prepare") else GROUPS)
        resumed = resumed_folder(words) if config_name == "train" else None
        if resumed is not None:
            store_resumed(resumed, folder / f"{config_name}.yaml", words)
            primary = CONFIG_NAME
        mode = check_hydra(primary, folder, words, may_sweep)
        check_shown(primary, folder, sys.argv, words)
        with _known_mode(mode):
            hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(task)()


def _check_environment() -> None:
    given = os.environ.get(TOLERANCE, "0.5")
    with contextlib.suppress(ValueError):
        if 0 <= float(given) < math.inf:
            return
    raise ConfigError(
        f"the variable {TOLERANCE} must be a number of seconds of at least 0, given {given!r}; correct or unset it"
    )


def quieten() -> None:
    """Silence warnings of libraries about deliberate choices, and what our last line repeats; wait less for wandb."""
    silence_freed_workers()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    warnings.filterwarnings("ignore", message=".*when using `ckpt_path`.*")  # a callback that was taken out since
    # every process logs the same numbers: they were gathered before
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
    # its advice is for scripts of its own; trainer=slurm is ours
    warnings.filterwarnings("ignore", message="The `srun` command is available")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_INIT_TIMEOUT", "30")  # seconds; an unreachable server is reported before training


@contextlib.contextmanager
def _raw_errors() -> Iterator[None]:
    """Let Hydra raise its exceptions, instead of printing them and exiting."""
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        yield
    finally:
        os.environ.pop(FULL_ERROR, None)
        if before is not None:
            os.environ[FULL_ERROR] = before


@contextlib.contextmanager
def _known_mode(mode: RunMode | None) -> Iterator[None]:
    """Tell Hydra ``hydra.mode``, for which alone it would compose the config one more time: half of what it takes."""
    before = Hydra.get_mode
    Hydra.get_mode = lambda *_, **__: mode  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = before  # type: ignore[method-assign]


@contextlib.contextmanager
def _external_recipes(argv: list[str]) -> Iterator[None]:
    """Make ``recipes_dir=PATH`` a place where recipes and their prepare functions are found.

    Hydra searches groups below a folder, so the recipes are linked as the group ``recipe`` of a temporary one.
    """
    words = [word for word in argv[1:] if word.startswith("recipes_dir=")]
    check_bounds(argv[1:])
    given = typed_value(words, "recipes_dir")
    if given is None:
        yield
        return
    if not PLACE.fits(given):
        raise ConfigError(f"{words[-1]}: recipes_dir must be the name of one folder")
    path = named_path(given).resolve()
    if not path.is_dir():
        raise ConfigError(f"recipes_dir: there is no folder {str(path)!r}")
    if is_first_process():
        print(f"recipes_dir: runs the Python code in {one_line(str(path))}; name only what you trust", flush=True)
    asr.recipes.__path__.append(str(path))
    with _links:
        folder = _links.enter_context(tempfile.TemporaryDirectory())
        (Path(folder) / "recipe").symlink_to(path)
        # Hydra uses only one list of places
        places = [folder, *typed_places(argv[1:])]
        argv[1:] = [word for word in argv[1:] if not word.startswith(SEARCHPATH)]
        # next to another override, because argparse reads overrides from one piece of the line only
        argv.insert(argv.index(words[-1]), searchpath(places))
        yield
