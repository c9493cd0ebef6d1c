"""Utterances as the recognizer sees them: features as they are augmented, and its tokens over time.

B batch, T frames, F mel bins, U tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.data.loading.batch import Batch
from asr.data.loading.dataset import SpeechDataset
from asr.data.seeding import seed_for
from asr.models.heads.protocols import FrameScores, ScoresPaths
from asr.models.recognizer import Recognizer
from asr.training.speech_data_module import SpeechDataModule

NUM_EXAMPLES = 2


@dataclass(frozen=True)
class Example:
    """An utterance with what is drawn of it.

    Attributes:
        id: of the cut.
        text: its transcript.
        matrix: (R, T) a row for each feature or token.
        shift_s: seconds from a column to the next.
        rows: names of the rows; empty for features.
        start_s: where the first column begins.
    """

    id: str
    text: str
    matrix: np.ndarray
    shift_s: float
    rows: tuple[str, ...] = ()
    start_s: float = 0.0


def augmented_features(recognizer: Recognizer, data: SpeechDataModule) -> list[Example]:
    """Return normalized features of training utterances, with the augmentation of audio and features; NaN: masked."""
    cuts = data.prepared.cuts("train")
    dataset, _ = data.readers.training_data(cuts, data.seed, data.perturb)
    batch = _batch(dataset, cuts, recognizer, seed_for("report", data.seed))
    if not len(batch):
        return []
    features = recognizer.normalize(batch.features)
    if recognizer.augment is not None:
        generator = torch.Generator().manual_seed(batch.seed)
        features = recognizer.augment(features, batch.num_frames, generator)
    if (draw := getattr(recognizer.encoder, "example_masks", None)) is not None:
        masked = draw(batch.num_frames)
        features = features.masked_fill(masked.to(features.device).unsqueeze(2), torch.nan)
    matrices = [row[:length].mT for row, length in zip(features, batch.num_frames, strict=True)]
    return _examples(batch, matrices, data.readers.features.frame_shift_s)


def token_alignments(recognizer: Recognizer, data: SpeechDataModule) -> list[Example]:
    """Return ``token_probs`` of utterances of the first development set."""
    dataset = SpeechDataset(data.readers.features, data.readers.tokenizer)
    batch = _batch(dataset, data.prepared.cuts(data.prepared.names("dev")[0]), recognizer, 0)
    matrices = token_probs(recognizer, batch) if len(batch) else []
    pieces = data.readers.tokenizer.pieces
    rows = [tuple(pieces[token] for token in tokens.tolist()) for tokens in batch.tokens]
    factor, frame_s = recognizer.subsampling_factor, data.readers.features.frame_shift_s
    start_s = (recognizer.center_frames - factor / 2) * frame_s
    examples = _examples(batch, matrices, factor * frame_s, rows) if matrices else []
    return [replace(example, start_s=start_s) for example in examples]


@torch.inference_mode()
def token_probs(recognizer: Recognizer, batch: Batch) -> list[Tensor]:
    """Return how probable each token of a transcript is in each frame, (U, T') of each utterance.

    Tokens of CTC have their posterior; those of a transducer their probability after the tokens before them. Empty if
    the head scores neither.
    """
    head, tokens = recognizer.head, batch.tokens
    if not isinstance(head, FrameScores | ScoresPaths):
        return []
    encodings, num_frames = recognizer(batch.features, batch.num_frames)
    if isinstance(head, FrameScores):
        scores = head.frame_log_probs(encodings).gather(2, tokens[:, None].expand(-1, encodings.shape[1], -1))
    else:
        scores = head.path_scores(encodings, tokens, batch.num_tokens)[1]  # (B, T', U + 1)
    sizes = zip(scores.exp(), num_frames, batch.num_tokens, strict=True)
    return [row[:frames, :tokens].mT for row, frames, tokens in sizes]


def _batch(dataset: SpeechDataset, cuts: Sequence[Any], recognizer: Recognizer, seed: int) -> Batch:
    """Return the first and the middle cut, as far as they can be read, on the device of the recognizer."""
    recognizer.eval()
    numbers = dict.fromkeys(len(cuts) * place // NUM_EXAMPLES for place in range(NUM_EXAMPLES))
    chosen: Any = [cuts[number] for number in numbers]  # a list, where lhotse has sets
    return dataset[(seed, chosen)].to(next(recognizer.parameters()).device)


def _examples(
    batch: Batch, matrices: list[Tensor], shift_s: float, rows: list[tuple[str, ...]] | None = None
) -> list[Example]:
    named = rows or [()] * len(batch)
    return [
        Example(id, text, matrix.float().cpu().numpy(), shift_s, names[: len(matrix)])
        for id, text, matrix, names in zip(batch.ids, batch.texts, matrices, named, strict=True)
        if matrix.numel()  # a transcript may be empty
    ]
