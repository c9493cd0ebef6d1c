"""How many operations a GPU is given in a forward and backward pass: counted on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from asr.config.build import part
from asr.models.encoders.zipformer import scaling
from tests.configs import choice

NUM_FEATURES = 80
# a Zipformer in a pass as most are
MOST = {"zipformer_m": 7900, "transformer_12x512": 1150, "conformer_12x512": 1850}


class Counter(TorchDispatchMode):
    """Counts operations that are no views, and refuses those that read a number off a tensor."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host would wait for the GPU"
        self.num += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MOST)
def test_an_encoder_launches_no_more_than_its_budget_and_never_waits(monkeypatch, name):
    monkeypatch.setattr(scaling, "draw", lambda: 0.9)
    with torch.device("meta"):
        encoder = part({"encoder": dict(choice("encoder", name))}, "encoder", num_features=NUM_FEATURES).train()
        features, num_frames = torch.empty(8, 1000, NUM_FEATURES), torch.empty(8, dtype=torch.int64)
    if hasattr(encoder, "set_batch_count"):
        encoder.set_batch_count(20_000 * encoder.ref_duration_s)
    with Counter() as counter:
        encoder(features, num_frames)[0].square().mean().backward()
    assert counter.num <= MOST[name]
