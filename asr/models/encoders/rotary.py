"""Rotary positions: queries and keys turned by angles that grow with the frame index.

B batch, T frames, H heads, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RotaryPositions(nn.Module):
    """Rotates pairs of channels by angles that grow with the frame index, so that attention sees distances only.

    Reference:
        Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.4.2, equation 34.
        Differs: the two halves of a head form the pairs, instead of neighboring channels.
    """

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        inverse = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        # not saved: it follows from the options
        self.register_buffer("inverse_wavelength", inverse, persistent=False)
        self.inverse_wavelength: Tensor

    def forward(self, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (T, K/2), in float32."""
        positions = torch.arange(num_frames, device=self.inverse_wavelength.device, dtype=torch.float32)
        # in 32 bits also in a model of 16: those cannot count to 257
        angles = torch.outer(positions, self.inverse_wavelength.float())
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate queries or keys (B, H, T, K) by the angles of their frames."""
    # in 16 bits the rounding would depend on the position
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)
