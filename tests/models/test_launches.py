"""How many operations a GPU is given in a forward and backward pass: counted on the meta device."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from asr.models.encoders.zipformer import schedules
from asr.run.parts import build_encoder
from tests.configs import composed
from tests.gpu.meta_device import reads_recorded
from tests.models import heads

NUM_FEATURES = 80
# a Zipformer in a pass as most are, with 16 layers; of a Zapformer there are 22, each with fewer
MOST = {"zipformer_m": 8100, "zapformer_m": 22 * 490, "transformer_12x512": 1150, "conformer_12x512": 1850}
# transducers go through the places between tokens one by one, here 41
MOST_OF_HEADS = {"ctc": 30, "inter_ctc": 60, "cr_ctc": 60, "ctc_attention": 350}
MOST_OF_TRANSDUCERS = {"transducer": 1100, "transducer, exact": 650, "transducer_ctc": 1150, "cr_ctc_transducer": 1200}


class Recorder(TorchDispatchMode):
    """Records operations that are no views, and refuses those that read a number off a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host would wait for the GPU"
        if not func.is_view:
            constants = [arg for arg in (*args, *(kwargs or {}).values()) if isinstance(arg, int | float)]
            self.launched.append((func, *constants))
        return func(*args, **(kwargs or {}))


def launched(name: str, num_batches: float) -> list[tuple[Any, ...]]:
    """Return the operations of a forward and backward pass, with the numbers that Python gives them."""
    with torch.device("meta"):
        encoder = build_encoder(composed(f"encoder={name}").options.encoder, NUM_FEATURES).train()
        features, lengths = torch.empty(8, 1000, NUM_FEATURES), torch.empty(8, dtype=torch.int64)
    if hasattr(encoder, "set_trained_seconds"):
        encoder.set_trained_seconds(num_batches * encoder.ref_duration_s)
    with Recorder() as recorder:
        encoder(features, lengths)[0].square().mean().backward()
    return recorder.launched


@pytest.mark.parametrize("name", MOST)
def test_an_encoder_launches_no_more_than_its_budget_and_never_waits(monkeypatch, name):
    monkeypatch.setattr(schedules, "draw", lambda: 0.9)
    assert len(launched(name, 20_000)) <= MOST[name]


@pytest.mark.parametrize("case", heads.CASES, ids=lambda case: case.name)
def test_a_head_launches_no_more_than_its_budget_and_never_waits(case):
    with torch.device("meta"):
        head = case.make(256).train()
        size = 8 * head.num_views
        *inner, last = (torch.empty(size, 250, 256).requires_grad_() for _ in range(1 + case.needs_layers))
        num_frames, tokens, num_tokens = (torch.empty(n, dtype=torch.int64) for n in ((size,), (8, 40), (8,)))
    if hasattr(head, "set_trained_seconds"):
        head.set_trained_seconds(1e9)
    with reads_recorded() as readers, Recorder() as recorder:
        head.loss(last, num_frames, tokens, num_tokens, *([inner] if inner else [])).total.sum().backward()
    assert 0 < len(recorder.launched) <= (MOST_OF_HEADS | MOST_OF_TRANSDUCERS)[case.name]
    assert not readers


@pytest.mark.parametrize("drawn", [0.9, 0.01], ids=["nothing works", "all works"])
def test_what_is_drawn_and_scheduled_reaches_the_kernels_as_tensors(monkeypatch, drawn):
    """A CUDA graph of a pass can be replayed at any time of training, when layers are skipped and when none is."""
    draws = itertools.cycle([drawn])
    monkeypatch.setattr(schedules, "draw", lambda: next(draws))
    early = launched("zipformer_xs", 10)
    draws = itertools.chain([drawn], itertools.cycle([0.0, 1.0]))
    assert launched("zipformer_xs", 30_000) == early
