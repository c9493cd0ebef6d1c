"""Options and tables of the scripts that compare optimizers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table


def positive(text: str) -> int:
    """Return a number of at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def comparison_parser(about: str | None) -> argparse.ArgumentParser:
    """Return the options of a script that chooses each optimizer's lr on some seeds, and trains on others."""
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0], formatter_class=show_defaults)
    parser.add_argument("--only", default="", help="optimizers, with commas; none: all whose package is installed")
    parser.add_argument("--seeds", type=positive, default=3, help="to choose on, and to report")
    parser.add_argument("--jobs", type=positive, default=1, help="trainings at a time")
    parser.add_argument("--markdown", action="store_true", help="print the tables as a page has them")
    return parser


def listed(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> set[str]:
    """Return the names of a list with commas; leaves with a message where one is unknown."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def table_text(table: Table, markdown: bool) -> str:
    """Return a table for a page or for a terminal."""
    table.box = box.MARKDOWN if markdown else box.SIMPLE
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n") + "\n"
