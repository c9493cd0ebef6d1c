"""What runs that are compared do not have in common: data, files by one path, and options that changed on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.compare.inputs.naming import MAX_KEY, NUM_KEYS, FreeKeys
from asr.compare.inputs.runs import FinishedRun
from asr.evaluation.formatting import shortened, shortlist
from asr.nested import at, flatten, is_within, number_at
from asr.plain_data import read_json, read_yaml
from asr.run_folder import INIT_RECORD

MAX_PATHS = 1000  # characters
MAX_BACKUPS = 20  # of a file
MAX_ACCEPTED = 100  # changes
ABSENT = "absent"


def different_data(read: Sequence[FinishedRun]) -> list[str]:
    """Return a message if runs had different data; systems may have tokenizers of their own."""
    folders = defaultdict(list)
    for files in read:
        folders[shortened(str(at(files.summary, "data")).partition("/")[0], MAX_KEY)].append(files.folder)
    if len(folders) < 2:
        return []
    parts = "; ".join(f"{data}: {shortlist(found)}" for data, found in folders.items())
    return [f"the runs were trained on different data; they are compared on the test sets that they share ({parts})"]


def different_files(read: Sequence[FinishedRun]) -> list[str]:
    """Return messages on files that were others for some runs, though the configs name them by the same path."""
    messages = []
    for what, keys, digest_of in (
        ("the model that they start from", ("init.path",), _initial_model),
        ("noise and rooms", ("augment.audio.noise.folder", "augment.audio.room.folder"), _noise),
    ):
        found: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
        for files in read:
            if digest := digest_of(files):
                named = {key: at(files.config, *key.split(".")) for key in keys}
                words = (f"{key}={path}" for key, path in named.items() if path is not None)
                found[shortened(" ".join(words), MAX_PATHS)][shortened(digest, MAX_KEY)].append(files.folder)
        messages += [
            f"{words}: {what} changed between runs, which are compared as if they had used the same "
            f"({'; '.join(shortlist(folders) for folders in contents.values())})"
            for words, contents in found.items()
            if len(contents) > 1
        ]
    return messages


def unreadable_in(read: Sequence[FinishedRun]) -> list[str]:
    """Return a message on runs that could not read all of their utterances of training and validation."""
    counts = {files.folder: number_at(files.summary, "training", "num_unreadable") for files in read}
    if not (found := [f"{folder}: {number:.0f}" for folder, number in counts.items() if number]):
        return []
    return [
        "utterances could not be read in training or validation, and were left out, which other runs may have heard "
        f"({shortlist(found)})"
    ]


def changed_runs(read: Sequence[FinishedRun], free: FreeKeys) -> list[str]:
    """Return messages on runs that were resumed with other options, data or files than they were begun with."""
    messages = []
    for files in read:
        if texts := [*_changes(files, free).values()]:
            more = f"; and {len(texts) - NUM_KEYS} more" if len(texts) > NUM_KEYS else ""
            messages.append(
                f"{files.folder} was resumed with other options than it was begun with, and is compared by the last "
                f"({'; '.join(texts[:NUM_KEYS])}{more})"
            )
    return messages


def _changes(files: FinishedRun, free: FreeKeys) -> dict[str, str]:
    """Return what changed on the way of a run, by key: of its former configs, and of what its user has accepted."""
    now, changed = flatten(files.config), dict[str, str]()
    for path in sorted(files.folder.glob("config.backup*.yaml"))[:MAX_BACKUPS]:
        if not isinstance(before := _saved(path), dict):
            changed.setdefault(path.name, f"{path.name}: it cannot be read")
            continue
        was, without_effect = flatten(before), {*free(files.config)} & {*free(before)}
        for key in sorted(now.keys() | was.keys()):
            value, former = now.get(key, ABSENT), was.get(key, ABSENT)
            # what lies at a place that the former config lacks as a whole is of a later version of this program
            if former != value and key.partition(".")[0] in before and not is_within(key, without_effect):
                changed.setdefault(key, f"{shortened(key, MAX_KEY)}: {' / '.join(_apart(str(former), str(value)))}")
    for path in sorted(files.folder.glob("accepted*.yaml"))[:MAX_BACKUPS]:
        if not isinstance(accepted := _saved(path), list):
            changed.setdefault(path.name, f"{path.name}: it cannot be read")
            continue
        for change in map(str, accepted[:MAX_ACCEPTED]):
            key = change.partition(":")[0]
            if not is_within(key, free(files.config)):
                changed.setdefault(key, shortened(change, 2 * MAX_KEY))
    return changed


def _saved(path: Path) -> Any:
    """Return what a file of a run holds; None if it is damaged."""
    try:
        return read_yaml(path)
    except (ValueError, OSError):
        return None


def _apart(former: str, now: str) -> tuple[str, str]:
    """Return two different texts, shortened such that they still differ."""
    short = shortened(former, MAX_KEY), shortened(now, MAX_KEY)
    if short[0] != short[1]:
        return short
    same = next((i for i, (a, b) in enumerate(zip(former, now, strict=False)) if a != b), 0)
    return shortened(f"…{former[same:]}", MAX_KEY), shortened(f"…{now[same:]}", MAX_KEY)


def _initial_model(files: FinishedRun) -> str:
    """Return the digest of the file that a run starts from; empty if it is not known."""
    if not (files.folder / INIT_RECORD).is_file():
        return ""
    try:
        return str(at(read_json(files.folder / INIT_RECORD), "sha256") or "")
    except (ValueError, OSError):
        return ""


def _noise(files: FinishedRun) -> str:
    return str(at(files.summary, "noise") or "")
