"""Says what runs of this toolkit that are compared do not have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.compare.inputs.run_files import RunFiles
from asr.compare.inputs.system_names import concerns_system
from asr.evaluation.formatting import shortened, shortlist
from asr.nested import at
from asr.plain_data import read_json, read_yaml
from asr.run_folder import INIT_RECORD
from asr.systems import BUDGET, run_settings

NUM_CHANGES = 5  # that a message names
MAX_VALUE = 100  # characters
ABSENT = "absent"


def warnings(runs: Sequence[RunFiles]) -> list[str]:
    """Return messages on data, files and options that differ between runs, or changed during one."""
    unreadable = {run.folder: run.summary["training"].get("num_unreadable") for run in runs}
    found = [f"{folder}: {number}" for folder, number in unreadable.items() if number]
    could_not_read = (
        "utterances could not be read in training or validation, and were left out; other runs may have used them "
        f"({shortlist(found)})"
    )
    return [
        *_different_data(runs),
        *_different_files(runs, "the model that they start from", ("init.path",), _initial_model),
        *_different_files(
            runs,
            "noise and rooms",
            ("augment.audio.noise.folder", "augment.audio.room.folder"),
            lambda run: run.summary.get("noise"),
        ),
        *([could_not_read] if found else []),
        *_resumed_with_changes(runs),
    ]


def _different_data(runs: Sequence[RunFiles]) -> list[str]:
    """Return a message if runs had different data; systems may have tokenizers of their own."""
    folders = defaultdict(list)
    for run in runs:
        folders[run.summary["data"].partition("/")[0]].append(run.folder)
    if len(folders) < 2:
        return []
    parts = "; ".join(f"{data}: {shortlist(found)}" for data, found in folders.items())
    return [f"the runs were trained on different data; they are compared on the test sets that they share ({parts})"]


def _different_files(
    runs: Sequence[RunFiles], what: str, keys: Sequence[str], digest_of: Callable[[RunFiles], str | None]
) -> list[str]:
    """Return a message on files that changed between runs, though the configs name them by the same path."""
    found: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if digest := digest_of(run):
            named = {key: at(run.config, *key.split(".")) for key in keys}
            words = (f"{key}={path}" for key, path in named.items() if path is not None)
            found[" ".join(words)][digest].append(run.folder)
    return [
        f"{named}: {what} changed between runs, which are compared as if they had used the same "
        f"({'; '.join(shortlist(folders) for folders in contents.values())})"
        for named, contents in found.items()
        if len(contents) > 1
    ]


def _initial_model(run: RunFiles) -> str | None:
    """Return the digest of the file that a run starts from."""
    path = run.folder / INIT_RECORD
    return read_json(path)["sha256"] if path.is_file() else None


def _resumed_with_changes(runs: Sequence[RunFiles]) -> list[str]:
    """Return messages on runs that were resumed with other options, data or files than they were begun with."""
    messages = []
    for run in runs:
        if texts := [*_changes(run).values()]:
            more = f"; and {len(texts) - NUM_CHANGES} more" if len(texts) > NUM_CHANGES else ""
            messages.append(
                f"{run.folder} was resumed with other options than it was begun with, and is compared by the last "
                f"({'; '.join(texts[:NUM_CHANGES])}{more})"
            )
    return messages


def _changes(run: RunFiles) -> dict[str, str]:
    """Return by key what has changed: between the config and its backups, and what the user has accepted."""
    changed: dict[str, str] = {}
    now = _flat(run.config)
    for path in sorted(run.folder.glob("config.backup*.yaml")):
        before = _flat(read_yaml(path))
        for key in sorted(now.keys() | before.keys()):
            texts = [shortened(str(settings.get(key, ABSENT)), MAX_VALUE) for settings in (before, now)]
            if before.get(key, ABSENT) != now.get(key, ABSENT):
                changed.setdefault(key, f"{key}: {' / '.join(texts)}")
    for path in sorted(run.folder.glob("accepted*.yaml")):
        for change in read_yaml(path):
            if concerns_system(key := change.partition(":")[0], run):
                changed.setdefault(key, shortened(change, 2 * MAX_VALUE))
    return changed


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return seed, budget and system of a config by key."""
    settings = run_settings(config)
    return {"seed": settings["seed"], BUDGET: settings["budget"], **settings["system"]}
