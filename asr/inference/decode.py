"""Decodes batches: encodings → tokens → text."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from asr.data.features import Features
from asr.data.loading.batch import Batch
from asr.data.loading.loader import DataModule
from asr.decoding.hypothesis import Decoder, Hypothesis
from asr.errors import RunFailed
from asr.evaluation.wer import Unit, Utterance, Word
from asr.inference.batches import Processed, process
from asr.inference.word_times import emissions_of, words_of
from asr.models import devices
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import Tokenizer


class UnscoredText(RunFailed):
    """A text was chosen by scores that are not finite."""


def decode(
    recognizer: Recognizer,
    decoder: Decoder,
    tokenizer: Tokenizer,
    batch: Batch,
    encodings: Tensor,
    num_frames: Tensor,
    features: Features | None = None,
    unit: Unit = "word",
) -> list[Utterance]:
    """Return reference and hypothesis of every utterance of a batch.

    Args:
        encodings: (B, T, D).
        num_frames: (B,) valid encodings.
        features: how those of the batch were made; with them words are found in time, too.
        unit: what counts as a word there.

    Raises:
        UnscoredText: scores are not finite.
    """
    with torch.inference_mode():
        hypotheses = [best for best, *_ in decoder(recognizer.head, encodings, num_frames)]
        _refuse_unscored(batch.ids, encodings, num_frames, hypotheses)
        words: list[tuple[Word, ...]] = [()] * len(batch)
        if features is not None:
            emissions = emissions_of(recognizer.head, encodings, num_frames, hypotheses)
            frames = recognizer.subsampling_factor, recognizer.center_frames
            words = words_of(emissions, tokenizer.surfaces, batch, features, *frames, unit)
    texts = (tokenizer.decode(best.tokens) for best in hypotheses)
    rows = zip(batch.ids, batch.texts, texts, batch.speakers, words, strict=True)
    return [Utterance(*row) for row in rows]


def _refuse_unscored(
    ids: Sequence[str], encodings: Tensor, num_frames: Tensor, hypotheses: Sequence[Hypothesis]
) -> None:
    """Refuse texts that were chosen by scores that are not finite."""
    # padding may hold anything, NaN too
    is_padding = torch.arange(encodings.shape[1], device=encodings.device) >= num_frames[:, None]
    are_finite = devices.to_host((encodings.isfinite().all(dim=-1) | is_padding).all(dim=-1))
    for name, is_finite, best in zip(ids, are_finite, hypotheses, strict=True):
        if not (is_finite and math.isfinite(best.score)):
            raise UnscoredText(
                f"{name}: the scores of the model are not finite: its weights are too large or damaged; choose another "
                "checkpoint"
            )


def decode_all(
    recognizer: Recognizer, decoder: Decoder, data_module: DataModule, cuts: Collection[Any], name: str
) -> Processed[Utterance]:
    """Decode every cut of a set, see ``process``, with the times of words.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """

    def work(batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[Utterance]:
        encoded, timed = (batch, encodings, num_frames), (data_module.features, data_module.unit)
        return decode(recognizer, decoder, data_module.tokenizer, *encoded, *timed)

    return process(recognizer, data_module, cuts, f"decoding {name}", work)
