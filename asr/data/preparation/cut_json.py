"""Cuts of prepared data as plain JSON, checked before lhotse makes anything of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from asr.data.manifests.feature_storage import READABLE

CUT_TYPES = ("MonoCut", "MultiCut")  # lhotse's others mix and pad, which prepared data never do
MAX_LINE_BYTES = 2**24
NEEDED: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "start": (int, float),
    "duration": (int, float),
    "supervisions": list,
}


def plain_cut(line: bytes, where: str) -> dict[str, Any]:
    """Return a line of prepared cuts as plain data that lhotse may deserialize.

    lhotse runs commands, fetches addresses and unpickles where a cut asks for it, also inside transforms and custom
    fields; only files of audio and of numpy arrays may be named, wherever they stand.

    Args:
        line: of the file.
        where: it stands, for messages.

    Raises:
        ValueError: the line is no such cut.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{where}: the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: this is no cut: {error}") from None
    if not isinstance(data, dict) or data.get("type") not in CUT_TYPES:
        raise ValueError(f"{where}: this is no cut of type {' or '.join(CUT_TYPES)}, but {line[:60]!r}")
    for name, kinds in NEEDED.items():
        value = data.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{where}: field {name!r} of the cut is {str(value)[:60]!r}")
    if not 0 < data["duration"] < math.inf or not 0 <= data["start"] < math.inf:
        raise ValueError(f"{where}: the cut starts at {data['start']} s and lasts {data['duration']} s")
    _refuse_foreign(data, where)
    return data


def _refuse_foreign(data: Any, where: str) -> None:
    """Refuse audio and arrays that are not plain files, at any depth."""
    todo = [data]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            if "sources" in node:
                _check_sources(node["sources"], where)
            if "storage_type" in node or "storage_path" in node:
                _check_storage(node, where)
            todo += [value for value in node.values() if isinstance(value, dict | list)]
        else:
            todo += [value for value in node if isinstance(value, dict | list)]


def _check_sources(sources: Any, where: str) -> None:
    if not isinstance(sources, list) or not sources:
        raise ValueError(f"{where}: sources of audio are {str(sources)[:60]!r}, not a list of files")
    for source in sources:
        kind = source.get("type") if isinstance(source, Mapping) else None
        path = source.get("source") if isinstance(source, Mapping) else None
        # lhotse runs what begins or ends with a bar, and what begins with pipe: or with the scheme of an address
        if kind != "file" or not isinstance(path, str) or not os.path.isabs(path) or path.rstrip().endswith("|"):
            raise ValueError(
                f"{where}: audio of type {kind!r} ({str(path)[:80]!r}) is refused, because reading it could run a "
                "command or fetch something; only files are read, by their absolute paths"
            )


def _check_storage(node: Mapping[str, Any], where: str) -> None:
    kind, path, key = (node.get(name) for name in ("storage_type", "storage_path", "storage_key"))
    safe = isinstance(path, str) and os.path.isabs(path) and isinstance(key, str) and key.endswith(".npy")
    if kind != READABLE or not safe:
        raise ValueError(
            f"{where}: an array in storage {kind!r} ({str(path)[:80]!r}, {str(key)[:40]!r}) is refused, because "
            f"reading it could run a command or fetch something; only {READABLE!r} in an absolute folder is read"
        )
