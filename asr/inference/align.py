"""Sets with transcripts → the times of their words."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from asr.data.loading.batch import Batch
from asr.data.loading.loader import DataModule
from asr.decoding.forced_alignment import align
from asr.inference.decode import Processed, aligned, process, words_of
from asr.models import devices
from asr.models.heads.protocols import FrameScores, ScoresPaths
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import UNKNOWN_SURFACE
from werdict.error_files import ctm_lines, json_line, textgrid
from werdict.files import write_new
from werdict.formatting import shortlist
from werdict.scoring import SPACE, Unit, Word
from werdict.scoring import words_of as spoken_units

UNUSUAL = re.compile(r'^\.|[\x00-\x1f\x7f%/\\:*?"<>|]')  # in names of files
MAX_NAME_BYTES = 200  # of a file; systems allow 255, with what is added


@dataclass(frozen=True)
class AlignedText:
    """A transcript with the times of its words.

    Attributes:
        text: normalized.
        words: of the text, as it writes them.
        log_prob: of the most probable path; -inf if the text has more tokens than the encoder leaves frames.
        unknown: words with characters that the tokenizer does not know.
    """

    id: str
    text: str
    words: tuple[Word, ...]
    duration_s: float
    log_prob: float
    unknown: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether there are enough frames for the text; without them the times mean nothing."""
        return self.log_prob > -math.inf

    @property
    def why_not(self) -> str:
        """Why it does not fit."""
        if math.isnan(self.log_prob):
            return "the scores of the model are not finite"
        reason = (
            f"{self.duration_s:.2f} s are too short for its text: the encoder leaves fewer frames than it has tokens"
        )
        if self.unknown:
            return f"{reason}; characters that the run does not know are tokens too: {shortlist(self.unknown)}"
        return reason


def units_with_times(text: str, unit: Unit) -> list[str]:
    """Return what counts as the words of a text, without the spaces that count as characters: they have no times."""
    return [word for word in spoken_units(text, unit) if word != SPACE]


def align_all(
    recognizer: Recognizer, data_module: DataModule, cuts: Collection[Any], name: str
) -> Processed[AlignedText]:
    """Align the transcripts of a set by a recognizer whose head scores frames or paths, see ``process``.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """

    head, unit = recognizer.head, data_module.unit
    assert isinstance(head, FrameScores | ScoresPaths)

    def work(batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[AlignedText]:
        alignment = align(head, encodings, num_frames, batch.tokens, batch.num_tokens)
        emissions = aligned(alignment, batch.tokens, batch.num_tokens)
        arguments = data_module.tokenizer.surfaces, batch, data_module.features
        words = words_of(emissions, *arguments, recognizer.subsampling_factor, recognizer.center_frames, unit)
        durations = devices.to_host(batch.num_frames * data_module.features.frame_shift_s)
        rows = zip(batch.ids, batch.texts, words, durations, devices.to_host(alignment.score), strict=True)
        return [_as_written(*row, unit) for row in rows]

    return process(recognizer, data_module, cuts, f"aligning {name}", work)


def _as_written(
    id: str, text: str, words: tuple[Word, ...], duration_s: float, log_prob: float, unit: Unit
) -> AlignedText:
    """Return the words of an utterance with the characters that tokens only mark as unknown."""
    written = units_with_times(text, unit)
    if len(written) != len(words):  # an unknown token may hold a space
        written = [word.text for word in words]
    unknown = tuple(surface for surface, word in zip(written, words, strict=True) if UNKNOWN_SURFACE in word.text)
    spoken = tuple(replace(word, text=surface) for surface, word in zip(written, words, strict=True))
    return AlignedText(id, text, spoken, duration_s, log_prob, unknown)


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
