"""A recording that a page has sent → its transcript; it is in memory alone, and only while it is decoded."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

import soundfile

from asr.data.manifests.truncated_audio import UNKNOWN_FRAMES
from asr.demo.errors import Refused
from asr.errors import raise_if_out_of_resources
from asr.evaluation.word_files import word_row
from asr.inference.transcribe import Transcriber
from asr.inference.transcripts.formats import FORMATS
from asr.inference.transcripts.transcript import Transcript

DOWNLOADS = ("txt", "srt", "json")


@contextlib.contextmanager
def memory_file() -> Iterator[IO[bytes]]:
    """Yield a file without a name, which is gone when it is closed, however the process ends."""
    with os.fdopen(os.memfd_create("recording", os.MFD_CLOEXEC), "wb") as file:
        yield file


@dataclass(frozen=True)
class Recordings:
    """Transcribes recordings.

    Attributes:
        transcriber: of files.
        max_s: longest recording.
    """

    transcriber: Transcriber
    max_s: float

    def transcribe(self, file: IO[bytes], name: str) -> dict[str, Any]:
        """Return a transcript as plain data.

        Args:
            file: in memory, with any format that libsndfile reads.
            name: that the user knows it by; only shown.

        Raises:
            Refused: it cannot be read, or is too long.
        """
        file.flush()
        path = Path(f"/proc/self/fd/{file.fileno()}")
        begin = time.monotonic()
        duration_s, num_channels = self._measure(path, name)
        transcripts, unreadable = self.transcriber([path], "a recording")
        for _, reason in unreadable:
            for before in (": ", ", in ", " from "):
                reason = reason.replace(f"{before}{path}", "")
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} cannot be read: {reason}")
        found = replace(transcripts[0], path=Path(name))
        several = "" if num_channels == 1 else f"The first of {num_channels} channels was transcribed."
        return {
            "name": name,
            "duration_s": round(duration_s, 3),
            "work_s": round(time.monotonic() - begin, 3),
            "note": several,
            "segments": _segments(found),
            "downloads": {ending: FORMATS[ending](found) for ending in DOWNLOADS},
        }

    def _measure(self, path: Path, name: str) -> tuple[float, int]:
        """Return the seconds and the channels that a header states, before anything is decoded."""
        if not path.stat().st_size:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} is empty")
        try:
            header = soundfile.info(path)
        except Exception as error:  # a decoder may raise anything on a file that is no audio
            raise_if_out_of_resources(error, name)
            reason = getattr(error, "error_string", type(error).__name__).rstrip(".")
            raise Refused(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"{name} cannot be read: {reason}. WAV, FLAC, MP3, Ogg, AIFF and others can; save it as one of these",
            ) from error
        # a length that is not known is refused with all that cannot be checked
        if header.duration > self.max_s and header.frames != UNKNOWN_FRAMES:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"{name} is {header.duration:.0f} s long, and at most {self.max_s:g} s are taken (max_duration_s); "
                "asr-transcribe takes longer files",
            )
        return header.duration, header.channels


def _segments(transcript: Transcript) -> list[dict[str, Any]]:
    return [
        {"start": one.start_s, "end": one.end_s, "text": one.text, "words": [word_row(word) for word in one.words]}
        for one in transcript.segments
    ]
