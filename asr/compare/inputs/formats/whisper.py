"""The JSON that Whisper, faster-whisper and whisperX leave for each audio file: ``text`` or ``segments``.

Written by ``WriteJSON`` in whisper/utils.py, named after the audio file, which is the utterance's id. whisperX has no
``text``, and faster-whisper returns segments that its users dump. The references are another file, see ``references``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row

SUFFIXES = (".json",)


def matches(head: str) -> bool:
    """Return whether the beginning of a file is of this format."""
    return head.lstrip().startswith("{") and '"segments"' in head


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterance of a file."""
    result = json.loads(path.read_text(encoding="utf-8"))
    text = result["text"] if "text" in result else " ".join(part["text"].strip() for part in result["segments"])
    yield Row(path.stem, hypothesis=" ".join(text.split()))
