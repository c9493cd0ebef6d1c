"""Graphs that are exported: encoders, decoders and joiners as modules with fixed inputs, by kind of model.

B batch, T frames, F mel bins, D width, C frames of a chunk at 50 Hz, P frames that are kept, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from asr.models.encoders.pretrained import PretrainedEncoder
from asr.models.encoders.streaming import ChunkedEncoder, StreamingEncoder, StreamingState
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.heads.protocols import FrameScores, Transduces
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import BLANK_ID

CTC_EMBED_BINS = 19  # for transducers sherpa-onnx counts them, for CTC it assumes 80 mel bins
NUM_CONTEXTS = 5  # that frames are joined with in a check, beside the one before the first token
EXAMPLE_FRAMES = 157, 120  # of the utterances that graphs of whole ones are traced with
# of whole utterances, by the name of the scores: the name of their lengths, and the model type of every encoder, which
# says what goes in and comes out
LENGTHS = {"log_probs": ("log_probs_len", "zipformer2_ctc"), "encoder_out": ("encoder_out_lens", "zipformer2")}
EMBED_CHANNELS = 128  # that sherpa-onnx keeps of the front end, whatever the model has
# sherpa-onnx's states of a layer: their place in our cache, to its layout, from its layout, and its batch axis
LAYER_STATES: dict[str, tuple[int, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], int]] = {
    "cached_key": (0, lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1), 1),
    "cached_nonlin_attn": (1, lambda x: x.unsqueeze(0), lambda x: x[0], 1),
    "cached_val1": (2, lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1), 1),
    "cached_val2": (4, lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1), 1),
    "cached_conv1": (3, lambda x: x.transpose(1, 2), lambda x: x.transpose(1, 2), 0),
    "cached_conv2": (5, lambda x: x.transpose(1, 2), lambda x: x.transpose(1, 2), 0),
}

Call = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]
"""Runs the graph of a name."""


@dataclass(frozen=True)
class Graph:
    """A module to be traced.

    Attributes:
        name: of its file, without the ending.
        module: in evaluation mode; takes and returns tensors.
        example: inputs to trace it with, of sizes that are not 1 where an axis may have any size.
        inputs: their names.
        outputs: names of what it returns.
        axes: by the name of an input or output, axes of any size, and what they are called.
        metadata: what the runtime needs to know.
        quantized: whether ``quantize`` makes a second file of it.
    """

    name: str
    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]]
    metadata: Mapping[str, object] = field(default_factory=dict)
    quantized: bool = True


def traced(graph: Graph) -> Any:
    """Return the graph in TorchScript."""
    with torch.no_grad(), warnings.catch_warnings():
        # it warns of numbers that become constants, which are widths here, and that torch.export will replace it
        warnings.simplefilter("ignore")
        return torch.jit.trace(graph.module, graph.example, check_trace=False)


def torchscript_call(folder: Path, graphs: Sequence[Graph]) -> Call:
    """Return what runs the TorchScript files of a folder."""
    loaded = {graph.name: torch.jit.load(folder / f"{graph.name}.pt") for graph in graphs}

    def call(name: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            outputs = loaded[name](*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return call


class WholeEncoder(nn.Module):
    """Features of whole utterances → scores of their frames, and lengths.

    Args:
        recognizer: in evaluation mode.
        score: makes of encodings what is returned of them.

    Raises:
        ValueError: the encoder cannot be traced.
    """

    streams, in_sherpa = False, True

    def __init__(self, recognizer: Recognizer, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if isinstance(encoder := recognizer.encoder, PretrainedEncoder) and encoder.mels is not None:
            raise ValueError(f"the features of {encoder.family} cannot be traced; export with format=safetensors")
        self.recognizer, self.score = recognizer, score
        # a trace ends in the mode in which it began
        self.eval()

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, T', …) and their lengths (B,), of features (B, T, F)."""
        encodings, lengths = self.recognizer(features, num_frames)
        return self.score(encodings), lengths

    def graph(self, name: str, output: str, comment: str) -> Graph:
        """Return the graph, of which ``output`` names the scores."""
        lengths, model_type = LENGTHS[output]
        features = torch.zeros(len(EXAMPLE_FRAMES), max(EXAMPLE_FRAMES), len(self.recognizer.normalize.mean))
        return Graph(
            name,
            self,
            (features, torch.tensor(EXAMPLE_FRAMES)),
            ("x", "x_lens"),
            (output, lengths),
            {"x": {0: "N", 1: "T"}, "x_lens": {0: "N"}, output: {0: "N", 1: "T'"}, lengths: {0: "N"}},
            {"model_type": model_type, "version": 1, "model_author": "werdict", "comment": comment},
        )

    def scores(self, call: Call, name: str, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, T', …) of the graph for features (B, T, F), and their lengths (B,)."""
        if not isinstance(self.recognizer.encoder, PretrainedEncoder):
            scores, lengths = call(name, (features, num_frames))
            return scores, lengths
        # a trace knows utterances of equal length alone
        alone = [call(name, (frames[None, :num], num[None])) for frames, num in zip(features, num_frames, strict=True)]
        return pad_sequence([scores[0] for scores, _ in alone], batch_first=True), torch.cat([num for _, num in alone])

    def encodings(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return encodings (B, T', D) of the recognizer for features (B, T, F), and their lengths (B,)."""
        return self.recognizer(features, num_frames)


class ChunkEncoder(nn.Module):
    """Features of a chunk and states → scores of its frames and new states.

    The states are those of each layer's modules (B, P, D), then the front end's (B, P, F', C'), and the numbers (B,) of
    frames so far.

    Args:
        recognizer: in evaluation mode.
        score: makes of encodings what is returned of them.

    Raises:
        ValueError: the encoder cannot take chunks.
    """

    streams, in_sherpa = True, False

    def __init__(self, recognizer: Recognizer, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        encoder: Any = recognizer.encoder
        self.chunks = StreamingEncoder(encoder)
        self.recognizer, self.encoder, self.score = recognizer, encoder, score
        self.eval()

    def forward(self, features: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Return scores (B, C / 2, …) and new states, of features (B, ``num_features``, F)."""
        num_frames = torch.full_like(states[-1], self.chunks.num_features)
        encodings, _, state = self.chunks(self.recognizer.normalize(features), num_frames, self.state_of(states))
        return self.score(encodings), *self.tensors_of(state)

    def initial_states(self, batch_size: int) -> list[Tensor]:
        """Return the states before the first chunk."""
        return list(self.tensors_of(self.chunks.initial_state(batch_size)))

    def tensors_of(self, state: StreamingState) -> Iterator[Tensor]:
        """Yield the states of a chunk in their order."""
        yield from (*state.layers, state.subsampling, state.num_processed)

    def state_of(self, states: Sequence[Tensor]) -> StreamingState:
        """Return the states of a chunk from tensors in their order."""
        return StreamingState(states[-1], states[-2], tuple(states[:-2]))

    def names(self) -> dict[str, int]:
        """Return the names of the states, and the axis of the batch in each."""
        sizes = map(len, self.chunks.layer_shapes)
        of_layers = (f"state_{number}_{i}" for number, size in enumerate(sizes) for i in range(size))
        return dict.fromkeys([*of_layers, "embed_states", "processed_lens"], 0)

    def metadata(self, comment: str) -> dict[str, object]:
        """Return what the graph says of itself."""
        return {
            **{"model_type": "zapformer", "version": 1, "model_author": "werdict", "comment": f"streaming {comment}"},
            **{"decode_chunk_len": self.chunks.shift_features, "T": self.chunks.num_features},
        }

    def graph(self, name: str, output: str, comment: str) -> Graph:
        """Return the graph, of which ``output`` names the scores."""
        batch = self.names()
        size = 2
        features = torch.zeros(size, self.chunks.num_features, len(self.recognizer.normalize.mean))
        return Graph(
            name,
            self,
            (features, *self.initial_states(size)),
            ("x", *batch),
            (output, *(f"new_{name}" for name in batch)),
            {
                **{"x": {0: "N"}, output: {0: "N"}},
                **{f"{prefix}{state}": {axis: "N"} for state, axis in batch.items() for prefix in ("", "new_")},
            },
            self.metadata(comment),
        )

    def scores(self, call: Call, name: str, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, T', …) of the graph for `whole_chunks` of features (B, T, F), and lengths (B,)."""
        states, chunk_scores = self.initial_states(len(features)), []
        features, num_encodings = self.whole_chunks(features)
        for begin in range(0, features.shape[1] - self.chunks.num_features + 1, self.chunks.shift_features):
            chunk = features[:, begin : begin + self.chunks.num_features].contiguous()
            scores, *states = call(name, (chunk, *states))
            chunk_scores.append(scores)
        scores = torch.cat(chunk_scores, dim=1)
        assert scores.shape[1] == num_encodings
        return scores, torch.full_like(num_frames, num_encodings)

    def encodings(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recognizer's encodings (B, T', D) of the same features at once, and lengths (B,)."""
        features, num_encodings = self.whole_chunks(features)
        encodings, _ = self.recognizer(features, torch.full((len(features),), features.shape[1]))
        return encodings[:, :num_encodings], torch.full_like(num_frames, num_encodings)

    def whole_chunks(self, features: Tensor) -> tuple[Tensor, int]:
        """Return features (B, T, F) with zeros up to the end of a chunk, and the number of their encodings."""
        shift, overlap = self.chunks.shift_features, self.chunks.num_features - self.chunks.shift_features
        num_chunks = max(1, -(-(features.shape[1] - overlap) // shift))
        missing = num_chunks * shift + overlap - features.shape[1]
        return F.pad(features, (0, 0, 0, missing)), num_chunks * self.chunks.chunk_size // 2


class SherpaChunkEncoder(ChunkEncoder):
    """A Zipformer, with the states of sherpa-onnx.

    Of each layer keys (P, B, D), what the non-linear attention sees (1, B, P, D), values (P, B, D) twice, frames of
    both convolutions (B, D, P); then the front end's (B, 128, 3, F'), and the numbers (B,) of frames so far.

    Args:
        recognizer: in evaluation mode.
        score: makes of encodings what is returned of them.
        embed_bins: that sherpa-onnx keeps of the front end; None: as many as there are.

    Raises:
        ValueError: the encoder cannot take chunks, or keeps more of the front end than sherpa-onnx does.
    """

    in_sherpa = True

    def __init__(
        self, recognizer: Recognizer, score: Callable[[Tensor], Tensor], embed_bins: int | None = None
    ) -> None:
        super().__init__(recognizer, score)
        _, bins, channels = self.encoder.encoder_embed.past_shape
        self.embed_bins = bins if embed_bins is None else embed_bins
        if channels > EMBED_CHANNELS or bins > self.embed_bins:
            raise ValueError(
                f"streaming=true: the front end keeps {channels} channels of {bins} bins, and sherpa-onnx at most "
                f"{EMBED_CHANNELS} of {self.embed_bins}, those of 80 mel bins; export with streaming=false"
            )

    def tensors_of(self, state: StreamingState) -> Iterator[Tensor]:
        """Yield the states of a chunk in the order and layout of sherpa-onnx."""
        for begin in range(0, len(state.layers), len(LAYER_STATES)):
            for place, to_sherpa, _, _ in LAYER_STATES.values():
                yield to_sherpa(state.layers[begin + place])
        front = state.subsampling.permute(0, 3, 1, 2)
        _, bins, channels = self.encoder.encoder_embed.past_shape
        yield F.pad(front, (0, self.embed_bins - bins, 0, 0, 0, EMBED_CHANNELS - channels))
        yield state.num_processed

    def state_of(self, states: Sequence[Tensor]) -> StreamingState:
        """Return the states of a chunk from tensors in the order and layout of sherpa-onnx."""
        layers: list[Tensor] = []
        for begin in range(0, len(states) - 2, len(LAYER_STATES)):
            layouts = zip(states[begin:], LAYER_STATES.values(), strict=False)
            by_place = {place: from_sherpa(state) for state, (place, _, from_sherpa, _) in layouts}
            layers += (by_place[place] for place in range(len(LAYER_STATES)))
        _, bins, channels = self.encoder.encoder_embed.past_shape
        front = states[-2][:, :channels, :, :bins].permute(0, 2, 3, 1)
        return StreamingState(states[-1], front, tuple(layers))

    def names(self) -> dict[str, int]:
        """Return sherpa-onnx's names of the states, and the axis of the batch in each."""
        axes = [axis for *_, axis in LAYER_STATES.values()] * len(self.chunks.layer_shapes) + [0, 0]
        names = [f"{state}_{number}" for number in range(len(self.chunks.layer_shapes)) for state in LAYER_STATES]
        return dict(zip([*names, "embed_states", "processed_lens"], axes, strict=True))

    def metadata(self, comment: str) -> dict[str, object]:
        """Return what sherpa-onnx reads."""
        stacks = self.encoder.stacks
        # all layers of a stack are alike
        sizes = [stack.layers[0].size for stack in stacks]
        of_stacks = {
            "num_encoder_layers": [len(stack.layers) for stack in stacks],
            "encoder_dims": [size.encoder_dim for size in sizes],
            "cnn_module_kernels": [size.cnn_module_kernel for size in sizes],
            "left_context_len": [self.chunks.left_frames // stack.factor for stack in stacks],
            "query_head_dims": [size.query_head_dim for size in sizes],
            "value_head_dims": [size.value_head_dim for size in sizes],
            "num_heads": [size.num_heads for size in sizes],
        }
        return {
            **super().metadata(comment),
            **{"model_type": "zipformer2"},
            **{name: ",".join(map(str, numbers)) for name, numbers in of_stacks.items()},
        }


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
        return Export(_encoder(recognizer, head.frame_log_probs, streaming, CTC_EMBED_BINS))
    if model_type == "transducer" and isinstance(head, Transduces):
        return TransducerExport(_encoder(recognizer, head.project, streaming), head)
    other = "transducer" if model_type == "ctc" else "ctc"
    raise ValueError(f"model_type={model_type}: {type(head).__name__} has none; give model_type={other}")


def _encoder(
    recognizer: Recognizer, score: Callable[[Tensor], Tensor], streaming: bool, embed_bins: int | None = None
) -> WholeEncoder | ChunkEncoder:
    encoder = recognizer.encoder
    if not streaming:
        return WholeEncoder(recognizer, score)
    if not isinstance(encoder, ChunkedEncoder):
        raise ValueError(
            f"streaming=true: {type(encoder).__name__} sees whole utterances; train a Zipformer or a Zapformer with "
            "encoder.causal=true, or export with streaming=false"
        )
    if isinstance(encoder, ZipformerEncoder):
        return SherpaChunkEncoder(recognizer, score, embed_bins)
    return ChunkEncoder(recognizer, score)


class Export:
    """Features → log-probabilities of tokens in each frame by CTC, as of ``zipformer_ctc`` and ``zipformer2_ctc``.

    Attributes:
        graphs: one for each of its files, the encoder's first.
        streams: whether they take chunks.
    """

    graphs: Sequence[Graph]

    def __init__(self, encoder: WholeEncoder | ChunkEncoder) -> None:
        self.encoder, self.streams = encoder, encoder.streams
        self.graphs = [encoder.graph("model", "log_probs", "CTC")]

    def log_probs(self, call: Call, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the graphs make of features.

        Args:
            call: runs a graph.
            features: (B, T, F).
            num_frames: (B,) int64 valid frames.

        Returns:
            Log-probabilities (B, T', V) and their valid lengths (B,).
        """
        scores, lengths = self.encoder.scores(call, self.graphs[0].name, features, num_frames)
        return self.joined(call, scores), lengths

    def expected(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) of the recognizer itself, and their lengths (B,)."""
        modules = {graph.name: graph.module for graph in self.graphs}
        encodings, lengths = self.encoder.encodings(features, num_frames)
        return self.joined(lambda name, inputs: (modules[name](*inputs),), self.encoder.score(encodings)), lengths

    def joined(self, call: Call, scores: Tensor) -> Tensor:
        """Return log-probabilities (B, T', V) of the scores (B, T', …) of an encoder's graph."""
        return scores


class TransducerExport(Export):
    """Features → the joiner's part of each frame; a predictor and a joiner, as of ``transducer``.

    sherpa-onnx calls the predictor decoder.
    """

    def __init__(self, encoder: WholeEncoder | ChunkEncoder, head: Transduces) -> None:
        super().__init__(encoder)
        context = torch.full((3, head.context_size), -1)
        context[:, -1] = BLANK_ID
        with torch.no_grad():
            predictions = head.predict(context)
            vocab_size = head.join(predictions, predictions).shape[1]
        generator = torch.Generator().manual_seed(0)
        others = torch.randint(1, vocab_size, (NUM_CONTEXTS, head.context_size), generator=generator)
        self.contexts = torch.cat((context[:1], others))
        self.graphs = (
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

    def joined(self, call: Call, scores: Tensor) -> Tensor:
        """Return log-probabilities (B, T', V) of frames (B, T', …), each joined with a context in turn."""
        turns = torch.arange(scores.shape[0] * scores.shape[1]) % len(self.contexts)
        (predictions,) = call("decoder", (self.contexts,))
        (log_probs,) = call("joiner", (scores.flatten(0, 1), predictions[turns]))
        return log_probs.unflatten(0, scores.shape[:2])


class _Part(nn.Module):
    """A method of a head as a module that can be traced."""

    def __init__(self, head: Transduces, method: Callable[..., Tensor]) -> None:
        super().__init__()
        # the module must own the parameters that the method uses
        self.head, self.method = head, method
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.method(*inputs)
