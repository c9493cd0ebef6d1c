"""Relative positions, compressed.

P width of a position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_positions(num_targets: int, num_sources: int, width: int, device: torch.device | None = None) -> Tensor:
    """Return Fourier features of the distances from targets to sources; the targets are the last of the sources.

    A distance is compressed by a logarithm and an arcus tangens to (−π/2, π/2), so that near frames are told apart
    exactly and far ones roughly.

    Args:
        num_targets: frames that attend.
        num_sources: frames attended to, at least as many.
        width: P, even.
        device: where to.

    Returns:
        (num_targets + num_sources − 1, P), from the farthest source in the past to the farthest in the future: cosines
        in even places, sines in odd ones, and 1 in the last.

    Reference:
        ``CompactRelPositionalEncoding`` of icefall's Zipformer.
    """
    distance = torch.arange(1 - num_sources, num_targets, device=device, dtype=torch.float32).unsqueeze(1)
    resolution = math.sqrt(width)
    compressed = resolution * distance.sign() * ((distance.abs() + resolution).log() - math.log(resolution))
    angle = (compressed / (width / (2 * math.pi))).atan() * torch.arange(1, width // 2 + 1, device=device)
    features = torch.stack((angle.cos(), angle.sin()), dim=-1).flatten(1)
    features[:, -1] = 1.0
    return features
