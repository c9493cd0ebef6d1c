"""Sources and prepared data of strangers, given to the real programs: one line, soon, and nothing is run or left."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.spoken_corpus import TINY

Make = Callable[[Path], str]


def text(name: str, content: str | bytes) -> Make:
    def source(folder: Path) -> str:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return name

    return source


def manifests(recording: dict[str, Any]) -> Make:
    def source(folder: Path) -> str:
        brought = folder / "brought"
        brought.mkdir()
        item = {"id": "a", "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0} | recording
        (brought / "recordings.jsonl").write_text(json.dumps(item) + "\n")
        segment = {"id": "a", "recording_id": "a", "start": 0, "duration": 1.0, "text": "a"}
        (brought / "supervisions.jsonl").write_text(json.dumps(segment) + "\n")
        return "brought"

    return source


COMMAND = {"type": "command", "channels": [0], "source": "touch hacked"}
IMPULSE_RESPONSE = {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": {"sources": [COMMAND]}}}
SOURCES = {
    "nothing": (lambda folder: "nowhere", "data.source"),
    "an empty folder": (lambda folder: (folder / "e").mkdir() or "e", "manifests"),
    "a table without columns": (text("a.tsv", "\n\n"), "audio and text"),
    "a table of a pipe": (text("a.tsv", "audio\ttext\n/dev/stdin\ta\ntouch hacked |\tb\n"), "can be used"),
    "a split that leads elsewhere": (text("a.tsv", "audio\ttext\tsplit\na.wav\ta\ttest/../../x\n"), "split"),
    "escape sequences": (text("a.tsv", "audio\x1b[31m\ttext\n"), "audio"),
    "a byte that is not UTF-8": (text("a.tsv", b"audio\ttext\na.wav\ta\nb.wav\ta\xff\nc.wav\ta\n"), "line 3"),
    "a command": (manifests({"sources": [COMMAND]}), "'command'"),
    "an address": (manifests({"sources": [COMMAND | {"type": "url", "source": "http://localhost:1/"}]}), "'url'"),
    "a command as impulse response": (
        manifests({"sources": [COMMAND | {"type": "file", "source": "a.wav"}], "transforms": [IMPULSE_RESPONSE]}),
        "brought",
    ),
}


@pytest.mark.parametrize(("source", "message"), SOURCES.values(), ids=SOURCES.keys())
def test_a_source_that_would_harm_is_refused_in_one_line(programs, tmp_path, source, message):
    given = source(tmp_path)
    before = {path for path in tmp_path.rglob("*") if not path.is_symlink()}
    ended = programs.run("prepare", *TINY, f"data.source={given}", cwd=tmp_path, timeout_s=30)
    assert (ended.code, "Traceback" in ended.printed) == (2, False), ended.printed
    assert message in ended.last_line
    assert "\x1b" not in ended.printed
    assert ended.seconds < 10
    assert ended.peak_mb < 1000
    left = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if not path.is_symlink()} - {
        path.relative_to(tmp_path) for path in before
    }
    assert not [path for path in left if path.name == "hacked" or path.name.endswith((".json", ".npz", ".partial"))]
