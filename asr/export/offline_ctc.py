"""CTC on whole utterances, for any encoder, as sherpa-onnx's ``zipformer_ctc``.

B batch, T frames, F mel bins, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asr.export.graph import Call, Graph
from asr.models.heads.protocols import FrameScores
from asr.models.recognizer import Recognizer

EXAMPLE_FRAMES = 157, 120  # of the utterances that graphs are traced with


class OfflineCtc:
    """Features of whole utterances → log-probabilities of tokens in each frame.

    Args:
        recognizer: in evaluation mode, whose head has CTC.
    """

    streams = False

    def __init__(self, recognizer: Recognizer) -> None:
        self.module = _EncoderAndCtc(recognizer)
        self.graphs: Sequence[Graph] = [
            Graph(
                "model",
                self.module,
                example_features(recognizer),
                ("x", "x_lens"),
                ("log_probs", "log_probs_len"),
                {"x": {0: "N", 1: "T"}, "x_lens": {0: "N"}, "log_probs": {0: "N", 1: "T'"}, "log_probs_len": {0: "N"}},
                # of every encoder: it names what goes in and comes out
                {"model_type": "zipformer2_ctc", "version": 1, "model_author": "werdict", "comment": "CTC"},
            )
        ]

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) and their lengths (B,), see ``Export``."""
        log_probs, lengths = call("model", (features, num_frames))
        return log_probs, lengths

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recognizer's own."""
        log_probs, lengths = self.module(features, num_frames)
        return log_probs, lengths


def example_features(recognizer: Recognizer) -> tuple[Tensor, Tensor]:
    """Return features (2, T, F), and how many of their frames are valid."""
    features = torch.zeros(len(EXAMPLE_FRAMES), max(EXAMPLE_FRAMES), len(recognizer.normalize.mean))
    return features, torch.tensor(EXAMPLE_FRAMES)


class _EncoderAndCtc(nn.Module):
    def __init__(self, recognizer: Recognizer) -> None:
        super().__init__()
        assert isinstance(recognizer.head, FrameScores)
        self.recognizer, self.head = recognizer, recognizer.head
        # a trace ends in the mode in which it began
        self.eval()

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        encodings, lengths = self.recognizer(features, num_frames)
        return self.head.frame_log_probs(encodings), lengths
