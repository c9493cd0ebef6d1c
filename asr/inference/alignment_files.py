"""Times of words as files of a set, in the formats of other programs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from asr.evaluation.word_files import ctm_lines, json_line, textgrid
from asr.inference.align import AlignedText
from asr.safe_io import write_new

UNUSUAL = re.compile(r'^\.|[\x00-\x1f\x7f%/\\:*?"<>|]')  # in names of files
MAX_NAME_BYTES = 200  # of a file; systems allow 255, with what is added


def write_alignments(folder: Path, name: str, texts: Sequence[AlignedText], formats: Sequence[str]) -> None:
    """Write the aligned texts of a set in each format: ``ctm``, ``json``, ``textgrid``."""
    if "ctm" in formats:
        write_new(folder / f"{name}.ctm", "".join(ctm_lines(utt.id, utt.words) for utt in texts))
    if "json" in formats:
        lines = (json_line(utt.id, utt.text, utt.words, log_prob=round(utt.log_prob, 3)) for utt in texts)
        write_new(folder / f"{name}.jsonl", "".join(lines))
    if "textgrid" in formats:
        (folder / name).mkdir()
        for utt in texts:
            write_new(folder / name / f"{_file_name(utt.id)}.TextGrid", textgrid(utt.duration_s, {"words": utt.words}))


def _file_name(id: str) -> str:
    """Return an id as a name that every system allows; a long one is cut, and ends with a digest of the whole."""
    plain = UNUSUAL.sub(lambda match: f"%{ord(match[0]):02X}", id)
    if len(plain.encode()) <= MAX_NAME_BYTES:
        return plain
    digest = hashlib.sha256(id.encode()).hexdigest()[:16]
    return f"{plain.encode()[: MAX_NAME_BYTES - 17].decode(errors='ignore')}-{digest}"
