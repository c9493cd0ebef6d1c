"""What has changed between a run and its resumption, and what of it the user has accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asr.cli.config.resuming import TYPED_ONLY, read_texts
from asr.cli.errors import ConfigError
from asr.nested import flatten, is_within
from asr.run_folder import ACCEPTED, backup_path
from asr.safe_io import write_whole

# what may differ between a run and its resumption: where and how fast, not what is trained
FREE = (
    "init",  # refused when typed: a resumed run has weights of its own
    "resume",
    "trust",
    "allow_changes",
    "resume_logger",
    "run_dir",
    "recipes_dir",
    "sweep",
    "decode_test",
    "torch_threads",
    "find_batch_size",
    "weights",
    "decode",
    "logger",
    "callbacks",
    "data.dir",
    "data.workers",
    "data.num_jobs",
    "data.max_unreadable",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.peer_timeout_s",
    "trainer.step_in_backward",
    "trainer.log_every_n_steps",
    "trainer.enable_progress_bar",
)
ABSENT = "absent"  # what a config that lacks a key is said to have there
AVERAGES = "callbacks.averaging"  # of weights: they would be others from here on


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two configs, as sentences; where and how fast may differ."""
    old, new = flatten(before), flatten(now)
    keys = [key for key in sorted(old | new) if is_within(key, (AVERAGES,)) or not is_within(key, FREE)]
    return [
        f"{key}: {old.get(key, ABSENT)!r} in the run, {new.get(key, ABSENT)!r} now"
        for key in keys
        if old.get(key, ABSENT) != new.get(key, ABSENT)
    ]


def unaccepted(found: Sequence[str], folder: Path) -> list[str]:
    """Return those changes since a checkpoint that the user has not accepted for the run, with both of their values.

    Raises:
        ConfigError: the record of what was accepted cannot be read.
    """
    path = folder / ACCEPTED
    accepted = read_texts(path, "remove it, and accept changes again") if path.exists() else []
    return [change for change in found if change not in accepted]


def record_accepted(folder: Path, found: Sequence[str]) -> None:
    """Write the changes that the user has accepted, so that a resumption before the next checkpoint knows them.

    Earlier ones, which a checkpoint may hold by now, are kept beside them, for whoever compares the run.

    Raises:
        OSError: it cannot be written.
    """
    path, content = folder / ACCEPTED, yaml.safe_dump(list(found)).encode()
    if path.exists() and (former := path.read_bytes()) != content:
        write_whole(backup_path(path), former)
    write_whole(path, content)


def differs(saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a config says something new that a run's folder should hold: free keys, such as weights, too."""
    old, new = (
        {key: value for key, value in flatten(config).items() if key.partition(".")[0] not in TYPED_ONLY}
        for config in (saved, now)
    )
    return old != new


def refuse_changes(found: list[str], anyway: bool) -> None:
    """Refuse changes that were not asked for.

    Raises:
        ConfigError: something has changed, without ``allow_changes=true``.
    """
    if found and not anyway:
        refused = ConfigError("resume: the config or the data have changed since the run was started:")
        for line in (*(f"  {change}" for change in found), "Undo the changes, or accept them with allow_changes=true."):
            refused.add_note(line)
        raise refused
