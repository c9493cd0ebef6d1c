"""The ConvNeXt layer behind the Zipformer's subsampling.

B batch, T frames, F frequencies, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.dropout import utterance_mask
from asr.models.encoders.zipformer.initial import scaled_linear
from asr.models.encoders.zipformer.perceptron import perceptron
from asr.models.encoders.zipformer.picture_convolution import PictureConvolution
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock
from asr.models.encoders.zipformer.swoosh import SWOOSH_L
from asr.models.encoders.zipformer.whiten import Whiten

KERNEL_WIDTH = 7
CONTEXT = KERNEL_WIDTH // 2  # frames seen on each side


class ConvNext(nn.Module):
    """x + a depthwise convolution over time and frequency, and two linear maps with three times the channels between.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230, which takes it from Liu et al. 2022, "A ConvNet for the 2020s",
        arXiv:2201.03545. Differs: no normalisation, and SwooshL.
    """

    def __init__(self, clock: TrainingClock, channels: int) -> None:
        super().__init__()
        self.convolution = PictureConvolution(channels, KERNEL_WIDTH)
        self.hidden = nn.Linear(channels, 3 * channels)
        self.balance_hidden = Balancer(clock, 0.3, 1.0, 0.75, 5.0)
        self.output = scaled_linear(3 * channels, channels, scale=0.01)
        self.balance_output = Balancer(clock, 0.4, 0.6, 1.0, 6.0)
        self.whiten = Whiten(5.0)
        self.skip = Scheduled(clock, (0.0, 0.2), (20_000.0, 0.015))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (B, T, F, C), which must be 0 where padded."""
        kept = utterance_mask(x, float(self.skip)) if self.training else None
        convolved, x = self.convolution(x)
        change = self._perceptron(convolved, kept)
        return self.whiten(self.balance_output(change.add_(x.flatten(0, 2)).unflatten(0, x.shape[:3])))

    def stream(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layer to a chunk.

        Args:
            x: (B, T + 3, F, C), the chunk and what it sees of the next.
            past: (B, 3, F, C), the end of the chunk before.

        Returns:
            (B, T, F, C), and the end of this chunk (B, 3, F, C).
        """
        seen = torch.cat((past, x), dim=1)
        x = x[:, :-CONTEXT]
        change = self._perceptron(self.convolution(seen, pad_time=False)[0])
        return x + change.view_as(x), seen[:, x.shape[1] : -CONTEXT]

    def _perceptron(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """Map x (B, T, F, C) to (B · T · F, C), times factors (B, 1, 1)."""
        trained = torch.is_grad_enabled() and (x.requires_grad or self.hidden.weight.requires_grad)
        bounds = self.balance_hidden.drawn_bounds(trained)
        if kept is not None:
            kept = kept.expand(-1, *x.shape[1:3]).reshape(-1, 1)
        return perceptron(x.flatten(0, 2), self.hidden, SWOOSH_L, self.output, kept, bounds)
