"""What a command says when it ends with an error: one message, without a traceback, and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from asr.config.help import choices, config_folder
from asr.config.own_code import is_of_foreign_code, is_raised_by_us
from asr.console import one_line
from asr.errors import (
    DIVERGED,
    MORE_MEMORY,
    TOO_MANY_FILES,
    ConfigError,
    Diverged,
    RunFailed,
    did_you_mean,
    first_line,
    is_out_of_memory,
    memory_error,
    remedy,
)
from asr.plain_data import flatten

# configs that Hydra's plugins bring along
PLUGINS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
# refused because of the name that was given, and not of the state of the machine
OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)
# what options of other programs are called here
NAMES = {
    **{"batch_size": "batch.max_duration_s", "learning_rate": "lr", "epochs": "max_epochs", "num_epochs": "max_epochs"},
    **{"gpus": "devices", "num_gpus": "devices", "steps": "max_steps", "num_steps": "max_steps"},
}
FIXED = ("data", "augment")  # groups that take no further keys


def is_explained(error: Exception) -> bool:
    """Return whether a message says what a user can mend; errors of other people's code are shown as they are."""
    if isinstance(error, ConfigError | RunFailed | HydraException | OmegaConfBaseException | yaml.YAMLError):
        return True
    is_ours = isinstance(error, ValueError) and is_raised_by_us(error)
    return (is_ours or isinstance(error, OSError) or is_out_of_memory(error)) and not is_of_foreign_code(error)


def explain_error(error: Exception, command: str) -> tuple[list[str], int]:
    """Return the lines that tell of an error, its notes after the first, and the exit code."""
    message, code = _message(error, command)
    return [message, *getattr(error, "__notes__", ())], code


def _message(error: Exception, command: str) -> tuple[str, int]:
    # if memory runs out, Hydra reports a class that cannot be found, and OmegaConf adds a key to MemoryError
    lacking = memory_error(error) if isinstance(error, HydraException | MemoryError) else error
    if lacking is not None and is_out_of_memory(lacking) and not isinstance(error, ValueError | RunFailed):
        return f"out of memory: {first_line(lacking)}; {MORE_MEMORY}", 1
    # Hydra's error about a missing config is an OSError too
    if isinstance(error, OmegaConfBaseException | HydraException):
        return _explain_config(error, command), 2
    if isinstance(error, OSError):
        return _explain_os_error(error)
    if isinstance(error, RunFailed):
        return str(error), DIVERGED if isinstance(error, Diverged) else 1
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
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, *TOO_MANY_FILES):
        return f"{message}; {remedy(error)}, then run the same command again, or resume=RUN if the run had begun", 1
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
        text, key = first_line(cause), str(cause.full_key or "")
        return text if key in text else f"{key}: {text}"
    return " ".join(str(error).split())


def _explain_choice(error: MissingConfigException, config_path: str, command: str) -> str:
    # names of recipes hold slashes, as groups of Hydra's do
    group, _, choice = config_path.rpartition("/") if config_path.startswith("hydra/") else config_path.partition("/")
    if group == "hydra/launcher" and choice in PLUGINS:
        return f"{group}: the plugin for {choice} is not installed: pip install 'werdict[{PLUGINS[choice]}]'"
    allowed = error.options or [*choices(config_folder(command), group)]
    corpora = {name.partition("/")[0] for name in allowed if "/" in name}
    meant = "" if choice in corpora else did_you_mean(choice, corpora) or did_you_mean(choice, allowed)
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
    suffix = f".{NAMES.get(name, name)}"
    same = [leaf for leaf in leaves if f".{leaf}".endswith(suffix) and not leaf.startswith("hydra.")]
    meant = f" Did you mean {', '.join(same)}?" if same else did_you_mean(name, allowed)
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
