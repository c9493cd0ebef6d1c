"""What a command says when it ends with an error: one message, without a traceback, and an exit code."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

import asr
from asr import processes
from asr.commands.startup import advice_at_start, ended_code, importing
from asr.run.command_line import MULTIRUN, choices, command_help, config_folder, refuse_dashes
from asr.run.compose import Composed, composed_from
from asr.run.trust import is_of_third_party_code, is_raised_by_us, name_origin
from werdict import errors
from werdict.console import one_line
from werdict.files import flatten, trust

# configs that Hydra's plugins bring along
PLUGINS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
# refused because of the name that was given, and not of the state of the machine
OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)
FIXED = ("data", "augment")  # groups that take no further keys


def is_explained(error: Exception) -> bool:
    """Return whether a message says what a user can mend; errors of other people's code are shown as they are."""
    if isinstance(
        error, errors.ConfigError | errors.RunFailed | HydraException | OmegaConfBaseException | yaml.YAMLError
    ):
        return True
    is_ours = isinstance(error, ValueError) and is_raised_by_us(error)
    return (is_ours or isinstance(error, OSError) or errors.is_out_of_memory(error)) and not is_of_third_party_code(
        error
    )


def explain_error(error: Exception, command: str) -> tuple[list[str], int]:
    """Return the lines that tell of an error, its notes after the first, and the exit code."""
    message, code = _message(error, command)
    return [message, *getattr(error, "__notes__", ())], code


def _message(error: Exception, command: str) -> tuple[str, int]:
    # if memory runs out, Hydra reports a class that cannot be found, and OmegaConf adds a key to MemoryError
    lacking = errors.memory_error(error) if isinstance(error, HydraException | MemoryError) else error
    if (
        lacking is not None
        and errors.is_out_of_memory(lacking)
        and not isinstance(error, ValueError | errors.RunFailed)
    ):
        return f"out of memory: {errors.first_line(lacking)}; {errors.MORE_MEMORY}", 1
    # Hydra's error about a missing config is an OSError too
    if isinstance(error, OmegaConfBaseException | HydraException):
        return _explain_config(error, command), 2
    if isinstance(error, OSError):
        return _explain_os_error(error)
    if isinstance(error, errors.RunFailed):
        return str(error), errors.DIVERGED if isinstance(error, errors.Diverged) else 1
    return str(error), 2


