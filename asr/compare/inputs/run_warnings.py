"""Says what runs of this toolkit that are compared do not have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.compare.inputs.run_files import DAMAGED, RunFiles
from asr.compare.inputs.system_names import concerns_system
from asr.compare.inputs.systems import BUDGET, run_settings
from asr.evaluation.formatting import shortlist
from asr.plain_data import read_yaml


def warnings(runs: Sequence[RunFiles]) -> list[str]:
    """Return messages on data and options that differ between runs, or changed during one."""
    folders, messages = defaultdict(list), list[str]()
    for run in runs:
        # systems may have tokenizers of their own
        folders[run.summary["data"].partition("/")[0]].append(run.folder)
    if len(folders) > 1:
        parts = "; ".join(f"{data}: {shortlist(affected)}" for data, affected in folders.items())
        messages.append(
            f"the runs were trained on different data; they are compared on the test sets that they share ({parts})"
        )
    unreadable = {run.folder: run.summary["training"].get("num_unreadable") for run in runs}
    if affected := [f"{folder}: {number}" for folder, number in unreadable.items() if number]:
        messages.append(
            "utterances could not be read in training or validation, and were left out; other runs may have used them "
            f"({shortlist(affected)})"
        )
    changes: dict[Path, list[str]] = {}
    for run in runs:
        try:
            changes |= {run.folder: changed} if (changed := _changes(run)) else {}
        except DAMAGED as error:
            messages.append(f"{run.folder}: a file on its former options is damaged: {error!r}")
    return messages + [
        f"{folder} was resumed with other options than it was begun with, and is compared by the last "
        f"({shortlist(changed)})"
        for folder, changed in changes.items()
    ]


def _changes(run: RunFiles) -> list[str]:
    """Return what has changed: between the config and its backups, and what the user has accepted."""
    changed: dict[str, str] = {}
    current = _flat(run.config)
    for path in sorted(run.folder.glob("config.backup*.yaml")):
        before = _flat(read_yaml(path))
        for key in sorted(current.keys() | before.keys()):
            old, new = before.get(key, "absent"), current.get(key, "absent")
            if old != new:
                changed.setdefault(key, f"{key}: {old} / {new}")
    for path in sorted(run.folder.glob("accepted*.yaml")):
        for change in read_yaml(path):
            if concerns_system(key := change["key"], run):
                changed.setdefault(key, f"{key}: {change['before']} / {change['now']}")
    return list(changed.values())


def _flat(config: Any) -> dict[str, Any]:
    """Return seed, budget and system of a config by key."""
    settings = run_settings(config)
    return {"seed": settings["seed"], BUDGET: settings["budget"], **settings["system"]}
