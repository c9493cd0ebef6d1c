"""Chunk by chunk an utterance is encoded as it is as a whole, with chunks hidden from each other."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.encoders.zipformer.streaming_encoder import StreamingZipformer
from tests.models.zipformer.sizes import WAVE, S

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


def streamed(streaming: StreamingZipformer, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
    encodings, streamed_lengths = streamed(StreamingZipformer(encoder), features)
    assert streamed_lengths.tolist() == lengths.tolist()
    for i, length in enumerate(lengths):
        torch.testing.assert_close(encodings[i, :length], whole[i, :length], rtol=1e-5, atol=1e-5)


def test_the_state_has_the_authors_shapes():
    with torch.device("meta"):
        encoder = ZipformerEncoder(80, **S, causal=True, chunk_size=[32], left_context_frames=[128])
        state = StreamingZipformer(encoder).initial_state(3)
    assert state.subsampling.shape == (3, 3, 19, 128)
    assert sum(len(layer) for layer in state.layers) + 2 == 74
    shapes = [tuple(part.shape) for part in state.layers[6]]
    assert shapes == [(3, 16, 256), (3, 16, 192), (3, 16, 96), (3, 7, 256), (3, 16, 96), (3, 7, 256)]


@pytest.mark.parametrize(
    "options", [{"causal": False}, {"chunk_size": [-1]}, {"left_context_frames": [-1]}, {"left_context_frames": [24]}]
)
def test_an_encoder_that_cannot_stream_is_refused(options):
    with pytest.raises(ValueError, match="streaming needs causal"):
        StreamingZipformer(make(**options))


def test_a_chunk_of_another_size_is_refused():
    streaming = StreamingZipformer(make())
    with pytest.raises(ValueError, match="a chunk has 45 frames of features, given 40"):
        streaming(torch.randn(1, 40, 80), torch.tensor([40]), streaming.initial_state(1))


def test_an_encoder_that_was_put_back_to_training_is_refused():
    encoder = make()
    streaming = StreamingZipformer(encoder)
    encoder.train()
    with pytest.raises(ValueError, match=r"call encoder\.eval\(\)"):
        streaming(torch.randn(1, 45, 80), torch.tensor([45]), streaming.initial_state(1))
