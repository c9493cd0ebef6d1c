"""What Hydra, OmegaConf and the operating system refuse, in one line: what, where, what was given and is allowed."""

from __future__ import annotations

import errno
import inspect
import re
import unicodedata
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from asr.cli.config.help import choices, config_folder, keys_below, used_groups
from asr.cli.config.known_keys import CLOSED
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


def explain_yaml(error: yaml.YAMLError) -> str:
    """Return in one line which file is not plain YAML, where, why, and what is allowed."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _in_one_line(str(error))
    why = _in_one_line(str(getattr(error, "problem", None) or getattr(error, "context", None)))
    return (
        f"{mark.name}: line {mark.line + 1}: {why}; allowed are keys of text, each once, and plain values: numbers, "
        "texts, true, false, null, lists and mappings of them"
    )


def explain(error: Exception, config_name: str) -> str:
    """Return what was wrong, what was given and what is allowed."""
    if isinstance(error, OverrideParseException):
        return _explain_grammar(error)
    if isinstance(error, MissingConfigException):
        wanted = error.missing_cfg_file or ""
        # names of recipes hold slashes, as groups of Hydra's do
        group, _, choice = wanted.rpartition("/") if wanted.startswith("hydra/") else wanted.partition("/")
        explained = PLUGINS.get(wanted) or explain_choice(group, choice, config_folder(config_name))
        return explained or _in_one_line(str(error).partition("Config search path")[0])
    text = _first_line(error) if isinstance(error, OmegaConfBaseException) else _in_one_line(str(error))
    if ambiguous := re.match(r"Ambiguous value for argument '(.*?)' 1\. ", text):
        return (
            f"{ambiguous[1]}: several values are a sweep, which -m asks for; a list is [a,b], a text with commas 'a,b'"
        )
    override = re.search(r"Could not override '([^']+)'", text)
    if isinstance(error, ConfigCompositionException) and override:
        return _explain_key(override.group(1), config_name)
    if isinstance(error.__cause__, OmegaConfBaseException):
        merged = re.match(r"Error merging override (.*)", text)
        text = f"{merged[1] if merged else text}: {_first_line(error.__cause__)}"
    # the whole key stands in front if OmegaConf names its last part alone
    missing = re.search(r"(?:(\S+): )?Missing mandatory value: (\S+)", text)
    if missing:
        key = missing[1] or missing[2]
        return f"{key} must be given: {key}=…"
    return text


def _first_line(error: OmegaConfBaseException) -> str:
    """Return what OmegaConf says, with the key in front, and without its lines about types of its own."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    text = re.sub(r"^field '(.+)' is not Optional$", r"\1 must not be null", text)
    text = text.replace("Cannot merge DictConfig with ListConfig", "it is a list, given a mapping")
    text = text.replace("Cannot merge ListConfig with DictConfig", "it is a mapping, given a list")
    key = getattr(error, "full_key", None)
    return f"{key}: {text}" if key and str(key) not in text else text


def _explain_grammar(error: OverrideParseException) -> str:
    said = [line for line in error.message.splitlines() if not line.startswith(("See https", "Error parsing override"))]
    # a no-break space, which chats and web pages put in, looks like any other
    odd = [unicodedata.name(char, repr(char)) for char in str(error.override) if char.isspace() and char != " "]
    why = f"it holds the character {odd[0]}" if odd else _in_one_line(" ".join(said))
    if why.startswith("LexerNoViableAltException"):  # followed by what was typed once more
        why = "a key, or a value outside quotes, has a character that is not allowed there"
        if "=~" in str(error.override):
            why = "the shell has not replaced the '~', as it stands within a word: write $HOME"
    return (
        f"{error.override}: this cannot be read as KEY=VALUE: {why}; "
        "a value with spaces or signs is quoted, as in 'KEY=\"a, b\"'"
    )


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def explain_choice(group: str, choice: str, folder: Path) -> str:
    """Return that a group has no such choice, and its choices; empty if the group does not exist."""
    known = list(choices(folder, group)) if "/" in group or (folder / group).is_dir() else []
    if not known:
        return ""
    # null asks for nothing, which some groups have a choice for
    meant = did_you_mean("none", {"none"} & {*known}) if choice == "null" else did_you_mean(choice, known)
    return f"{group}={choice}: there is no such {group}.{meant} Allowed: {', '.join(known)}."


def _explain_key(key: str, config_name: str) -> str:
    if "@" in key:
        return f"{key}: '@' puts a group at another place, which only the defaults of a recipe may do; remove it"
    parent, _, name = key.rpartition(".")
    if key.startswith("hydra."):
        return f"{key}: Hydra has no such setting; --cfg hydra shows all"
    folder = config_folder(config_name)
    if not parent and (folder / key).is_dir() and key not in (used := used_groups(config_name, folder)):
        return f"{key}: asr-{config_name} has no group {key}. Its groups: {', '.join(used) or 'none'}."
    known = keys_below(config_name, folder, parent)
    if known is None and parent in used_groups(config_name, folder):
        allowed = ", ".join(choices(folder, parent))
        return f"{key}: this needs {parent}=… too, of which none is chosen. Allowed: {allowed}."
    if known is None:
        return _explain_key(parent, config_name) if parent else f"{key}: there is no such key"
    if parent == "trainer":
        # imported here, because it takes seconds, and other keys need none of it
        from lightning.pytorch import Trainer

        from asr.cli.builders.trainer import REFUSED

        if name in REFUSED:
            return f"{key} cannot be given: {REFUSED[name]}"
        if name in inspect.signature(Trainer).parameters:
            return f"{key}: an option of Lightning's Trainer that the config does not list; +{key}=… adds it"
    if name in known:
        inside = keys_below(config_name, folder, key) or []
        return (
            f"{key}: the given mapping has a key that {key} lacks; ++{key}.KEY=… adds it. It has: "
            f"{', '.join(inside) or 'none'}."
        )
    where = f"in {parent}" if parent else "at the top level"
    advice = "" if parent in CLOSED else f" (+{key}=… would add it.)"
    allowed = ", ".join(known) or "none"
    return f"{key}: there is no key {name!r} {where}.{did_you_mean(name, known)} Allowed: {allowed}.{advice}"
