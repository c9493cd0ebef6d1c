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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import hydra
from omegaconf import DictConfig, OmegaConf

import asr
from asr.commands.messages import explain_error, is_explained, leave
from asr.commands.startup import advice_at_start, ended_code, importing
from asr.config.command_line import MULTIRUN, refuse_dashes
from asr.config.compose import composed_from
from asr.config.help import command_help, config_folder
from asr.config.own_code import name_origin
from asr.errors import LOST_PEER, ConfigError, PeerLost, first_line
from asr.plain_data import trust
from asr.processes import (
    INTERRUPTED,
    RUN_DIR_VARIABLE,
    Terminated,
    end_with,
    is_first_process,
    restored_handlers,
    signals_first,
)

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
    app = _App(command, task, is_full=FULL_ERROR in os.environ)
    with restored_handlers():
        end_with(lambda: advice_at_start(command))
        try:
            with signals_first():
                app.compose_and_run()
        except Terminated as ended:
            code = ended_code(command, ended.signal)
            if not is_first_process():
                raise SystemExit(code) from None
            leave(command, [f"ended by {ended.signal.name}{ended.advice()}"], code)
        except KeyboardInterrupt as error:
            # a second Ctrl-C would interrupt the clean-up
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if "LOCAL_RANK" in os.environ:
                raise SystemExit(INTERRUPTED) from None  # the process that started this one says it
            leave(command, [f"interrupted{error}"], INTERRUPTED)
        except Exception as error:
            if app.is_full or (app.has_composed and not is_explained(error)):
                raise
            if is_explained(error):
                leave(command, *explain_error(error, command))
            # Hydra may raise anything if an override indexes a list, or if its own settings are invalid
            leave(command, [f"the config cannot be composed: {first_line(error)}; see --cfg all"])


@dataclass
class _App:
    """A command as an application of Hydra.

    Attributes:
        command: its name.
        task: None for the command's own.
        is_full: whether errors are shown as they are.
        has_composed: whether the config was composed.
    """

    command: str
    task: Callable[[DictConfig], object] | None
    is_full: bool
    has_composed: bool = False

    def compose_and_run(self) -> None:
        """Let Hydra compose the config, and run the task, or print the help or the version."""
        # a child that is started as a module would look for packages in the current folder first, unlike this process
        os.environ["PYTHONSAFEPATH"] = "1"
        folder = config_folder(self.command)
        primary, arguments = composed_from(self.command, sys.argv[1:], folder)
        if {"--help", "-h"} & {*arguments}:
            print(command_help(self.command, folder))
            return
        if "--version" in arguments:
            print(f"werdict {asr.__version__}")
            return
        if self.command != "train" and {*MULTIRUN} & {*arguments}:
            raise ConfigError("-m is for sweeps of asr-train; this command runs once")
        refuse_dashes(arguments)
        sys.argv[1:] = arguments
        with _full_error(True):  # Hydra would print errors, and exit
            hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(self.run)()

    def run(self, config: DictConfig) -> object:
        """Run the task, and leave with a message here, because Hydra comments on exceptions that leave a job."""
        # here, because an unknown key is refused without it, and pydantic takes a tenth of a second
        from asr.config.schema import check_options

        self.has_composed = True
        try:
            with _full_error(self.is_full), signals_first():
                check_options(self.command, config)
                trust(config.get("trust", ()))
                return (self.task or own_task(self.command))(config)
        except Exception as error:
            if self.is_full or not is_explained(error):
                name_origin(error, OmegaConf.to_container(config))
                raise
            if isinstance(error, PeerLost) and RUN_DIR_VARIABLE in os.environ:
                raise SystemExit(LOST_PEER) from None  # the launcher says which process was the first to end
            lines, code = explain_error(error, self.command)
            leave(self.command, [*lines, f"({FULL_ERROR}=1 shows where this comes from.)"], code)


@functools.cache  # the jobs of a sweep ask again
def own_task(command: str) -> Callable[[DictConfig], object]:
    """Return what a command does, whose libraries are imported for it."""
    with restored_handlers(), importing(command):
        task: Callable[[DictConfig], object] = importlib.import_module(f"asr.commands.{command}").run
    quieten()  # only now, because Lightning sets the levels of its loggers when it is imported
    return task


def quieten() -> None:
    """Silence warnings of libraries about deliberate choices, and what our last line repeats; wait less for wandb."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
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
def _full_error(is_full: bool) -> Iterator[None]:
    """Set Hydra's variable, or clear it: children inherit it."""
    before = os.environ.pop(FULL_ERROR, None)
    if is_full:
        os.environ[FULL_ERROR] = "1"
    try:
        yield
    finally:
        os.environ.pop(FULL_ERROR, None)
        if before is not None:
            os.environ[FULL_ERROR] = before
