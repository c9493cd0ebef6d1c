"""Every encoder, small: one row each. The contracts in test_encoders.py run for all."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from asr.models.encoders.transformer import TransformerEncoder

NUM_FEATURES = 16


@dataclass(frozen=True)
class EncoderCase:
    name: str
    make: Callable[[], nn.Module]
    min_frames: int


CASES = [
    EncoderCase(
        "transformer",
        lambda: TransformerEncoder(NUM_FEATURES, d_model=24, num_layers=2, num_heads=3, d_feedforward=32),
        min_frames=7,
    ),
]