def _explain_os_error(error: OSError) -> tuple[str, int]:
    """Return what the operating system refused, in a line, and the exit code: 2 if another name would help."""
    if error.errno == errno.EPIPE:
        # Python would fail again when it flushes the rest at its end
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return "the program that read the output has ended", 1
    where = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    message = f"{error.strerror or error}" + (f": {where}" if where else "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, *errors.TOO_MANY_FILES):
        return (
            f"{message}; {errors.remedy(error)}, then run the same command again, or resume=RUN if the run had begun",
            1,
        )
    return message, 2 if error.errno in OF_NAMES or isinstance(error, FileExistsError) else 1


def _explain_config(error: Exception, command: str) -> str:
    """Return what Hydra or OmegaConf says, with the nearest name for an unknown key or choice."""
    if isinstance(error, OverrideParseException):
        return f"{error.override}: options are given as KEY=VALUE; quote values with spaces or signs: 'KEY=\"a, b\"'"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_choice(error, error.missing_cfg_file, command)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        return _explain_key(str(cause.full_key), str(cause.key), cause.parent_node, command)
    if isinstance(cause, OmegaConfBaseException):
        text, key = errors.first_line(cause), str(cause.full_key or "")
        return text if key in text else f"{key}: {text}"
    return " ".join(str(error).split())


def _explain_choice(error: MissingConfigException, config_path: str, command: str) -> str:
    # names of recipes hold slashes, as groups of Hydra's do
    group, _, choice = config_path.rpartition("/") if config_path.startswith("hydra/") else config_path.partition("/")
    if group == "hydra/launcher" and choice in PLUGINS:
        return f"{group}: the plugin for {choice} is not installed: pip install 'werdict[{PLUGINS[choice]}]'"
    allowed = error.options or [*choices(config_folder(command), group)]
    corpora = {name.partition("/")[0] for name in allowed if "/" in name}
    meant = "" if choice in corpora else errors.did_you_mean(choice, corpora) or errors.did_you_mean(choice, allowed)
    shown = {corpus for corpus in corpora if f"{corpus!r}" in f"{meant}{choice!r}"}  # whose recipes alone are listed
    named = [name for name in allowed if name.partition("/")[0] in shown]
    return f"{group}={choice}: there is no such {group}.{meant} Allowed: {', '.join(named or allowed)}."


def _explain_key(key: str, name: str, parent: DictConfig, command: str) -> str:
    allowed = [str(child) for child in parent if not str(child).startswith("_")]
    if key == name and (choosable := choices(config_folder(command), key)):
        return f"{key}: nothing is chosen; give {key}=…. Allowed: {', '.join(choosable)}."
    where = f"in {key.rpartition('.')[0]}" if "." in key else "at the top level"
    # elsewhere in the config, or under the name that it has here
    leaves = flatten(OmegaConf.to_container(parent._get_root(), resolve=False))
    suffix = f".{errors.NAMES.get(name, name)}"
    same = [leaf for leaf in leaves if f".{leaf}".endswith(suffix) and not leaf.startswith("hydra.")]
    meant = f" Did you mean {', '.join(same)}?" if same else errors.did_you_mean(name, allowed)
    is_free = "." in key and key.partition(".")[0] not in FIXED
    return (
        f"{key}: there is no key {name!r} {where}.{meant} Allowed: {', '.join(allowed) or 'none'}."
        f"{f' (+{key}=… adds it.)' if is_free else ''}"
    )


def leave(command: str, lines: Sequence[str], code: int = 2) -> NoReturn:
    """Print lines and exit; ends of lines in one are escapes, because it may be of a stranger's file."""
    # standard error may be closed, or a pipe that nobody reads any more
    with contextlib.suppress(OSError):
        print(f"asr-{command}:", "\n".join(map(one_line, lines)), file=sys.stderr, flush=True)
    raise SystemExit(code)


WITH_WORDS = ("train", "prepare")  # commands that ask which options the user has given
FULL_ERROR = "HYDRA_FULL_ERROR"  # a variable of Hydra: exceptions are shown as they are


def run_app(command: str, task: Callable[[Any], object] | None = None) -> None:
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
    with processes.restored_handlers():
        processes.end_with(lambda: advice_at_start(command))
        try:
            with processes.signals_first():
                app.compose_and_run()
        except processes.Terminated as ended:
            code = ended_code(command, ended.signal)
            if not processes.is_first_process():
                raise SystemExit(code) from None
            leave(command, [f"ended by {ended.signal.name}{ended.advice()}"], code)
        except KeyboardInterrupt as error:
            # a second Ctrl-C would interrupt the clean-up
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if "LOCAL_RANK" in os.environ:
                raise SystemExit(processes.INTERRUPTED) from None  # the process that started this one says it
            leave(command, [f"interrupted{error}"], processes.INTERRUPTED)
        except Exception as error:
            if app.is_full or (app.has_composed and not is_explained(error)):
                raise
            if is_explained(error):
                leave(command, *explain_error(error, command))
            # Hydra may raise anything if an override indexes a list, or if its own settings are invalid
            leave(command, [f"the config cannot be composed: {errors.first_line(error)}; see --cfg all"])


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
    task: Callable[[Any], object] | None
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
            raise errors.ConfigError("-m is for sweeps of asr-train; this command runs once")
        refuse_dashes(arguments)
        sys.argv[1:] = arguments
        with _full_error(True):  # Hydra would print errors, and exit
            hydra.main(version_base="1.3", config_path=str(folder), config_name=primary)(self.run)()

    def run(self, config: DictConfig) -> object:
        """Run the task, and leave with a message here, because Hydra comments on exceptions that leave a job."""
        self.has_composed = True
        try:
            with _full_error(self.is_full), processes.signals_first():
                composed = Composed.of(self.command, config, HydraConfig.get())
                options = composed.options
                trust(getattr(options, "trust", ()))
                task = self.task or own_task(self.command, "wandb" in (getattr(options, "logger", None) or {}))
                return task(composed if self.command in WITH_WORDS else options)
        except Exception as error:
            if self.is_full or not is_explained(error):
                name_origin(error, OmegaConf.to_container(config))
                raise
            if isinstance(error, errors.PeerLost) and processes.RUN_DIR_VARIABLE in os.environ:
                raise SystemExit(errors.LOST_PEER) from None  # the launcher says which process was the first to end
            lines, code = explain_error(error, self.command)
            leave(self.command, [*lines, f"({FULL_ERROR}=1 shows where this comes from.)"], code)


@functools.cache  # the jobs of a sweep ask again
def own_task(command: str, uses_wandb: bool = False) -> Callable[[Any], object]:
    """Return what a command does, whose libraries are imported for it."""
    with processes.restored_handlers(), importing(command):
        if uses_wandb:
            # what wandb.init imports anyway: pydantic finds the docstrings of its classes by walking through all loaded
            # modules, which takes 0.2 s of CPU time now, and 1.5 s after torch (wandb 0.31)
            importlib.import_module("wandb.sdk.launch")
        task: Callable[[Any], object] = importlib.import_module(f"asr.commands.{command}").run
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
