"""``DIR/<part>.json`` and ``DIR/report.md``: rows, and what a reader must know to repeat or to doubt them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from asr.training.report import provenance
from gpu_parts.setting import Row

QUERY = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
UNSEEN = " (not measured)"  # after the name of a check whose goal is missed for that


def circumstances(device: str) -> dict[str, Any]:
    """Return device, driver, clocks, versions and commit."""
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device != "cpu" else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": provenance()["commit"],
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return found | (clocks() if device != "cpu" else {})


def clocks() -> dict[str, str]:
    """Return what nvidia-smi says of the first GPU; nothing without it."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(QUERY, (value.strip() for value in done.stdout.strip().split(",")), strict=False))


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
        found = self.read()
        return bool(found.get("complete")) and found.get("key") == key

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
        found = PartFile(folder, part).read()
        if not found:
            continue
        about = "; ".join(f"{name} {value}" for name, value in found["about"].items() if value)
        lines += [f"## {part}", "", about + ("" if found["complete"] else "; not complete"), ""]
        lines += ["| check | found | goal | met |", "|---|---|---|---|"]
        for row in found["rows"]:
            met = {True: "yes", False: "NO", None: ""}[row["met"]]
            cells = (
                str(cell).replace("|", "/").replace("\n", " ") for cell in (row["check"], row["value"], row["goal"])
            )
            lines.append(f"| {' | '.join(cells)} | {met} |")
            if row["met"] is False:
                missed.append(f"{part}: {row['check']}{'' if row.get('measured', True) else UNSEEN}")
        lines.append("")
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return missed
