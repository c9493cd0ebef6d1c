"""JSON lines of NeMo's ``transcribe_speech.py`` and of the Open ASR leaderboard.

Written by ``write_transcription`` in NeMo's transcribe_utils.py: the manifest's own keys, and ``pred_text``, or one
``pred_text_MODEL`` for each model that was appended. The leaderboard's ``write_manifest`` names an utterance whose file
is not known by its place, ``sample_0``. A manifest that cuts recordings repeats their paths, with an ``offset``. Chunks
of the leaderboard's recordings have a ``parent_id`` and a ``chunk_index``, and each has the reference of the whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.compare.inputs.rows import Row
from asr.text_files import json_objects, optional_text

SUFFIXES = (".json", ".jsonl")
PREDICTED = "pred_text"
OWN = ("audio_filepath", "text", "duration", "offset", "time", "parent_id", "chunk_index")


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the keys of a file's first JSON object are of this format; of a manifest too, for references."""
    is_predicted = any(key.startswith(PREDICTED) for key in keys)
    return "audio_filepath" in keys and (is_predicted or ("text" in keys and "hypothesis" not in keys))


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file, once for each model that it has a text of.

    Args:
        path: of the file.
        columns: names of the keys of ``id``, ``reference``, ``hypothesis`` and ``speaker``, if they are others.

    Raises:
        ValueError: a line is not JSON, lacks the id or the hypothesis, or these are no texts; or a chunk is missing.
    """
    lines = [(f"{path}, line {number}", line) for number, line in json_objects(path)]
    column = columns.get("hypothesis")
    predicted = [column] if column else sorted({key for _, line in lines for key in line if key.startswith(PREDICTED)})
    if lines and "parent_id" in lines[0][1]:
        lines = _whole_recordings(lines, predicted)
    id, reference, speaker = (
        columns.get(name, default)
        for name, default in zip(("id", "reference", "speaker"), ("audio_filepath", "text", "speaker"), strict=True)
    )
    counts = Counter(_text(line, id, where) for where, line in lines)
    for where, line in lines:
        name = _text(line, id, where)
        if not name:
            raise ValueError(f"{where}: {id!r} is null; it names the utterance")
        if counts[name] > 1 and line.get("offset") is not None:
            name = f"{name}@{line['offset']}"
        more = {key: str(value) for key, value in line.items() if key not in OWN and not isinstance(value, list | dict)}
        said, who = (_text({key: line.get(key)}, key, where) for key in (reference, speaker))
        if reference in predicted:
            said = None
        for key in predicted:
            system = key.removeprefix(PREDICTED).removeprefix("_") if len(predicted) > 1 else None
            yield Row(name, said, _text(line, key, where), system, speaker=who, columns=more)
        if not predicted:
            yield Row(name, said, speaker=who)


def _text(line: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return the text of a key of a line, None for null.

    Raises:
        ValueError: there is none.
    """
    if key not in line:
        raise ValueError(f"{where}: there is no {key!r}; found {', '.join(line)}")
    try:
        return optional_text(line[key], key)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _whole_recordings(
    lines: Sequence[tuple[str, dict[str, Any]]], predicted: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Join what was recognized in the chunks of each recording, as ``merge_chunked_manifest`` does."""
    recordings = defaultdict[str | None, list[tuple[str, dict[str, Any]]]](list)
    for where, line in lines:
        recordings[_text(line, "parent_id", where)].append((where, line))
    joined = []
    for name, chunks in recordings.items():
        chunks.sort(key=lambda chunk: str(chunk[1].get("chunk_index")).zfill(9))
        where, first = chunks[0]
        if [chunk.get("chunk_index") for _, chunk in chunks] != [*range(len(chunks))]:
            raise ValueError(f"{where}: chunks of {name!r} are missing, or occur twice")
        texts = {key: [_text(chunk, key, where) for where, chunk in chunks] for key in predicted}
        whole = {key: None if None in parts else " ".join(map(str, parts)) for key, parts in texts.items()}
        joined.append((where, {**first, **whole, "audio_filepath": name}))
    return joined
