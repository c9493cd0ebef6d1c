"""The kinds of export: CTC and transducers, of whole utterances or of chunks, as sherpa-onnx has them.

B batch, T frames, F mel bins, D width of encodings, N hypotheses, C tokens of context, J width of the joiner, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from asr.export.encoder_graphs import ChunkEncoder, WholeEncoder
from asr.export.graph import Call, Graph
from asr.models.heads.protocols import FrameScores, Transduces
from asr.models.recognizer import Recognizer
from asr.text.vocabulary import BLANK_ID

CTC_EMBED_BINS = 19  # for transducers sherpa-onnx counts them, for CTC it assumes 80 mel bins
NUM_CONTEXTS = 5  # that frames are joined with in a check, beside the one before the first token


def export_of(recognizer: Recognizer, model_type: str, streaming: bool) -> Export:
    """Return the export.

    Args:
        recognizer: in evaluation mode.
        model_type: ``ctc`` or ``transducer``.
        streaming: whether it is to take chunks.

    Raises:
        ValueError: the recognizer has no such head, or cannot take chunks.
    """
    head = recognizer.head
    if model_type == "ctc" and isinstance(head, FrameScores):
        return CtcExport(_encoder(recognizer, head.frame_log_probs, streaming, CTC_EMBED_BINS), head)
    if model_type == "transducer" and isinstance(head, Transduces):
        return TransducerExport(_encoder(recognizer, head.project, streaming), head)
    other = "transducer" if model_type == "ctc" else "ctc"
    raise ValueError(f"model_type={model_type}: {type(head).__name__} has none; give model_type={other}")


def _encoder(
    recognizer: Recognizer, score: Callable[[Tensor], Tensor], streaming: bool, embed_bins: int | None = None
) -> WholeEncoder | ChunkEncoder:
    return ChunkEncoder(recognizer, score, embed_bins) if streaming else WholeEncoder(recognizer, score)


class CtcExport:
    """Features → log-probabilities of tokens in each frame, as of ``zipformer_ctc`` and ``zipformer2_ctc``.

    Attributes:
        graphs: one for each of its files.
        streams: whether they take chunks.
    """

    def __init__(self, encoder: WholeEncoder | ChunkEncoder, head: FrameScores) -> None:
        self.encoder, self.head, self.streams = encoder, head, encoder.streams
        self.graphs: Sequence[Graph] = [encoder.graph("model", "log_probs", "CTC")]

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the graphs make of features.

        Args:
            call: runs a graph.
            features: (B, T, F).
            num_frames: (B,) int64 valid frames.

        Returns:
            Log-probabilities (B, T', V) and their valid lengths (B,).
        """
        return self.encoder.scores(call, "model", features, num_frames)

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) of the recognizer itself, and their lengths (B,)."""
        encodings, lengths = self.encoder.encodings(features, num_frames)
        return self.head.frame_log_probs(encodings), lengths


class TransducerExport:
    """Features → the joiner's part of each frame; a predictor and a joiner, as of ``transducer``.

    sherpa-onnx calls the predictor decoder. Attributes and methods are those of `CtcExport`.
    """

    def __init__(self, encoder: WholeEncoder | ChunkEncoder, head: Transduces) -> None:
        self.encoder, self.head, self.streams = encoder, head, encoder.streams
        context = torch.full((3, head.context_size), -1)
        context[:, -1] = BLANK_ID
        with torch.no_grad():
            predictions = head.predict(context)
            vocab_size = head.join(predictions, predictions).shape[1]
        generator = torch.Generator().manual_seed(0)
        others = torch.randint(1, vocab_size, (NUM_CONTEXTS, head.context_size), generator=generator)
        self.contexts = torch.cat((context[:1], others))
        self.graphs: Sequence[Graph] = (
            encoder.graph("encoder", "encoder_out", "transducer"),
            Graph(
                "decoder",
                _Part(head, head.predict),
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
                _Part(head, head.join),
                (predictions, predictions),
                ("encoder_out", "decoder_out"),
                ("logit",),
                {"encoder_out": {0: "N"}, "decoder_out": {0: "N"}, "logit": {0: "N"}},
                {"joiner_dim": predictions.shape[1]},
            ),
        )

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V), each frame joined with a context in turn, and their lengths (B,)."""
        frames, lengths = self.encoder.scores(call, "encoder", features, num_frames)
        (predictions,) = call("decoder", (self.contexts,))
        (log_probs,) = call("joiner", (frames.flatten(0, 1), predictions[self._turns(frames)]))
        return log_probs.unflatten(0, frames.shape[:2]), lengths

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) of the recognizer itself, and their lengths (B,)."""
        encodings, lengths = self.encoder.encodings(features, num_frames)
        frames = self.head.project(encodings)
        predictions = self.head.predict(self.contexts)[self._turns(frames)]
        return self.head.join(frames, predictions.view(frames.shape)), lengths

    def _turns(self, frames: Tensor) -> Tensor:
        return torch.arange(frames.shape[0] * frames.shape[1]) % len(self.contexts)


Export = CtcExport | TransducerExport


class _Part(nn.Module):
    """A method of a head as a module that can be traced."""

    def __init__(self, head: Transduces, method: Callable[..., Tensor]) -> None:
        super().__init__()
        # the module must own the parameters that the method uses
        self.head, self.method = head, method
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.method(*inputs)
