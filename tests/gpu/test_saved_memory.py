"""What the graph of a pass keeps for the backward pass, under CUDA's autocast: most of the memory of a training."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.zipformer import scaling
from asr.run.parts import build_encoder
from tests.configs import composed
from tests.gpu.cuda_autocast import cuda_autocast

NUM_FEATURES = 80
MOST = {"zipformer_xs": 2.05, "transformer_xs": 2.8, "conformer_xs": 2.8}  # megabytes for each second of audio


@pytest.mark.filterwarnings("ignore:Warning only once")
@pytest.mark.parametrize("name", MOST)
def test_a_pass_keeps_no_more_than_its_budget(monkeypatch, name):
    monkeypatch.setattr(scaling, "draw", lambda: 0.9)  # neither balancing nor whitening
    encoder = build_encoder(composed(f"encoder={name}").options.encoder, NUM_FEATURES).train()
    if hasattr(encoder, "set_trained_seconds"):
        encoder.set_trained_seconds(20_000 * encoder.ref_duration_s)
    known = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in known:
            kept[x.untyped_storage().data_ptr()] = x
        return x

    with (
        cuda_autocast(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
    ):
        encoder(torch.randn(2, 500, NUM_FEATURES), torch.tensor([500, 500]))
    num_bytes = sum(x.untyped_storage().nbytes() for x in kept.values())
    assert num_bytes / 1e6 / 10.0 <= MOST[name], num_bytes / 1e7
