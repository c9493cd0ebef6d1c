"""CTC on chunks, for causal Zipformers, as sherpa-onnx's ``zipformer2_ctc``.

B batch, T frames, F mel bins, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.export.chunks import ChunkEncoder
from asr.export.graph import Call, Graph
from asr.models.heads.protocols import FrameScores
from asr.models.recognizer import Recognizer

EMBED_BINS = 19  # for transducers sherpa-onnx counts them, for CTC it assumes 80 mel bins


class StreamingCtc:
    """Features of a chunk, and states → log-probabilities of tokens in each frame, and states.

    Args:
        recognizer: in evaluation mode, whose head has CTC.

    Raises:
        ValueError: its encoder cannot take chunks.
    """

    streams = True

    def __init__(self, recognizer: Recognizer) -> None:
        assert isinstance(recognizer.head, FrameScores)
        self.head = recognizer.head
        self.encoder = ChunkEncoder(recognizer, self.head.frame_log_probs, EMBED_BINS)
        self.graphs: Sequence[Graph] = [self.encoder.graph("model", "log_probs", "streaming CTC")]

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) of all chunks, and their lengths (B,), see ``Export``."""
        log_probs = self.encoder.scores(call, "model", features)
        return log_probs, torch.full_like(num_frames, log_probs.shape[1])

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recognizer's own, of the whole chunks at once."""
        log_probs = self.head.frame_log_probs(self.encoder.encodings(features))
        return log_probs, torch.full_like(num_frames, log_probs.shape[1])
