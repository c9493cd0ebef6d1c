"""A folder with the transcripts of many recordings, and a record of what made them: none is written twice."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.data.manifests.audio_checks import file_content
from asr.errors import ConfigError
from asr.inference.transcript import FORMATS, Transcript
from asr.safe_io import write_new

RECORD = ".asr-transcribe.jsonl"


class TranscriptFolder:
    """Transcripts in a folder, below which they lie as the audio lies below the place that it was found in.

    The record is a line of JSON about the maker, and then one for each recording.

    Args:
        folder: of transcripts; it need not exist.
        files: recordings, with the places that they were found in.
        formats: of transcripts, keys of ``FORMATS``.

    Raises:
        ConfigError: two recordings would have the same transcripts.
    """

    def __init__(self, folder: Path, files: Mapping[Path, Path], formats: Sequence[str]) -> None:
        self.folder, self.record, self.formats = folder, folder / RECORD, formats
        self.names = {file: str(file.relative_to(place).with_suffix("")) for file, place in files.items()}
        for name, number in Counter(self.names.values()).items():
            if number > 1:
                same = [str(file) for file, other in self.names.items() if other == name]
                raise ConfigError(
                    f"output_dir: {same[0]} and {same[1]} would have one transcript, {folder / name}.{formats[0]}; "
                    "transcribe them to different folders, or rename one"
                )
        self.maker: Mapping[str, Any] = {}
        self.is_whole = True
        self.known: dict[str, tuple[int, int]] = {}  # content of recordings, by the names of their transcripts

    def made_by(self, maker: Mapping[str, Any]) -> None:
        """Read the record.

        Raises:
            ConfigError: transcripts there were made by something else.
        """
        self.maker = maker
        if not self.record.exists():
            return
        lines = self.record.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
        # a process that was killed may have left half a line
        self.is_whole = lines[-1].endswith("\n")
        written = json.loads(lines[0])
        for line in lines[1:]:
            with contextlib.suppress(ValueError):
                name, size, crc32 = json.loads(line)
                self.known[name] = (size, crc32)
        if keys := [key for key in {**written, **maker} if written.get(key) != maker.get(key)]:
            raise ConfigError(
                f"output_dir: {self.folder} holds transcripts that were made with another {' and '.join(keys)}; name "
                f"another folder, or remove them and {RECORD}"
            )

    def missing(self) -> tuple[list[Path], list[tuple[Path, str]]]:
        """Return the recordings that lack transcripts, and (path, reason) for those whose name is taken."""
        missing, blocked = [], []
        for file in self.names:
            existing = [path for path in self._paths(file).values() if path.exists()]
            if existing and (why := self._why_not_of(file)):
                blocked.append((file, f"{str(existing[0])!r} {why}; remove it, or name another output_dir"))
            elif len(existing) < len(self.formats):
                missing.append(file)
        return missing, blocked

    def write(self, transcript: Transcript) -> None:
        """Record a recording, and write the transcripts that it lacks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines: list[Any] = [] if self.record.exists() else [self.maker]
        lines.append([self.names[transcript.path], *file_content(transcript.path)])
        with self.record.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write("" if self.is_whole else "\n")
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
        self.is_whole = True
        for name, path in self._paths(transcript.path).items():
            if not path.exists():
                with contextlib.suppress(FileExistsError):  # of the user, or of another process
                    write_new(path, FORMATS[name](transcript))

    def _paths(self, file: Path) -> dict[str, Path]:
        return {name: self.folder / f"{self.names[file]}.{name}" for name in self.formats}

    def _why_not_of(self, file: Path) -> str:
        """Return why a file that exists is no transcript of this recording; empty if it is one."""
        if self.names[file] not in self.known:
            return f"was not written by asr-transcribe, as {RECORD} of that folder does not name it"
        try:
            return "" if self.known[self.names[file]] == file_content(file) else "is of another recording"
        except OSError:  # which reading it will tell
            return ""
