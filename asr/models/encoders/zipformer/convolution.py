"""Convolution module.

B batch, T frames, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from asr.models.depthwise import DepthwiseConvolution
from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.causal_convolution import CausalConvolution
from asr.models.encoders.zipformer.memory import Memory
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock
from asr.models.encoders.zipformer.swoosh import SWOOSH_R, SwooshLinear
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule


class ConvolutionModule(nn.Module):
    """A gated linear unit, a depthwise convolution, SwooshR and a linear map.

    Args:
        clock: of what is scheduled.
        d_model: width D.
        kernel_width: frames of the convolution, odd.
        causal: whether the convolution sees no further than the end of a chunk.
    """

    def __init__(self, clock: TrainingClock, d_model: int, kernel_width: int, causal: bool) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, 2 * d_model)
        self.balance_gate = Balancer(
            clock,
            Scheduled(clock, (0.0, 0.05), (8000.0, 0.025)),
            1.0,
            1.5,
            Scheduled(clock, (0.0, 5.0), (8000.0, 10.0)),
        )
        self.convolution: CausalConvolution | DepthwiseConvolution
        self.convolution = (CausalConvolution if causal else DepthwiseConvolution)(d_model, kernel_width)
        self.balancer = Balancer(
            clock,
            Scheduled(clock, (0.0, 0.1), (8000.0, 0.05)),
            1.0,
            Scheduled(clock, (0.0, 0.2), (20_000.0, 0.5)),
            10.0,
        )
        self.whiten = Whiten(whitening_schedule(clock, 7.5))
        self.output = SwooshLinear(d_model, d_model, SWOOSH_R, scale=0.05)

    def forward(self, x: Tensor, padding: Tensor, chunk_frames: int | None, memory: Memory) -> Tensor:
        """Convolve x (B, T, D); padding (B, T) true behind an utterance's end; chunk_frames None: all in one chunk."""
        x, gate = self.project(x).chunk(2, dim=-1)
        x = (x * self.balance_gate(gate).sigmoid()).masked_fill_(padding.unsqueeze(2), 0.0)
        if isinstance(self.convolution, CausalConvolution):
            x = self.convolution(x, (~padding).sum(dim=1), chunk_frames, memory)
        else:
            x = self.convolution(x)
        return self.output(self.whiten(self.balancer(x)))
