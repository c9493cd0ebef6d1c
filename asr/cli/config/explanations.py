"""What Hydra, OmegaConf and the operating system refuse, in one line: what, where, what was given and is allowed."""

from __future__ import annotations

import errno

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from asr.cli.config.help import choices, config_folder
from asr.cli.errors import did_you_mean
from asr.errors import TOO_MANY_FILES, remedy

# configs that Hydra's plugins bring along
PLUGINS = {
    f"hydra/launcher/{name}": f"hydra/launcher: the plugin for {name} is not installed: pip install 'werdict[{extra}]'"
    for name, extra in (("submitit_slurm", "slurm"), ("submitit_local", "slurm"), ("ray", "ray"))
}


def explain_os_error(error: OSError) -> tuple[str, int]:
    """Return what the operating system refused, in a line, and the exit code.

    1 if the machine's state is the reason, 2 if another name on the command line would help.
    """
    where = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    message = f"{error.strerror or error}" + (f": {where}" if where else "")
    if not where and error.errno == errno.ENOENT:
        return "the current folder no longer exists; change to one that does", 2
    if not where and error.errno == errno.ENOSPC:
        message += " (standard output, or a file that the system does not name)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, *TOO_MANY_FILES):
        again = "then run the same command again (into another folder if it named one)"
        return f"{message}; {remedy(error)}, {again}, or resume=RUN for a run that had begun", 1
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
        return f"{message}; name another file or folder", 2
    if isinstance(error, FileExistsError):  # our own, which says what to do
        return message, 2
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{message}; it may not be written or read here: name another folder, or change its permissions", 1
    if error.errno == errno.EPIPE:
        return "the program that read the output has ended", 1
    return f"{message}; the machine could not do it", 1


def explain(error: Exception, command: str) -> str:
    """Return what Hydra or OmegaConf says, with the nearest name for an unknown key or choice."""
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: this cannot be read as KEY=VALUE; a value with spaces or signs is quoted, as in "
            "'KEY=\"a, b\"'"
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_choice(error, error.missing_cfg_file, command)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        return _explain_key(str(cause.full_key), str(cause.key), cause.parent_node, command)
    if isinstance(cause, OmegaConfBaseException):
        text, key = str(cause).partition("\n")[0], str(cause.full_key or "")
        return text if key in text else f"{key}: {text}"
    return " ".join(str(error).split())


def _explain_choice(error: MissingConfigException, wanted: str, command: str) -> str:
    if wanted in PLUGINS:
        return PLUGINS[wanted]
    # names of recipes hold slashes, as groups of Hydra's do
    group, _, choice = wanted.rpartition("/") if wanted.startswith("hydra/") else wanted.partition("/")
    known = error.options or [*choices(config_folder(command), group)]
    return f"{group}={choice}: there is no such {group}.{did_you_mean(choice, known)} Allowed: {', '.join(known)}."


def _explain_key(key: str, name: str, parent: DictConfig, command: str) -> str:
    known = [str(one) for one in parent if not str(one).startswith("_")]
    if key == name and (choosable := choices(config_folder(command), key)):
        return f"{key}: none is chosen; {key}=… chooses one. Allowed: {', '.join(choosable)}."
    where = f"in {key.rpartition('.')[0]}" if "." in key else "at the top level"
    return (
        f"{key}: there is no key {name!r} {where}.{did_you_mean(name, known)} Allowed: {', '.join(known) or 'none'}. "
        f"(+{key}=… adds it.)"
    )
