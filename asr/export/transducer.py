"""What offline and streaming exports of transducers share: the graphs of the predictor and of the joiner.

B batch, T frames, D width of encodings, N hypotheses, C tokens of context, J width of the joiner, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.export.graph import Call, Graph
from asr.models.heads.protocols import Transduces
from asr.text.vocabulary import BLANK_ID

NUM_CONTEXTS = 5  # that frames are joined with in a check, beside the one before the first token


class PredictorAndJoiner:
    """The parts of a transducer after its encoder, which sherpa-onnx calls decoder and joiner.

    Args:
        head: in evaluation mode.
    """

    def __init__(self, head: Transduces) -> None:
        self.head = head
        context = torch.full((3, head.context_size), -1)
        context[:, -1] = BLANK_ID
        with torch.no_grad():
            predictions = head.predict(context)
            vocab_size = head.join(predictions, predictions).shape[1]
        generator = torch.Generator().manual_seed(0)
        others = torch.randint(1, vocab_size, (NUM_CONTEXTS, head.context_size), generator=generator)
        self.contexts = torch.cat((context[:1], others))
        self.graphs = (
            Graph(
                "decoder",
                _Predictor(head),
                (context,),
                ("y",),
                ("decoder_out",),
                {"y": {0: "N"}, "decoder_out": {0: "N"}},
                {"context_size": head.context_size, "vocab_size": vocab_size},
                # an embedding and a small convolution: hardly anything would become smaller
                quantized=False,
            ),
            Graph(
                "joiner",
                _Joiner(head),
                (predictions, predictions),
                ("encoder_out", "decoder_out"),
                ("logit",),
                {"encoder_out": {0: "N"}, "decoder_out": {0: "N"}, "logit": {0: "N"}},
                {"joiner_dim": predictions.shape[1]},
            ),
        )

    def log_probs(self, call: Call, frames: Tensor) -> Tensor:
        """Return log-probabilities (B, T, V) of projected frames (B, T, J), each joined with a context in turn."""
        (predictions,) = call("decoder", (self.contexts,))
        (log_probs,) = call("joiner", (frames.flatten(0, 1), predictions[self._turns(frames)]))
        return log_probs.unflatten(0, frames.shape[:2])

    def expected(self, encodings: Tensor) -> Tensor:
        """Return what `log_probs` should be, of encodings (B, T, D)."""
        frames = self.head.project(encodings)
        predictions = self.head.predict(self.contexts)[self._turns(frames)]
        return self.head.join(frames, predictions.view(frames.shape))

    def _turns(self, frames: Tensor) -> Tensor:
        return torch.arange(frames.shape[0] * frames.shape[1]) % len(self.contexts)


class _Predictor(nn.Module):
    def __init__(self, head: Transduces) -> None:
        super().__init__()
        self.head = head
        self.eval()

    def forward(self, context: Tensor) -> Tensor:
        return self.head.predict(context)


class _Joiner(nn.Module):
    def __init__(self, head: Transduces) -> None:
        super().__init__()
        self.head = head
        self.eval()

    def forward(self, frames: Tensor, predictions: Tensor) -> Tensor:
        return self.head.join(frames, predictions)
