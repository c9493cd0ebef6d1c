"""Every encoder, small: one row each. The contracts in test_encoders.py run for all."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from asr.models.encoders.conformer import ConformerEncoder
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder

NUM_FEATURES = 16


def make_zipformer(causal: bool, chunk_size: int = -1, **smaller: list[int]) -> ZipformerEncoder:
    sizes = {
        "encoder_dim": [16, 24, 16],
        "encoder_unmasked_dim": [16, 16, 16],
        "feedforward_dim": [24, 32, 24],
        "num_encoder_layers": [1, 2, 1],
        "num_heads": [4, 2, 4],
        "cnn_module_kernel": [7, 5, 7],
        "downsampling_factor": [1, 4, 2],
        "subsampling_channels": [2, 4, 8],
        **smaller,
    }
    encoder = ZipformerEncoder(
        NUM_FEATURES,
        **sizes,
        causal=causal,
        chunk_size=[chunk_size],
        left_context_frames=[8],  # type: ignore[arg-type]
    )
    encoder.set_trained_seconds(audio_s=1e9)  # when modules are seldom skipped
    return encoder


def make_zapformer(causal: bool, chunk_size: int = -1) -> ZapformerEncoder:
    encoder = ZapformerEncoder(
        NUM_FEATURES,
        input_dim=16,
        encoder_dim=[16, 24, 16],
        feedforward_multiple=[2, 1, 2],
        num_encoder_layers=[1, 2, 1],
        cnn_module_kernel=[7, 5, 7],
        downsampling_factor=[1, 4, 2],
        num_heads=2,
        query_head_dim=8,
        value_head_dim=6,
        num_freqs=8,
        subsampling_channels=(2, 4, 8),
        causal=causal,
        chunk_size=[chunk_size],
        left_context_frames=[8],
    )
    encoder.set_trained_seconds(audio_s=1e9)
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
    EncoderCase("zipformer, causal, in chunks", lambda: make_zipformer(causal=True, chunk_size=8), min_frames=9),
    EncoderCase("zapformer", lambda: make_zapformer(causal=False), min_frames=9),
    EncoderCase("zapformer, causal", lambda: make_zapformer(causal=True), min_frames=9),
    EncoderCase("zapformer, causal, in chunks", lambda: make_zapformer(causal=True, chunk_size=8), min_frames=9),
    EncoderCase(
        "transformer, at 50 Hz",
        lambda: TransformerEncoder(
            NUM_FEATURES, d_model=24, num_layers=2, num_heads=3, d_feedforward=32, subsampling_factor=2
        ),
        min_frames=7,
    ),
]


def middle_of_what_is_seen(front_end: Callable[[Tensor], Tensor], inputs: Tensor, number: int) -> float:
    """Return the middle of the inputs (1, T, F) that a vector of a front end (1, T', D) is made of."""
    inputs = inputs.clone().requires_grad_()
    front_end(inputs)[0, number].sum().backward()
    assert inputs.grad is not None
    energy = inputs.grad[0].square().sum(dim=1)
    seen = (energy > 1e-6 * energy.max()).nonzero()
    return (float(seen.min()) + float(seen.max()) + 1) / 2
