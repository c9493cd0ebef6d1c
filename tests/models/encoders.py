"""Every encoder, small: one row each. The contracts in test_encoders.py run for all."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from asr.models.encoders.conformer import ConformerEncoder
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder

NUM_FEATURES = 16


def make_zipformer(causal: bool, chunk_frames: int = -1) -> ZipformerEncoder:
    encoder = ZipformerEncoder(
        NUM_FEATURES,
        d_model=[16, 24, 16],
        unmasked_width=[16, 16, 16],
        d_feedforward=[24, 32, 24],
        num_layers=[1, 2, 1],
        num_heads=[4, 2, 4],
        kernel_width=[7, 5, 7],
        downsampling=[1, 4, 2],
        subsampling_channels=[2, 4, 8],
        causal=causal,
        chunk_frames=[chunk_frames],
        left_context_frames=[8],
    )
    encoder.follow_training(audio_s=1e9)  # when modules are seldom skipped
    return encoder


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
    EncoderCase(
        "conformer",
        lambda: ConformerEncoder(NUM_FEATURES, d_model=24, num_layers=2, num_heads=3, d_feedforward=32, kernel_width=5),
        min_frames=7,
    ),
    EncoderCase("zipformer", lambda: make_zipformer(causal=False), min_frames=9),
    EncoderCase("zipformer, causal", lambda: make_zipformer(causal=True), min_frames=9),
    EncoderCase("zipformer, causal, in chunks", lambda: make_zipformer(causal=True, chunk_frames=8), min_frames=9),
]
