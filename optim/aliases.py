"""HeavyBall's names of the optimizers, each one of our classes, or one of them with options set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from optim.adamw import AdamW
from optim.adopt import ADOPT
from optim.composable import Composable
from optim.laprop import LaProp
from optim.rmsprop import RMSprop

# name -> class, and the options that differ from its defaults; names that are our own need no row
TABLE: Mapping[str, tuple[type[Composable], Mapping[str, Any]]] = {
    "ForeachAdamW": (AdamW, {}),
    "ForeachRMSprop": (RMSprop, {}),
    "ForeachADOPT": (ADOPT, {}),
    "ForeachLaProp": (LaProp, {}),
}


def with_options(name: str, optimizer: type[Composable], options: Mapping[str, Any]) -> type[Composable]:
    """Return a class with other defaults, which users may replace in turn; the class itself without options."""
    if not options:
        return optimizer

    @wraps(optimizer.__init__)
    def init(self: Composable, params: Any, *args: Any, **given: Any) -> None:
        optimizer.__init__(self, params, *args, **{**options, **given})

    summary = f"`{optimizer.__name__}` with {', '.join(f'{key}={value!r}' for key, value in options.items())}."
    # the module: pickle looks a class up there, and configs build classes of this package alone
    return type(name, (optimizer,), {"__init__": init, "__doc__": summary, "__module__": __name__})


ALIASES = {name: with_options(name, *row) for name, row in TABLE.items()}
globals().update(ALIASES)
