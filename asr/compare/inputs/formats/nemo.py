"""JSON lines of NeMo's ``transcribe_speech.py`` and of the Open ASR leaderboard.

Written by ``write_transcription`` in NeMo's transcribe_utils.py: the manifest's own keys, and ``pred_text``, or one
``pred_text_MODEL`` for each model that was appended. The leaderboard's ``write_manifest`` names an utterance whose file
is not known by its place, ``sample_0``. A manifest that cuts recordings repeats their paths, with an ``offset``. Chunks
of the leaderboard's recordings have a ``parent_id`` and a ``chunk_index``, and each has the reference of the whole.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.compare.inputs.rows import Row

SUFFIXES = (".json", ".jsonl")
PREDICTED = "pred_text"
OWN = ("audio_filepath", "text", "duration", "offset", "time", "parent_id", "chunk_index")


def matches(head: str) -> bool:
    """Return whether the first lines of a file are of this format."""
    return head.startswith("{") and '"audio_filepath"' in head.partition("\n")[0] and f'"{PREDICTED}' in head


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file, once for each model that it has a text of.

    Args:
        path: of the file.
        columns: names of the keys of ``id``, ``reference``, ``hypothesis`` and ``speaker``, if they are others.

    Raises:
        ValueError: a line is not JSON, or lacks the hypothesis; or a chunk is missing.
    """
    with path.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    column = columns.get("hypothesis")
    predicted = [column] if column else sorted({key for line in lines for key in line if key.startswith(PREDICTED)})
    if lines and "parent_id" in lines[0]:
        lines = _whole_recordings(path, lines, predicted)
    id, reference, speaker = (
        columns.get(name, default)
        for name, default in zip(("id", "reference", "speaker"), ("audio_filepath", "text", "speaker"), strict=True)
    )
    repeated = {name for name, times in Counter(line.get(id) for line in lines).items() if times > 1}
    for number, line in enumerate(lines, 1):
        name = str(line[id])
        if line[id] in repeated and "offset" in line:
            name = f"{name}@{line['offset']}"
        more = {key: str(value) for key, value in line.items() if key not in OWN and not isinstance(value, list | dict)}
        for key in predicted:
            if not isinstance(line.get(key), str):
                raise ValueError(f"{path}, line {number}: {key!r} has no text; given {line.get(key)!r}")
            system = key.removeprefix(PREDICTED).removeprefix("_") if len(predicted) > 1 else None
            yield Row(name, line.get(reference), line[key], system, speaker=line.get(speaker), columns=more)


def _whole_recordings(path: Path, lines: Sequence[dict[str, Any]], predicted: Sequence[str]) -> list[dict[str, Any]]:
    """Join what was recognized in the chunks of each recording, as ``merge_chunked_manifest`` does."""
    recordings = defaultdict[str, list[dict[str, Any]]](list)
    for line in lines:
        recordings[line["parent_id"]].append(line)
    joined = []
    for name, chunks in recordings.items():
        chunks.sort(key=lambda chunk: chunk["chunk_index"])
        if [chunk["chunk_index"] for chunk in chunks] != [*range(len(chunks))]:
            raise ValueError(f"{path}: chunks of {name!r} are missing, or occur twice")
        texts = {key: " ".join(chunk[key] or "" for chunk in chunks) for key in predicted}
        joined.append({**chunks[0], **texts, "audio_filepath": name})
    return joined
