"""Chunk by chunk an utterance is encoded as it is as a whole, with chunks hidden from each other."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.streaming import StreamingEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from tests.models.zipformer.sizes import WAVE

LENGTHS = torch.tensor([260, 203])


def make(**options) -> ZipformerEncoder:
    torch.manual_seed(0)
    encoder = ZipformerEncoder(
        80, **{**WAVE, "causal": True, "chunk_size": [16], "left_context_frames": [32], **options}
    )
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return encoder.eval()


def streamed(streaming: StreamingEncoder, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    encodings, lengths = [], torch.zeros(len(features), dtype=torch.int64)
    state = streaming.initial_state(len(features))
    for start in range(0, features.shape[1], streaming.shift_features):
        chunk = features[:, start : start + streaming.num_features]
        chunk = torch.nn.functional.pad(chunk, (0, 0, 0, streaming.num_features - chunk.shape[1]), value=7.0)
        left = (LENGTHS - start).clamp(0, streaming.num_features)
        encoded, num_frames, state = streaming(chunk, left, state)
        encodings.append(encoded)
        lengths += num_frames
    return torch.cat(encodings, dim=1), lengths


def test_chunk_by_chunk_is_as_a_whole():
    encoder, features = make(), torch.randn(2, 260, 80)
    with torch.inference_mode():
        whole, lengths = encoder(features, LENGTHS)
    encodings, streamed_lengths = streamed(StreamingEncoder(encoder), features)
    assert streamed_lengths.tolist() == lengths.tolist()
    for i, length in enumerate(lengths):
        torch.testing.assert_close(encodings[i, :length], whole[i, :length], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"causal": False}, {"chunk_size": [-1]}, {"left_context_frames": [-1]}, {"left_context_frames": [24]}]
)
def test_an_encoder_that_cannot_stream_is_refused(options):
    with pytest.raises(ValueError, match="streaming needs causal"):
        StreamingEncoder(make(**options))
