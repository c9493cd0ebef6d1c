"""What all commands share: a Hydra application that reports errors as messages and writes no files itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

import asr.recipes
from asr.commands.messages import explain_error, is_explained, leave
from asr.commands.startup import advice_at_start, ended_code, importing
from asr.config.command_line import (
    MULTIRUN,
    expand_home,
    expand_short_forms,
    fill_keys,
    name_sweep,
    override_value,
    quote_non_ascii,
    refuse_dashes,
)
from asr.config.help import command_help, config_folder
from asr.config.own_code import name_origin
from asr.console import one_line
from asr.error_text import first_line
from asr.errors import LOST_PEER, ConfigError, PeerLost, silence_freed_workers
from asr.plain_data import trust
from asr.safe_io import named_path
from asr.signals import INTERRUPTED, Terminated, end_if_asked, end_with, restored_handlers
from asr.subprocesses import RUN_DIR_VARIABLE, is_first_process

FULL_ERROR = "HYDRA_FULL_ERROR"  # a variable of Hydra: exceptions are shown as they are


def run_app(command: str, task: Callable[[DictConfig], object] | None = None) -> None:
    """Compose the config of a command with the command line, and call ``task`` with it.

    Without a task, the command of that name is imported after the config was composed: its libraries take seconds.

    Exits with 2 and a message if the command line or a file is wrong, with 1 and a message if the machine or the
    training cannot continue (77 if training diverged, which its settings have caused), and with 130 after Ctrl-C. After
    another signal that ends the process: with 75 if the same command can be run again, else with 128 + the signal's
    number.
    """
    if task is not None:
        quieten()
    with restored_handlers():
        end_with(lambda: advice_at_start(command))
        try:
            _run_explained(_GuardedTask(command, task, full=FULL_ERROR in os.environ))
        except Terminated as ended:
            code = ended_code(command, ended.signal)
            if not is_first_process():
                raise SystemExit(code) from None
            leave(command, f"ended by {ended.signal.name}{ended.advice()}", code)


@dataclass
class _GuardedTask:
    """A command's task, which leaves with one message for what a user can mend.

    Attributes:
        command: its name.
        task: None for the command's own.
        full: whether errors are shown as they are.
        begun: whether the config was composed.
    """

    command: str
    task: Callable[[DictConfig], object] | None
    full: bool
    begun: bool = False

    def run(self, config: DictConfig) -> object:
        """Run the task inside Hydra's job, because Hydra comments on what leaves it."""
        # here, because an unknown key is refused without it, and pydantic takes a tenth of a second
        from asr.config.schema import check_options

        self.begun = True
        if not self.full:
            os.environ.pop(FULL_ERROR, None)  # which children would inherit
        try:
            check_options(self.command, config)
            trust(config.get("trust", ()))
            return (self.task or own_task(self.command))(config)
        except Exception as error:
            end_if_asked(error)
            if self.full or not is_explained(error):
                name_origin(error, OmegaConf.to_container(config))
                raise
            if isinstance(error, PeerLost) and RUN_DIR_VARIABLE in os.environ:
                raise SystemExit(LOST_PEER) from None  # the launcher says which process was the first to end
            lines, code = explain_error(error, self.command)
            leave(self.command, (*lines, f"({FULL_ERROR}=1 shows where this comes from.)"), code)
        finally:
            os.environ[FULL_ERROR] = "1"


def _run_explained(guarded: _GuardedTask) -> None:
    try:
        try:
            _compose_and_run(guarded)
        except Exception as error:
            end_if_asked(error)
            raise
    except Exception as error:
        if guarded.full:
            raise
        if is_explained(error):
            leave(guarded.command, *explain_error(error, guarded.command))
        if guarded.begun:
            raise
        # Hydra may raise anything if an override indexes a list, or if its own settings are invalid
        leave(guarded.command, f"the config cannot be composed: {first_line(error)}; see --cfg all")
    except KeyboardInterrupt as error:
        # a second Ctrl-C would interrupt the clean-up
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if "LOCAL_RANK" in os.environ:
            raise SystemExit(INTERRUPTED) from None  # the process that started this one says it
        leave(guarded.command, f"interrupted{error}", INTERRUPTED)


@functools.cache  # the jobs of a sweep ask again
def own_task(command: str) -> Callable[[DictConfig], object]:
    """Return what a command does, whose libraries are imported for it."""
    with restored_handlers(), importing(command):
        own: Callable[[DictConfig], object] = importlib.import_module(f"asr.commands.{command}").run
    quieten()  # only now, because Lightning sets the levels of its loggers when it is imported
    return own


def _compose_and_run(guarded: _GuardedTask) -> None:
    # a child that is started as a module would look for packages in the current folder first, unlike this process
    os.environ["PYTHONSAFEPATH"] = "1"
    command, folder = guarded.command, config_folder(guarded.command)
    primary, words = composed_from(command, sys.argv[1:], folder)
    if {"--help", "-h"} & {*words}:
        print(command_help(command, folder))
        return
    if "--version" in words:
        print(f"werdict {asr.__version__}")
        return
    if command != "train" and {*MULTIRUN} & {*words}:
        raise ConfigError("-m is for sweeps of asr-train; this command runs once")
    refuse_dashes(words)
    sys.argv[1:] = words
    with _raw_errors():
        hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(guarded.run)()


def composed_from(command: str, words: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Return the primary config and the overrides that Hydra composes for a command.

    Args:
        command: its name.
        words: of the command line.
        folder: of the command's config.
    """
    words = [quote_non_ascii(expand_home(expand_short_forms(word))) for word in fill_keys(command, words)]
    if (recipes_dir := override_value(words, "recipes_dir")) is not None:
        add_recipes(recipes_dir)
    if command != "train":
        return command, words
    words = name_sweep(words)
    if (resumed := override_value(words, "resume")) is None:
        return command, words
    # here, because the others need none of it
    from asr.config.resumed_config import CONFIG_NAME, run_folder, store_resumed

    store_resumed(run_folder(resumed), folder / f"{command}.yaml", words)
    return CONFIG_NAME, words


def add_recipes(recipes_dir: object) -> None:
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
