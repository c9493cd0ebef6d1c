"""Errors that are the user's to mend: shown as a message, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A configured value that cannot work; the message names the key, what was given and what is allowed."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'lr'?``, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
