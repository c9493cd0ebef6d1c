"""Judges speech recognition: error rates, readers of any toolkit's results, statistics and reports, without torch.

Names are imported when they are first used.

Examples:
    >>> import werdict
    >>> round(werdict.wer(["one two three", "four"], ["one too three", "four"]), 2)
    0.25
    >>> found = werdict.compare("results.csv")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from werdict.errors import ConfigError as ConfigError
    from werdict.from_python import ComparedResults as ComparedResults
    from werdict.from_python import compare_results as compare  # noqa: F401
    from werdict.scoring import cer as cer
    from werdict.scoring import wer as wer

_HOMES = {
    "ComparedResults": ("werdict.from_python", "ComparedResults"),
    "ConfigError": ("werdict.errors", "ConfigError"),
    "cer": ("werdict.scoring", "cer"),
    "compare": ("werdict.from_python", "compare_results"),
    "wer": ("werdict.scoring", "wer"),
}
__all__ = tuple(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'werdict' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
