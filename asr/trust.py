"""Packages that the user trusts: their classes may be named by checkpoints and run folders."""

from __future__ import annotations

import os
from collections.abc import Iterable

TRUST = "WERDICT_TRUST"  # names of packages, separated by commas, for this process and those that it starts


def trusted() -> list[str]:
    """Return the packages whose classes files of others may name."""
    return [name for name in os.environ.get(TRUST, "").split(",") if name]


def trust(packages: Iterable[str]) -> None:
    """Trust more packages, in this process and those that it starts."""
    if names := dict.fromkeys([*trusted(), *packages]):
        os.environ[TRUST] = ",".join(names)
