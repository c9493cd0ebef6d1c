"""One layer of the Zipformer.

B batch, T frames, S frames attended to, D width, P width of a position.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from asr.models.encoders.zipformer import schedule
from asr.models.encoders.zipformer.attention import SelfAttention
from asr.models.encoders.zipformer.attention_weights import AttentionWeights
from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.bypass import Bypass
from asr.models.encoders.zipformer.convolution import ConvolutionModule
from asr.models.encoders.zipformer.dropout import masked, utterance_mask
from asr.models.encoders.zipformer.feedforward import FeedForward
from asr.models.encoders.zipformer.memory import WHOLE, Memory
from asr.models.encoders.zipformer.nonlinear_attention import NonlinearAttention
from asr.models.encoders.zipformer.norm import BiasNorm
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock, Value
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule


@dataclass(frozen=True)
class LayerSize:
    """What the layers of a stack have in common.

    Attributes:
        d_model: width D.
        d_feedforward: hidden width of the second feed-forward module; the first has 3/4 of it, the third 5/4.
        num_heads: attention heads.
        kernel_width: frames of the convolutions.
        query_width: of a head's queries and keys.
        value_width: of a head's values.
        position_query_width: of a head's queries for positions.
        position_width: P.
        causal: whether the convolutions keep to chunks.
    """

    d_model: int
    d_feedforward: int
    num_heads: int
    kernel_width: int
    query_width: int
    value_width: int
    position_query_width: int
    position_width: int
    causal: bool


@dataclass(frozen=True)
class Frames:
    """What the layers of a stack must know about the frames of a batch.

    Attributes:
        positions: (T + S − 1, P), relative.
        padding: (B, T) bool, true behind an utterance's end.
        unseen: (B, 1, T or 1, S), 0 where a frame may attend to, and far below where not.
        chunk_frames: frames of a chunk; None: the whole utterance is one.
    """

    positions: Tensor
    padding: Tensor
    unseen: Tensor
    chunk_frames: int | None


class ZipformerLayer(nn.Module):
    """Three feed-forward modules and, twice, attention and convolution, with attention weights computed once.

    Args:
        clock: of what is scheduled.
        size: of the layer.
        dropout: probability in the feed-forward modules.
        skip: probability in training that an utterance goes past the layer.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
        Differs: none of its parameters is unused.
    """

    def __init__(self, clock: TrainingClock, size: LayerSize, dropout: Value, skip: Value) -> None:
        super().__init__()
        d_model, d_hidden = size.d_model, size.d_feedforward
        self.attention_weights = AttentionWeights(
            clock, d_model, size.num_heads, size.query_width, size.position_query_width, size.position_width
        )
        self.feedforward1 = FeedForward(clock, d_model, d_hidden * 3 // 4, dropout)
        self.nonlinear_attention = NonlinearAttention(clock, d_model)
        self.attention1 = SelfAttention(clock, d_model, size.num_heads, size.value_width)
        self.convolution1 = ConvolutionModule(clock, d_model, size.kernel_width, size.causal)
        self.feedforward2 = FeedForward(clock, d_model, d_hidden, dropout)
        self.bypass_middle = Bypass(clock, d_model)
        self.attention2 = SelfAttention(clock, d_model, size.num_heads, size.value_width)
        self.convolution2 = ConvolutionModule(clock, d_model, size.kernel_width, size.causal)
        self.feedforward3 = FeedForward(clock, d_model, d_hidden * 5 // 4, dropout)
        self.norm = BiasNorm(d_model)
        self.bypass = Bypass(clock, d_model, skip)
        self.size = size
        self._limit(clock)
        self._skip(clock)

    def _limit(self, clock: TrainingClock) -> None:
        """Set bounds on what the modules add, and on what the layer returns."""
        nonlinear, second, third = (
            Scheduled(clock, (0.0, first), (4000.0, last)) for first, last in ((0.004, 0.02), (0.0, 0.1), (0.0, 0.2))
        )
        self.balance_nonlinear = Balancer(clock, 0.3, 0.7, nonlinear, 100.0, probability=0.05)
        self.balance_feedforward2 = Balancer(clock, 0.3, 0.7, second, 2.0, probability=0.05)
        self.balance_feedforward3 = Balancer(clock, 0.3, 0.7, third, 4.0, probability=0.05)
        self.balance_sum = Balancer(clock, 0.45, 0.55, 0.2, 4.0)
        self.balance_output = Balancer(clock, 0.45, 0.55, 0.1, 4.0)
        self.whiten = Whiten(whitening_schedule(clock, 4.0, ratio=3.0))

    def _skip(self, clock: TrainingClock) -> None:
        """Set how often, in training, an utterance goes without a module."""
        early = (0.0, 0.2), (4000.0, 0.05), (16_000.0, 0.0)
        late = (0.0, 0.1), (4000.0, 0.01), (50_000.0, 0.0)
        self.attention_skip, self.convolution_skip = Scheduled(clock, *early), Scheduled(clock, *early)
        self.feedforward_skip = Scheduled(clock, *late)
        self.constant_attention = Scheduled(clock, (0.0, 0.25), (4000.0, 0.025))

    def forward(self, x: Tensor, frames: Frames, memory: Memory = WHOLE) -> Tensor:
        """Apply the layer to x (B, T, D), and to what is kept of the frames before."""
        before = x
        weights = self.attention_weights(x, frames.positions, frames.unseen, memory)
        x = x + self.feedforward1(x)
        attends = self._kept(x, self.attention_skip)
        # now and then the mean over all frames, so that it does not depend on sharp attention
        constant = self.training and schedule.draw() < float(self.constant_attention)
        nonlinear = self.nonlinear_attention(x, weights, memory, constant)
        x = x + masked(self.balance_nonlinear(nonlinear), attends)
        x = x + masked(self.attention1(x, weights, memory), attends)
        x = x + self._sometimes(
            self.convolution1(x, frames.padding, frames.chunk_frames, memory), self.convolution_skip
        )
        x = x + self._sometimes(self.balance_feedforward2(self.feedforward2(x)), self.feedforward_skip)
        x = self.bypass_middle(before, x)
        x = x + masked(self.attention2(x, weights, memory), attends)
        x = x + self._sometimes(
            self.convolution2(x, frames.padding, frames.chunk_frames, memory), self.convolution_skip
        )
        x = x + self._sometimes(self.balance_feedforward3(self.feedforward3(x)), self.feedforward_skip)
        x = self.bypass(before, self.norm(self.balance_sum(x)))
        return self.whiten(self.balance_output(x))

    def _kept(self, x: Tensor, skip: Value) -> Tensor | None:
        return utterance_mask(x, float(skip)) if self.training else None

    def _sometimes(self, x: Tensor, skip: Value) -> Tensor:
        return masked(x, self._kept(x, skip))

    def memory_shapes(self, left_frames: int) -> tuple[tuple[int, int], ...]:
        """Return (frames, width) of what each module keeps between chunks, in the order of use."""
        size = self.size
        values = left_frames, size.num_heads * size.value_width
        convolved = size.kernel_width // 2, size.d_model
        keys = left_frames, size.num_heads * size.query_width
        return keys, (left_frames, 3 * size.d_model // 4), values, convolved, values, convolved
