"""Transducers on chunks, for causal Zipformers, as sherpa-onnx's online ``transducer``.

B batch, T frames, F mel bins, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.export.chunks import ChunkEncoder
from asr.export.graph import Call, Graph
from asr.export.transducer import PredictorAndJoiner
from asr.models.heads.protocols import Transduces
from asr.models.recognizer import Recognizer


class StreamingTransducer:
    """Features of a chunk, and states → the joiner's part of each frame, and states; a predictor and a joiner.

    Args:
        recognizer: in evaluation mode, whose head is a transducer.

    Raises:
        ValueError: its encoder cannot take chunks.
    """

    streams = True

    def __init__(self, recognizer: Recognizer) -> None:
        assert isinstance(recognizer.head, Transduces)
        self.search = PredictorAndJoiner(recognizer.head)
        self.encoder = ChunkEncoder(recognizer, recognizer.head.project)
        encoder = self.encoder.graph("encoder", "encoder_out", "streaming transducer")
        self.graphs: Sequence[Graph] = (encoder, *self.search.graphs)

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) of all chunks after some contexts, and their lengths, see ``Export``."""
        log_probs = self.search.log_probs(call, self.encoder.scores(call, "encoder", features))
        return log_probs, torch.full_like(num_frames, log_probs.shape[1])

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recognizer's own, of the whole chunks at once."""
        log_probs = self.search.expected(self.encoder.encodings(features))
        return log_probs, torch.full_like(num_frames, log_probs.shape[1])
