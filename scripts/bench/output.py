"""What becomes of rows: tables, ``DIR/<part>.json`` and ``DIR/report.md``, with what one must know to doubt them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from bench.measure import Row, Value

QUERY = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
UNSEEN = " (not measured)"  # after the name of a check whose goal is missed for that
ROOT = Path(__file__).parents[2]


def positive(text: str) -> int:
    """Return a number of at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def listed(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> set[str]:
    """Return the names of a list with commas; leaves with a message where one is unknown."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def table_text(table: Table, markdown: bool) -> str:
    """Return a table for a page or for a terminal."""
    table.box = box.MARKDOWN if markdown else box.SIMPLE
    console = Console(width=400)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n") + "\n"


def rows_table(rows: Sequence[Row], columns: Sequence[str], markdown: bool) -> Table:
    """Return a table of rows whose values have the same columns."""
    table = Table("", *columns)
    with_goals = any(row.goal for row in rows)
    if with_goals:
        table.add_column("goal")
    for row in rows:
        cells = row.value.values() if isinstance(row.value, dict) else ()
        goal = f"{row.goal}{': MISSED' if row.met is False else ''}"
        check = f"`{row.check}`" if markdown and row.check.isidentifier() else row.check
        table.add_row(check, *cells, *([goal] if with_goals else ()))
    return table


def text_of(value: Value) -> str:
    """Return what was found on one line."""
    return value if isinstance(value, str) else ", ".join(f"{title} {cell}" for title, cell in value.items() if cell)


def circumstances(device: str) -> dict[str, Any]:
    """Return device, driver, clocks, load, versions and commit."""
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device != "cpu" else f"{processor()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": _printed("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if device == "cpu":
        return found | {"threads": torch.get_num_threads(), "load": f"{os.getloadavg()[0]:.2f}"}
    clocks = _printed("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0")
    return found | dict(zip(QUERY, filter(None, clocks.split(", ")), strict=False))


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _printed(*command: str) -> str:
    """Return what a command prints; nothing if there is no such command, or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def key_of(about: dict[str, Any], small: bool) -> dict[str, Any]:
    """Return what a part must have in common with one that was done before to be kept."""
    return {name: about[name] for name in ("commit", "device", "torch")} | {"small": small}


class PartFile:
    """The JSON of a part, which holds each row as soon as it is known.

    Args:
        folder: of the report.
        part: its name.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self.path, self.part = folder / f"{part}.json", part

    def read(self) -> dict[str, Any]:
        """Return what was written; nothing if there is no such file."""
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        return found

    def is_done(self, key: dict[str, Any]) -> bool:
        """Return whether the part is complete for the same commit, device and size."""
        content = self.read()
        return bool(content.get("complete")) and content.get("key") == key

    def write(self, key: dict[str, Any], about: dict[str, Any], rows: Iterable[Row]) -> Iterator[Row]:
        """Write the rows one by one, and yield each after it was written.

        The part is complete if every row that has a goal was measured: else it is run anew.
        """
        content: dict[str, Any] = {"part": self.part, "key": key, "complete": False, "about": about, "rows": []}
        self._replace(content)
        is_measured = True
        for row in rows:
            content["rows"].append(asdict(row))
            is_measured = is_measured and (row.measured or not row.goal)
            self._replace(content)
            yield row
        self._replace(content | {"complete": is_measured})

    def add_failure(self, key: dict[str, Any], said: str) -> None:
        """Add a row about a part that ended before its last row."""
        found = self.read() or {"part": self.part, "key": key, "about": {}, "rows": []}
        found["rows"].append(asdict(Row("the part ended", said, "with its last row", met=False)))
        self._replace(found | {"complete": False})

    def _replace(self, content: dict[str, Any]) -> None:
        # in one step: the part may be ended at any moment
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)


def write_report(folder: Path, parts: Iterable[str]) -> list[str]:
    """Write ``report.md`` of all parts that there are; return the checks whose goals are missed."""
    lines, missed = ["# What this GPU shows", ""], []
    for part in parts:
        content = PartFile(folder, part).read()
        if not content:
            continue
        about = "; ".join(f"{name} {value}" for name, value in content["about"].items() if value)
        lines += [f"## {part}", "", about + ("" if content["complete"] else "; not complete"), ""]
        lines += ["| check | found | goal | met |", "|---|---|---|---|"]
        for row in content["rows"]:
            met = {True: "yes", False: "NO", None: ""}[row["met"]]
            cells = (
                cell.replace("|", "/").replace("\n", " ") for cell in (row["check"], text_of(row["value"]), row["goal"])
            )
            lines.append(f"| {' | '.join(cells)} | {met} |")
            if row["met"] is False:
                missed.append(f"{part}: {row['check']}{'' if row.get('measured', True) else UNSEEN}")
        lines.append("")
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return missed
