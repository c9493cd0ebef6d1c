"""Reads what wandb wrote offline: a file of records in LevelDB's log format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32_768
HEADER_BYTES = 7  # of the file, and of every piece: checksum (4), length (2), kind (1)
WHOLE, LAST = 1, 4


@dataclass
class WandbFile:
    history: set[str] = field(default_factory=set)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    run: Any = None  # its last record
    minima: set[str] = field(default_factory=set)  # metrics whose minimum the summary holds
    artifacts: list[Any] = field(default_factory=list)

    @property
    def group(self) -> str:
        return self.run.run_group

    @property
    def job_type(self) -> str:
        return self.run.job_type


def _records(data: bytes) -> Iterator[bytes]:
    at, record = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < HEADER_BYTES:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + HEADER_BYTES : at + HEADER_BYTES + length]
        at += HEADER_BYTES + length
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def read_wandb(run_dir: Path) -> WandbFile:
    path = max(run_dir.rglob("*.wandb"))  # the last part of a resumed run
    found = WandbFile()
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        found.history |= {_key(item) for item in record.history.item}
        found.summary |= {_key(item): item.value_json for item in record.summary.update}
        found.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        found.run = record.run if record.HasField("run") else found.run
        found.minima |= {record.metric.name} if record.metric.summary.min else set()
        found.artifacts += [record.artifact] if record.HasField("artifact") else []
        found.exit_codes += [record.exit.exit_code] if record.WhichOneof("record_type") == "exit" else []
    return found
