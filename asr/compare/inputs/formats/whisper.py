"""The JSON that Whisper, faster-whisper and whisperX leave for each audio file: ``text`` or ``segments``.

Written by ``WriteJSON`` in whisper/utils.py, named after the audio file, which is the utterance's id. whisperX has no
``text``, and faster-whisper returns segments that its users dump. The references are another file, see ``references``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.compare.inputs.rows import Row
from asr.text_files import json_objects, optional_text

SUFFIXES = (".json",)


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the keys of a file's JSON object are of this format."""
    return "segments" in keys


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterance of a file.

    Raises:
        ValueError: it has neither a text nor segments with texts.
    """
    for number, result in json_objects(path):
        parts: Any = [result] if "text" in result else result.get("segments")
        try:
            texts = [optional_text(part["text"], "text") for part in parts]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: expected a text, or segments with texts: {error}") from error
        words = None if None in texts else " ".join(" ".join(map(str, texts)).split())
        yield Row(path.stem, hypothesis=words)
