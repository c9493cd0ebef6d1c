"""Transducers on whole utterances, for any encoder, as sherpa-onnx's ``transducer``.

B batch, T frames, F mel bins, J width of the joiner, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from asr.export.graph import Call, Graph
from asr.export.offline_ctc import example_features
from asr.export.transducer import PredictorAndJoiner
from asr.models.heads.protocols import Transduces
from asr.models.recognizer import Recognizer


class OfflineTransducer:
    """Features of whole utterances → the joiner's part of each frame; a predictor and a joiner.

    Args:
        recognizer: in evaluation mode, whose head is a transducer.
    """

    streams = False

    def __init__(self, recognizer: Recognizer) -> None:
        assert isinstance(recognizer.head, Transduces)
        self.recognizer, self.search = recognizer, PredictorAndJoiner(recognizer.head)
        out, lengths = "encoder_out", "encoder_out_lens"
        encoder = Graph(
            "encoder",
            _Encoder(recognizer, recognizer.head),
            example_features(recognizer),
            ("x", "x_lens"),
            (out, lengths),
            {"x": {0: "N", 1: "T"}, "x_lens": {0: "N"}, out: {0: "N", 1: "T'"}, lengths: {0: "N"}},
            # of every encoder: it names what goes in and comes out
            {"model_type": "zipformer2", "version": 1, "model_author": "werdict", "comment": "transducer"},
        )
        self.graphs: Sequence[Graph] = (encoder, *self.search.graphs)

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) after some contexts, and their lengths (B,), see ``Export``."""
        frames, lengths = call("encoder", (features, num_frames))
        return self.search.log_probs(call, frames), lengths

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recognizer's own."""
        encodings, lengths = self.recognizer(features, num_frames)
        return self.search.expected(encodings), lengths


class _Encoder(nn.Module):
    def __init__(self, recognizer: Recognizer, head: Transduces) -> None:
        super().__init__()
        self.recognizer, self.head = recognizer, head
        # a trace ends in the mode in which it began
        self.eval()

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        encodings, lengths = self.recognizer(features, num_frames)
        return self.head.project(encodings), lengths
