"""What made the transcripts of a folder, and of which recordings: no others are added, or taken for those asked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from asr.data.manifests.audio_checks import file_content
from asr.data.preparation.fingerprint import describe_file
from asr.decoding.scorers.fusion import FILE_OPTIONS
from asr.errors import ConfigError
from asr.inference.transcripts_lm import FOLDER
from asr.safe_io import named_path
from asr.training.checkpoints.loading import checkpoint_file, run_folder_of

NAME = ".asr-transcribe.jsonl"
OPTIONS = ("weights", "average_since", "decoder", "max_segment_s", "channels")


def maker_of(options: DictConfig) -> dict[str, Any]:
    """Return all that decides on transcripts, as plain data: options, and digests of files.

    Raises:
        ConfigError: there is no such run.
    """
    plain: dict[str, Any] = OmegaConf.to_container(options, resolve=True)  # type: ignore[assignment]
    found = {key: plain.get(key) for key in OPTIONS}
    checkpoint = checkpoint_file(str(options.run))
    files = {"checkpoint": checkpoint}
    if decoder := found["decoder"]:
        files |= {key: named_path(decoder[key]) for key in FILE_OPTIONS if decoder.get(key) is not None}
    elif run_dir := run_folder_of(checkpoint):
        # what the run itself decodes with
        files |= {f"{FOLDER}/{path.name}": path for path in (run_dir / FOLDER).glob("*")}
    return found | {key: describe_file(path)["sha256"] for key, path in files.items() if path.is_file()}


class TranscriptRecord:
    """The record of a folder: a line of JSON about the maker, and then one for each recording.

    Args:
        folder: of transcripts; it need not exist.
        maker: of the transcripts that are asked for.

    Raises:
        ConfigError: transcripts there were made by something else.
    """

    def __init__(self, folder: Path, maker: Mapping[str, Any]) -> None:
        self.path, self.maker = folder / NAME, maker
        self.is_whole = True
        self.known: dict[str, tuple[int, int]] = {}  # content of recordings, by the names of their transcripts
        if not self.path.exists():
            return
        written = self._read()
        if keys := [key for key in {**written, **maker} if written.get(key) != maker.get(key)]:
            raise ConfigError(
                f"output_dir: {folder} holds transcripts that were made with another {' and '.join(keys)}; name "
                f"another folder, or remove them and {NAME}"
            )

    def _read(self) -> dict[str, Any]:
        first, *others = self.path.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
        # a process that was killed may have left half a line
        self.is_whole = [first, *others][-1].endswith("\n")
        for line in others:
            with contextlib.suppress(ValueError):
                name, size, crc32 = json.loads(line)
                self.known[name] = (size, crc32)
        return dict(json.loads(first))

    def why_not_of(self, name: str, recording: Path) -> str:
        """Return why a file that is there is no transcript of this recording; empty if it is one."""
        if name not in self.known:
            return f"was not written by asr-transcribe, as {NAME} of that folder does not name it"
        try:
            return "" if self.known[name] == file_content(recording) else "is of another recording"
        except OSError:  # which reading it will tell
            return ""

    def add(self, name: str, recording: Path) -> None:
        """Record a recording whose transcript is about to be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.path.exists() else [self.maker]
        with self.path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write("" if self.is_whole else "\n")
            file.writelines(f"{json.dumps(line)}\n" for line in [*lines, [name, *file_content(recording)]])
        self.is_whole = True
