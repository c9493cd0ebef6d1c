"""trainer.capture=true where nothing can be captured: shapes. What graphs compute, scripts/gpu_report.py shows."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.transformer import TransformerEncoder
from asr.training import cuda_graphs
from asr.training.cuda_graphs import STEPS, CapturedForward, rounded


def test_sizes_are_rounded_up_by_at_most_a_sixteenth_to_sixteen_of_each_doubling():
    sizes = range(1, 3000)
    assert all(size <= rounded(size) <= size * (1 + 1 / STEPS) for size in sizes)
    assert len({rounded(size) for size in sizes if 512 < size <= 1024}) == STEPS


@pytest.mark.parametrize("frames", [203, 208])
def test_padding_to_one_of_a_few_shapes_changes_neither_encodings_nor_gradients(monkeypatch, frames):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 0)
    torch.manual_seed(0)
    encoder = TransformerEncoder(8, 16, 1, 2, 16, dropout=0.0, subsampling_channels=2).double().train()
    features, num_frames = torch.randn(17, frames, 8).double(), torch.randint(frames // 2, frames + 1, (17,))
    found = []
    for encode in (encoder, CapturedForward(encoder)):
        encodings, lengths = encode(features, num_frames)
        valid = torch.arange(encodings.shape[1]) < lengths.unsqueeze(1)
        rows = encodings[valid]
        gradients = torch.autograd.grad(rows.square().sum(), list(encoder.parameters()))
        found.append((rows, lengths, torch.cat([gradient.flatten() for gradient in gradients])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)
