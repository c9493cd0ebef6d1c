"""What a command says when it ends with an error: one message, without a traceback, and an exit code."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from asr.cli.builders.own_code import is_of_foreign_code, is_raised_by_us
from asr.cli.config.explanations import explain, explain_os_error
from asr.cli.errors import ConfigError
from asr.console import one_line
from asr.error_text import MORE_MEMORY, caused_by_memory, first_line, is_out_of_memory
from asr.errors import DIVERGED, Diverged, RunFailed

MAX_MESSAGE = 5000  # characters; a file may hold names without end
LONGEST = 400  # characters without a space that are shown whole


def is_explained(error: Exception) -> bool:
    """Return whether a message says what a user can mend; errors of other people's code are shown as they are."""
    if isinstance(error, ConfigError | RunFailed | HydraException | OmegaConfBaseException | yaml.YAMLError):
        return True
    if is_of_foreign_code(error):
        return False
    is_ours = isinstance(error, ValueError) and is_raised_by_us(error)
    return is_ours or isinstance(error, OSError) or is_out_of_memory(error)


def explain_error(error: Exception, config_name: str) -> tuple[tuple[str, ...], int]:
    """Return the lines that tell of an error, its notes after the first, and the exit code."""
    message, code = _message(error, config_name)
    return (message, *getattr(error, "__notes__", ())), code


def _message(error: Exception, config_name: str) -> tuple[str, int]:
    # if memory runs out, Hydra reports a class that cannot be found, and OmegaConf adds a key to MemoryError
    if isinstance(error, HydraException | MemoryError) and caused_by_memory(error):
        return f"out of memory while the config was composed; {MORE_MEMORY}", 1
    # Hydra's error about a missing config is an OSError too
    if isinstance(error, OmegaConfBaseException | HydraException):
        return explain(error, config_name), 2
    if is_out_of_memory(error) and not isinstance(error, ValueError | RunFailed):
        return f"out of memory: {first_line(error)}; {MORE_MEMORY}", 1
    if isinstance(error, OSError):
        return explain_os_error(error)
    if isinstance(error, UnicodeEncodeError) and error.encoding == "ascii":
        shown = error.object[max(0, error.start - 40) : error.end + 40]
        how = "unset PYTHONIOENCODING" if "PYTHONIOENCODING" in os.environ else "set LC_ALL=C.UTF-8"
        return f"{shown!r} cannot be written by this process, whose locale or encoding is not UTF-8; {how}", 2
    if isinstance(error, Diverged):
        return str(error), DIVERGED
    return str(error), 1 if isinstance(error, RunFailed) else 2


def leave(config_name: str, message: str | Sequence[str], code: int = 2) -> NoReturn:
    """Print a line, or several, and exit; ends of lines in one are escapes, because it may be of a stranger's file."""
    # standard error may be closed, or a pipe that nobody reads any more
    with contextlib.suppress(OSError):
        # the beginning of a word of thousands of characters says enough
        text = "\n".join(map(one_line, [message] if isinstance(message, str) else message))
        text = re.sub(rf"\S{{{LONGEST},}}", lambda word: f"{word[0][:200]}…{word[0][-50:]}", text)
        shown = text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text)} characters)"
        print(f"asr-{config_name}: {shown}", file=sys.stderr, flush=True)
    raise SystemExit(code)
