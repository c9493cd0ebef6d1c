"""One layer of the Zipformer.

B batch, T frames, S frames attended to, D width, P width of a position.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from asr.models.encoders.zipformer import scaling
from asr.models.encoders.zipformer.attention import (
    HeadSize,
    NonlinAttention,
    RelPositionMultiheadAttentionWeights,
    SelfAttention,
)
from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.chunks import WHOLE, StreamingCache
from asr.models.encoders.zipformer.modules import BypassModule, ConvolutionModule, FeedforwardModule
from asr.models.encoders.zipformer.scaling import (
    BatchCount,
    BiasNorm,
    FloatLike,
    ScheduledFloat,
    masked,
    utterance_mask,
)
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule


@dataclass(frozen=True)
class LayerSize:
    """What the layers of a stack have in common.

    Attributes:
        encoder_dim: width D.
        feedforward_dim: hidden width of the second feed-forward module; the first has 3/4 of it, the third 5/4.
        num_heads: attention heads.
        cnn_module_kernel: frames of the convolutions.
        head: widths of a head.
        causal: whether the convolutions keep to chunks.
    """

    encoder_dim: int
    feedforward_dim: int
    num_heads: int
    cnn_module_kernel: int
    head: HeadSize
    causal: bool


@dataclass(frozen=True)
class Frames:
    """What the layers of a stack must know about the frames of a batch.

    Attributes:
        pos_emb: (T + S − 1, P), relative.
        padding: (B, T) bool, true after an utterance's end.
        attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
        chunk_size: frames of a chunk; None: the whole utterance is one.
    """

    pos_emb: Tensor
    padding: Tensor
    attn_mask: Tensor
    chunk_size: int | None


class ZipformerEncoderLayer(nn.Module):
    """Three feed-forward modules and, twice, attention and convolution, with attention weights computed once.

    Args:
        dropout: probability in the feed-forward modules.
        skip_rate: probability in training that an utterance goes past the layer.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
        Differs: every parameter is used.
    """

    def __init__(self, batch_count: BatchCount, size: LayerSize, dropout: FloatLike, skip_rate: FloatLike) -> None:
        super().__init__()
        dim, hidden_dim, num_heads, kernel = (
            size.encoder_dim,
            size.feedforward_dim,
            size.num_heads,
            size.cnn_module_kernel,
        )
        # weights are drawn in this order: another one would be another initialization
        self.self_attn_weights = RelPositionMultiheadAttentionWeights(batch_count, dim, num_heads, size.head)
        self.feed_forward1 = FeedforwardModule(batch_count, dim, hidden_dim * 3 // 4, dropout)
        self.nonlin_attention = NonlinAttention(batch_count, dim)
        self.self_attn1 = SelfAttention(batch_count, dim, num_heads, size.head.value_head_dim)
        self.conv_module1 = ConvolutionModule(batch_count, dim, kernel, size.causal)
        self.feed_forward2 = FeedforwardModule(batch_count, dim, hidden_dim, dropout)
        self.bypass_mid = BypassModule(batch_count, dim)
        self.self_attn2 = SelfAttention(batch_count, dim, num_heads, size.head.value_head_dim)
        self.conv_module2 = ConvolutionModule(batch_count, dim, kernel, size.causal)
        self.feed_forward3 = FeedforwardModule(batch_count, dim, hidden_dim * 5 // 4, dropout)
        self.norm = BiasNorm(dim)
        self.bypass = BypassModule(batch_count, dim, skip_rate)
        self.size = size
        self._set_bounds(batch_count)
        self._set_skip_rates(batch_count)

    def _set_bounds(self, batch_count: BatchCount) -> None:
        """Set bounds on what the modules add, and on what the layer returns."""
        min_na, min_ff2, min_ff3 = (
            ScheduledFloat(batch_count, (0.0, first), (4000.0, last))
            for first, last in ((0.004, 0.02), (0.0, 0.1), (0.0, 0.2))
        )
        self.balancer_na = Balancer(batch_count, 0.3, 0.7, min_na, 100.0, probability=0.05)
        self.balancer_ff2 = Balancer(batch_count, 0.3, 0.7, min_ff2, 2.0, probability=0.05)
        self.balancer_ff3 = Balancer(batch_count, 0.3, 0.7, min_ff3, 4.0, probability=0.05)
        self.balancer1 = Balancer(batch_count, 0.45, 0.55, 0.2, 4.0)
        self.balancer2 = Balancer(batch_count, 0.45, 0.55, 0.1, 4.0)
        self.whiten = Whiten(whitening_schedule(batch_count, 4.0, ratio=3.0))

    def _set_skip_rates(self, batch_count: BatchCount) -> None:
        """Set how often, in training, an utterance goes without a module."""
        early = (0.0, 0.2), (4000.0, 0.05), (16_000.0, 0.0)
        late = (0.0, 0.1), (4000.0, 0.01), (50_000.0, 0.0)
        self.attention_skip_rate = ScheduledFloat(batch_count, *early)
        self.conv_skip_rate = ScheduledFloat(batch_count, *early)
        self.ff_skip_rate = ScheduledFloat(batch_count, *late)
        self.const_attention_rate = ScheduledFloat(batch_count, (0.0, 0.25), (4000.0, 0.025))

    def forward(self, x: Tensor, frames: Frames, cache: StreamingCache = WHOLE) -> Tensor:
        """Apply the layer to x (B, T, D), and to what is kept of the frames before."""
        before, convolved = x, (frames.padding, frames.chunk_size, cache)
        weights = self.self_attn_weights(x, frames.pos_emb, frames.attn_mask, cache)
        x = x + self.feed_forward1(x)
        # one mask for all three modules that attend: an utterance goes without attention, not without one of them
        attends = self._kept(x, self.attention_skip_rate)
        # now and then the mean over all frames, so that it does not depend on sharp attention
        constant = self.training and scaling.draw() < float(self.const_attention_rate)
        nonlinear = self.nonlin_attention(x, weights, cache, constant)
        x = x + masked(self.balancer_na(nonlinear), attends)
        x = x + masked(self.self_attn1(x, weights, cache), attends)
        x = x + self._sometimes(self.conv_module1(x, *convolved), self.conv_skip_rate)
        x = x + self._sometimes(self.balancer_ff2(self.feed_forward2(x)), self.ff_skip_rate)
        x = self.bypass_mid(before, x)
        x = x + masked(self.self_attn2(x, weights, cache), attends)
        x = x + self._sometimes(self.conv_module2(x, *convolved), self.conv_skip_rate)
        x = x + self._sometimes(self.balancer_ff3(self.feed_forward3(x)), self.ff_skip_rate)
        x = self.bypass(before, self.norm(self.balancer1(x)))
        return self.whiten(self.balancer2(x))

    def _kept(self, x: Tensor, skip_rate: FloatLike) -> Tensor | None:
        # outside of training nothing is drawn, and the batch count may not be set
        return utterance_mask(x, float(skip_rate)) if self.training else None

    def _sometimes(self, x: Tensor, skip_rate: FloatLike) -> Tensor:
        return masked(x, self._kept(x, skip_rate))

    def cache_shapes(self, left_frames: int) -> tuple[tuple[int, int], ...]:
        """Return (frames, width) of what each module keeps between chunks, in the order of use."""
        size = self.size
        keys = left_frames, size.num_heads * size.head.query_head_dim
        nonlinear = left_frames, 3 * size.encoder_dim // 4
        values = left_frames, size.num_heads * size.head.value_head_dim
        convolved = size.cnn_module_kernel // 2, size.encoder_dim
        return keys, nonlinear, values, convolved, values, convolved
