"""The record of a shard that this program wrote: what it was made of, where its members are, digests of its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr.data.preparation.file_digests import refuse_changed
from asr.plain_data import read_json


def own_index(files: Mapping[str, Path], made_of: str) -> dict[str, Any] | None:
    """Return the index of a shard; None if there is none, nor a file of the shard.

    Raises:
        ValueError: another shard has its name.
    """
    there = _there(files)
    index = read_json(files["index"]) if files["index"].is_file() else {}
    if not isinstance(index, dict) or index.get("made_of") != made_of:
        if there:
            raise ValueError(
                f"data.storage.dir: {there[0]} is of other data (of another folder, too), or of other options of "
                "text or limits; give a new folder, or remove this one if nothing needs it"
            )
        return None
    return index


def _there(files: Mapping[str, Path]) -> list[Path]:
    return [files[kind] for kind in ("tar", "cuts") if os.path.lexists(files[kind])]


def found_index(files: Mapping[str, Path], made_of: str) -> dict[str, Any] | None:
    """Return the index of a shard that is there and whole; None if it is not there.

    Raises:
        ValueError: another shard has its name, or its files have changed.
    """
    index, there = own_index(files, made_of), _there(files)
    if index is None:
        return None
    try:
        for kind in ("tar", "cuts"):
            if files[kind] in there:
                refuse_changed(files[kind], index.get(kind), files["index"].name)
    except ValueError as error:
        raise ValueError(
            f"data.storage.dir: {error} ({files['tar'].parent}); restore it, or remove it to have it written again"
        ) from error
    return index if len(there) == 2 and _are_members(index) else None


def _are_members(index: Mapping[str, Any]) -> bool:
    members, dropped = index.get("members"), index.get("dropped")
    if not isinstance(members, list) or not isinstance(dropped, list):
        return False
    are_numbers = all(
        isinstance(one, list) and len(one) == 5 and all(type(n) is int and n >= 0 for n in one) for one in members
    )
    return are_numbers and all(
        isinstance(one, list) and len(one) == 2 and all(isinstance(text, str) for text in one) for one in dropped
    )
