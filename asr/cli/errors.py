"""Errors that the user can correct: shown as a message, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ConfigError(ValueError):
    """A configured value that cannot work; the message names the key, what was given and what is allowed."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'lr'?``, or an empty text if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def shortened(path: Path) -> str:
    """Return the quoted name of a file or folder for a message, without the middle of a long one."""
    text = str(path)
    return repr(text if len(text) <= 100 else f"{text[:60]}…{text[-30:]}")
