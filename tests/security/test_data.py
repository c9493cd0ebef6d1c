"""Sources that cannot be used, given to the real program: one line, and nothing is run or left."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.spoken_corpus import TINY

COMMAND = {"type": "command", "channels": [0], "source": "touch hacked"}
RECORDING = {"id": "a", "sources": [COMMAND], "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
SEGMENT = {"id": "a", "recording_id": "a", "start": 0, "duration": 1.0, "text": "a"}
CUT = {"type": "MonoCut", "id": "a", "start": 0, "duration": 1.0, "channel": 0, "recording": RECORDING}


def text(name: str, content: str | bytes) -> Callable[[Path], str]:
    def source(folder: Path) -> str:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return name

    return source


SOURCES = {
    "nothing": (lambda folder: "nowhere", "there is no file or folder"),
    "an empty folder": (lambda folder: (folder / "e").mkdir() or "e", "no manifests are there"),
    "a picture": (text("a.tsv", b"\x89PNG\r\n\x1a\n" + bytes(range(256))), "not UTF-8"),
    "an archive": (text("corpus.tar.xz", b"\xfd7zXZ"), "is an archive; unpack it"),
    "escape sequences": (text("a.tsv", "audio\x1b[31m\ttext\n"), "the header lacks audio"),
    "commands and devices as audio": (text("a.tsv", "audio\ttext\n/dev/zero\ta\ntouch hacked |\tb\n"), "can be used"),
    "a packed table cut short": (text("a.tsv.gz", gzip.compress(b"audio\ttext\n" * 99)[:-9]), "a.tsv.gz, line"),
    "a command in a manifest": (
        text("cuts.jsonl", json.dumps(CUT | {"supervisions": [SEGMENT]})),
        "line 1: audio of type 'command'",
    ),
}


@pytest.mark.parametrize(("source", "message"), SOURCES.values(), ids=SOURCES.keys())
def test_a_source_that_cannot_be_used_is_refused_in_one_line(programs, tmp_path, source, message):
    ended = programs.run("prepare", *TINY, f"data.source={source(tmp_path)}", cwd=tmp_path)
    assert (ended.code, "Traceback" in ended.printed) == (2, False), ended.printed
    assert message in ended.last_line
    assert "\x1b" not in ended.printed
    assert not (tmp_path / "hacked").exists()
