"""What runs that are compared do not have in common: data, files by one path, and options that changed on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.evaluation.comparison.inputs.naming import MAX_KEY, NUM_KEYS, FreeKeys
from asr.evaluation.comparison.inputs.runs import FinishedRun
from asr.evaluation.formatting import shortened, shortlist
from asr.nested import at, flatten, is_within, number_at
from asr.plain_data import read_json, read_yaml
from asr.run_folder import INIT_RECORD

MAX_PATHS = 1000  # characters
MAX_BACKUPS = 20  # of a config


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
    """Return messages on runs that were resumed with another config than they were begun with."""
    messages = []
    for files in read:
        now, changed = flatten(files.config), dict[str, str]()
        for path in sorted(files.folder.glob("config.backup*.yaml"))[:MAX_BACKUPS]:
            before = _backup(path)
            was, without_effect = flatten(before), {*free(files.config)} & {*free(before)}
            # keys of one of them alone may be of another version of this program
            for key in sorted(key for key in now.keys() & was.keys() if was[key] != now[key]):
                values = (shortened(str(value), MAX_KEY) for value in (was[key], now[key]))
                if not is_within(key, without_effect):
                    changed.setdefault(key, f"{shortened(key, MAX_KEY)}: {' / '.join(values)}")
        if changed:
            texts = [*changed.values()]
            more = f"; and {len(texts) - NUM_KEYS} more" if len(texts) > NUM_KEYS else ""
            messages.append(
                f"{files.folder} was resumed with other options than it was begun with, and is compared by the last "
                f"({'; '.join(texts[:NUM_KEYS])}{more})"
            )
    return messages


def _backup(path: Path) -> dict[str, Any]:
    """Return a former config; empty if it is damaged."""
    try:
        config = read_yaml(path)
    except (ValueError, OSError):
        return {}
    return config if isinstance(config, dict) else {}


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
