"""Audio files → cuts without transcripts."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from lhotse import CutSet, Recording
from lhotse.cut import Cut

from asr.data.manifests.audio_checks import archive_problem, audio_problem
from asr.data.manifests.decoding_limits import too_long
from asr.errors import refuse_lack_of_resources
from asr.safe_io import named_path
from asr.text.normalize import SURROGATE, is_one_line


def find_audio(patterns: Sequence[str]) -> list[Path]:
    """Return the files of paths or glob patterns, each once, in order.

    Raises:
        ValueError: there is no pattern, or one matches no file.
    """
    if not patterns:
        raise ValueError("audio: the list is empty; give a file, a pattern like 'calls/*.wav', or a list of them")
    found: dict[Path, None] = {}
    for pattern in patterns:
        expanded = str(named_path(pattern))
        # a file name may look like a pattern
        names = [expanded] if Path(expanded).is_file() else sorted(glob.glob(expanded, recursive=True))
        files = [Path(name) for name in names if Path(name).is_file()]
        if not files:
            what = "names no file" if not names else "names no regular file, but a folder, a pipe or a device"
            raise ValueError(f"audio: {pattern!r} {what}; give a file, a pattern like 'calls/*.wav', or a list")
        found.update(dict.fromkeys(files))
    return list(found)


def audio_cuts(files: Sequence[Path], rate_hz: int) -> tuple[CutSet, list[tuple[str, str]]]:
    """Return one cut per readable file, with the path as its id, and (path, reason) for the others.

    Args:
        files: audio.
        rate_hz: rate to resample to.
    """
    cuts: list[Cut] = []
    unreadable = []
    for file in files:
        name = str(file)
        if not is_one_line(name):
            unreadable.append((repr(name), "transcripts are lines of path, tab and text; rename the file"))
            continue
        if SURROGATE.search(name):
            unreadable.append((repr(name), _why_not_utf8(name)))
            continue
        if problem := archive_problem(file):
            unreadable.append((name, problem))
            continue
        try:
            cut = Recording.from_file(file, recording_id=name).to_cut().with_id(name)
            problem = audio_problem(cut.recording) or too_long(cut, rate_hz)
        except Exception as error:  # a decoder may raise anything on a file that is no audio
            refuse_lack_of_resources(error, name)
            problem = f"{type(error).__name__}: {error}"
        if problem:
            unreadable.append((name, problem))
        else:
            cuts.append(cut)
    return CutSet.from_cuts(cuts), unreadable


def _why_not_utf8(name: str) -> str:
    try:
        shown = os.fsencode(name).decode()
    except UnicodeError:
        return "its name is not UTF-8, which transcripts are; rename the file"
    return f"its name, {shown!r}, is UTF-8, which the locale of this process is not; set LC_ALL=C.UTF-8"
