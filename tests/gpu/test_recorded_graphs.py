"""Runs whose passes and updates are replayed make the updates of others, bit for bit."""

from __future__ import annotations

import pytest
import torch

import optim
from asr.data.loading.batch import Batch
from asr.training.cuda_graphs import CudaGraphs
from asr.training.module import TrainingModule
from tests.gpu.recorded_graphs import recorded_graphs
from tests.gpu.trainings import ENCODERS, batch, module_of
from tests.models import heads
from tests.training.tiny import trained


def adamw(named) -> optim.Chain:
    return optim.AdamW(list(named), lr=0.01, capturable=True)


def eve(named) -> optim.Chain:
    return optim.Eve(list(named), lr=0.01, capturable=True)


def soap(named) -> optim.Chain:
    """Return an optimizer that cannot be captured."""
    return optim.SOAP(list(named), lr=0.01)


TRANSFORMER, CONFORMER, ZIPFORMER, CAUSAL = ENCODERS
CASES = [
    pytest.param(TRANSFORMER, adamw, 1, id="transformer, AdamW"),
    pytest.param(TRANSFORMER, soap, 2, id="transformer, SOAP, two micro-batches"),
    pytest.param(ZIPFORMER, eve, 2, id="zipformer, Eve, two micro-batches"),
    pytest.param(CONFORMER, adamw, 2, id="conformer, AdamW, two micro-batches", marks=pytest.mark.slow),
    pytest.param(CAUSAL, eve, 1, id="causal zipformer, Eve", marks=pytest.mark.slow),
]


def batches() -> list[Batch]:
    """Return batches of two shapes that are not padded, one of them with a NaN."""
    shapes = ((64, 52), (64, 44), (48, 44, 40))
    found = [batch(*shapes[seed % 3], seed=seed) for seed in range(10)]
    found[7].features[0, 3, 2] = float("nan")
    return found


@pytest.mark.parametrize(("encoder", "optimizer", "accumulate"), CASES)
def test_replayed_updates_are_those_of_a_run_without_graphs(encoder, optimizer, accumulate):
    def weights(*callbacks: CudaGraphs) -> dict[str, torch.Tensor]:
        module: TrainingModule = module_of(encoder, heads.CASES[0], optimizer)
        trained(batches(), module, callbacks, accumulate, gradient_clip_val=1.0)
        assert module.guard.counts["skipped_updates"] == 1
        return module.recognizer.state_dict()

    with recorded_graphs() as graphs:
        plain = weights()
        assert graphs.num_replays == 0
        captured = weights(CudaGraphs(any_encoder=True))
    assert graphs.num_replays > 8
    torch.testing.assert_close(captured, plain, rtol=0, atol=0)
