"""Reads folders of Kaldi: small tables with a name at the start of each line."""

from __future__ import annotations

import os
import re
from pathlib import Path

from asr.data.manifests.audio_checks import ELSEWHERE
from asr.data.manifests.rows import Row
from asr.text_files import numbered_lines

KALDI_FILES = ("wav.scp", "segments", "text", "utt2spk")
IN_ARCHIVE = re.compile(r".*:\d+(\[.*\])?")  # file.ark:123
# run in a Kaldi folder: saves what the commands of wav.scp print
CONVERT = (
    'mkdir -p wav && while read -r id command; do bash -c "${command%|}" </dev/null >"wav/$id.wav" && '
    'echo "$id $PWD/wav/$id.wav"; done <wav.scp >wav.new && mv wav.new wav.scp'
)


def is_kaldi(folder: Path) -> bool:
    """Return whether a folder is one of Kaldi."""
    return (folder / "wav.scp").is_file()


def read_kaldi(folder: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """Read a folder of Kaldi; relative paths in ``wav.scp`` start, as in Kaldi, at the current folder.

    Without ``segments`` each recording is an utterance; its fifth field may be a channel, else the first is used.

    Returns:
        The utterances, and (id, reason) of those that lack something.

    Raises:
        ValueError: a line is malformed, or repeats a name, or names no file; the message names file and line.
    """
    files = {name: (where, _file(where, place)) for name, (where, place) in _table(folder / "wav.scp").items()}
    if not (folder / "text").is_file():
        raise ValueError(f"{folder} has no file text beside wav.scp, with a name and a transcript on each line")
    texts, speakers, segments = (_table(folder / name) for name in ("text", "utt2spk", "segments"))
    rows, dropped = [], []
    for id, (where, place) in (segments or {name: (where, name) for name, (where, _) in files.items()}).items():
        recording, start_s, end_s, channel = _part(where, place) if segments else (place, 0.0, None, None)
        if id not in texts:
            dropped.append((id, f"missing transcript: {folder / 'text'} has no line for it"))
        elif recording not in files:
            dropped.append((id, f"missing recording: {recording}, in {where}"))
        else:
            speaker = speakers[id][1] or None if id in speakers else None
            audio = Path(files[recording][1])
            rows.append(Row(recording, audio, texts[id][1], where, speaker, None, id, start_s, end_s, channel=channel))
    ids = {row.id for row in rows} | {id for id, _ in dropped}
    dropped += [(id, f"missing recording: only {where} has it") for id, (where, _) in texts.items() if id not in ids]
    return rows, dropped


def _table(path: Path) -> dict[str, tuple[str, str]]:
    """Return the rest of each line, and where it stands, by the name at its start; nothing if there is no such file."""
    entries: dict[str, tuple[str, str]] = {}
    for where, line in numbered_lines(path) if path.is_file() else ():
        name, *rest = line.split(maxsplit=1)
        if entries.setdefault(name, entry := (where, "".join(rest).strip())) != entry:
            raise ValueError(f"{where}: {name!r} is in {entries[name][0]} too; keep one")
    return entries


def _file(where: str, place: str) -> str:
    if "|" in place:
        raise ValueError(
            f"{where}: {place!r} is a command, and commands are not run. If you trust all of them, save their output "
            f"to files: run this line in that folder:\n{CONVERT}"
        )
    if not place or IN_ARCHIVE.fullmatch(place) or ELSEWHERE.match(place):
        raise ValueError(
            f"{where}: {place!r} is not an audio file here; copy it to this machine, or write archives to files, for "
            "example with Kaldi's wav-copy"
        )
    return os.path.abspath(os.path.expanduser(place))


def _part(where: str, place: str) -> tuple[str, float, float | None, int | None]:
    """Return recording, start, end and channel of a line of ``segments``; an end below 0 is that of the recording."""
    try:
        recording, *times = place.split()
        start_s, end_s, *channel = map(float, times)
        (number,) = map(int, channel) if channel else (None,)
    except ValueError:
        raise ValueError(f"{where}: expected a recording, start and end in seconds, and optionally a channel") from None
    return recording, start_s, None if end_s < 0 else end_s, number
