"""A comparison as a JSON file, for programs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asr.evaluation.comparison.result import Comparison
from asr.evaluation.comparison.runs import Run
from asr.safe_io import write_new


def write_json(comparison: Comparison, folder: Path) -> Path:
    """Write ``comparison.json``: all that was found, without curves and errors per utterance; return its path.

    Rates are fractions, what is not known is null.

    Raises:
        FileExistsError: there is one already.
    """
    path = folder / "comparison.json"
    data = _plain(
        {
            "title": comparison.title,
            "level": comparison.level,
            "target_wer": comparison.target_wer,
            "sets": [asdict(found) for found in comparison.sets],
            "runs": [_run(run) for run in comparison.runs],
            "problems": comparison.problems,
            "notes": comparison.notes,
        }
    )
    write_new(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))
    return path


def _run(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "contestant": run.contestant,
        "seed": run.seed,
        "lr": run.lr,
        "wer": {name: errors.wer for name, errors in run.sets.items()},
        "cost": asdict(run.cost),
    }


def _plain(node: Any) -> Any:
    """Return nested data that JSON can hold."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
