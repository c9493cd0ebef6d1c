"""What a part of the report is given, and the rows that it yields."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INSTALL = {
    "heavyball": "pip install '.[bench]'",
    "pytorch_optimizer": "pip install '.[bench]'",
    "pytest": "pip install '.[dev]'",
    "hypothesis": "pip install '.[dev]'",
    "espeakng_loader": "pip install '.[tts]'",
    "zipformer": "pip install --no-deps 'zipformer==0.1.3'",
}
MINUTES = 7.0  # of a part, after which nothing new is begun in it


@dataclass(frozen=True)
class Setting:
    """Where a part runs, and how much of it.

    Attributes:
        device: ``cuda`` or ``cpu``.
        small: whether to show only that everything works.
        work: an empty folder.
        data: folder with archives of corpora, or None.
    """

    device: str
    small: bool
    work: Path
    data: Path | None = None
    begun: float = field(default_factory=time.monotonic)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    @property
    def trainer(self) -> str:
        """The override that chooses the device."""
        return "trainer=gpu" if self.on_gpu else "trainer=cpu"

    def is_late(self) -> bool:
        """Return whether nothing new should begin."""
        return time.monotonic() - self.begun > 60 * MINUTES


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        check: what was looked at.
        value: what was found.
        goal: what it should be; empty: nothing is asked.
        met: whether it is, which something not measured is not; None: nothing is asked.
        measured: whether there was anything to see; the part is not complete without a row that has a goal.
    """

    check: str
    value: str
    goal: str = ""
    met: bool | None = None
    measured: bool = True


def at_most(check: str, value: float, limit: float, unit: str = "") -> Row:
    """Return a row of a number that must not be larger than a limit."""
    return Row(check, f"{value:.3g}{unit}", f"at most {limit:.3g}{unit}", value <= limit)


def holds(check: str, fact: bool, value: str = "", goal: str = "yes") -> Row:
    """Return a row of what must be true."""
    return Row(check, value or ("yes" if fact else "no"), goal, fact)


def left_out(check: str, why: str, goal: str = "") -> Row:
    """Return a row of what was not measured; its goal, if it has one, counts as missed."""
    return Row(check, f"not measured: {why}", goal, met=False if goal else None, measured=False)


def too_late(check: str, goal: str = "measured") -> Row:
    """Return a row that there was no time for, which counts as missed whatever was asked."""
    return left_out(check, "the time of the part was used up", goal)


def error_text(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0][:200]}"


def until_error(check: str, rows: Iterator[Row], setting: Setting, goal: str = "no error") -> Iterator[Row]:
    """Yield rows, and one in place of an error, missed unless the goal is empty; what comes after it is still measured.

    Nothing is begun if it is late.
    """
    if setting.is_late():
        yield too_late(check)
        return
    try:
        yield from rows
    except Exception as error:  # of kernels, compilers and other people's packages, which have errors of their own
        yield Row(check, error_text(error), goal, met=False if goal else None)


def lacking(package: str) -> str:
    """Return how to install a package that is not installed; empty if it is."""
    if importlib.util.find_spec(package) is not None:
        return ""
    return f"{package} is not installed: {INSTALL[package]}"
