"""Lines of prepared cuts, checked as plain JSON before lhotse deserializes them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from asr.data.manifests.decoding_limits import MAX_CHANNELS
from asr.data.manifests.feature_storage import READABLE, is_readable
from asr.data.manifests.manifest_fields import (
    NUMBER,
    RECORDING,
    RECORDING_OPTIONAL,
    SUPERVISION,
    SUPERVISION_OPTIONAL,
    Type,
    check_fields,
)
from asr.data.manifests.source_files import refuse_unspeakable

CUT_TYPES = ("MonoCut", "MultiCut")  # lhotse's MixedCut and PaddingCut never occur in prepared data
MAX_LINE_BYTES = 2**24
CUT: dict[str, Type] = {"id": str, "start": NUMBER, "duration": NUMBER, "supervisions": list}
CUT_OPTIONAL: dict[str, Type] = {"channel": (int, list), "recording": dict, "features": dict, "custom": dict}


def parse_cut(line: bytes, where: str) -> dict[str, Any]:
    """Return a line of prepared cuts as plain data that lhotse may deserialize.

    lhotse runs commands, opens addresses and unpickles where a cut asks for it, also inside transforms and custom
    fields. So only files of audio and of numpy arrays may be named, at any depth.

    Args:
        line: of the file.
        where: the place of the line, for messages.

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
    check_fields(where, data, CUT, CUT_OPTIONAL)
    if not 0 < data["duration"] < math.inf or not 0 <= data["start"] < math.inf:
        raise ValueError(f"{where}: the cut starts at {data['start']} s and lasts {data['duration']} s")
    if data.get("recording") is not None:
        check_fields(where, data["recording"], RECORDING, RECORDING_OPTIONAL)
    for supervision in data["supervisions"]:
        check_fields(where, supervision, SUPERVISION, SUPERVISION_OPTIONAL)
    refuse_unspeakable(where, " ".join(supervision.get("text") or "" for supervision in data["supervisions"]))
    # not recursive: what json can parse may be nested as deeply as Python's stack
    todo: list[Any] = [data]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            if "sources" in node:
                _check_sources(node["sources"], where)
            if "storage_type" in node or "storage_path" in node:
                _check_storage(node, where)
        values = node.values() if isinstance(node, dict) else node
        todo += [value for value in values if isinstance(value, dict | list)]
    return data


def _check_sources(sources: Any, where: str) -> None:
    if not isinstance(sources, list) or not 0 < len(sources) <= MAX_CHANNELS:
        raise ValueError(f"{where}: audio sources are {str(sources)[:60]!r}, not a list of 1 to {MAX_CHANNELS} files")
    for source in sources:
        kind = source.get("type") if isinstance(source, Mapping) else None
        path = source.get("source") if isinstance(source, Mapping) else None
        # lhotse 1.33 runs a path that begins or ends with a bar or begins with pipe:, and opens s3:// and the like;
        # an absolute path can begin with none of these
        if kind != "file" or not isinstance(path, str) or not os.path.isabs(path) or path.rstrip().endswith("|"):
            raise ValueError(
                f"{where}: audio of type {kind!r} ({str(path)[:80]!r}) is refused, because reading it could run a "
                "command or fetch something; only files are read, by their absolute paths"
            )


def _check_storage(node: Mapping[str, Any], where: str) -> None:
    kind, path, key = (node.get(name) for name in ("storage_type", "storage_path", "storage_key"))
    if not is_readable(kind, path, key):
        raise ValueError(
            f"{where}: an array in storage {kind!r} ({str(path)[:80]!r}, {str(key)[:40]!r}) is refused, because "
            f"reading it could run a command or fetch something; only {READABLE!r} in an absolute folder, and parts of "
            "tars, are read"
        )
