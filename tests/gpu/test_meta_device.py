"""Updates touch no tensor of another device, and read none of their own: the host looks at logged updates alone.

Where an optimizer cannot skip an update on the device, it looks at each. Not counted: torch's CTC, which reads lengths,
and on several ranks what Lightning asks all of them.
"""

from functools import partial
from typing import Any

import pytest
from torch.optim import Optimizer

import optim
from asr.data.loading.loader import Batch
from asr.models.encoders.zipformer import schedules
from asr.training import cuda_graphs
from asr.training.callbacks.checkpoints import WeightAveraging
from asr.training.callbacks.measurements import TrainingCost
from asr.training.callbacks.progress import StallWarning, TrainingProgress
from asr.training.cuda_graphs import CudaGraphs
from asr.training.module import TrainingModule
from tests.gpu.meta_device import meta_ranks, meta_trainer, reads_recorded
from tests.gpu.trainings import PAIRS, batch, module_of
from tests.optim.test_configs import FILES, build
from tests.training.test_nonfinite_guard import unread
from tests.training.tiny import Unsized, adamw, batch_of, tiny_module

ALL_DRAWN = [
    pytest.param(*pair.values, 0.0, id=f"{pair.id}, all") for pair in PAIRS if pair.id.endswith("zipformer-ctc")
]
NONE_DRAWN = [pytest.param(*pair.values, 0.999, id=pair.id) for pair in PAIRS]
# torch's own do not know the meta device
OPTIMIZERS = [file for file in FILES["optimizer"] if not file.stem.startswith("torch_")]
LOOKED_AT = ("soap", "kl_soap", "shampoo", "psgd_kron", "sgd")  # at each update
EVE = optim.grouped(partial(optim.Eve, lr=0.01, capturable=True))
SYNC = "NonfiniteGuard.sync"


def readers_of(module: TrainingModule, *batches: Batch, accumulate: int = 1, **options: Any) -> list[str]:
    """Train on the meta device; return which functions have read a tensor there."""
    with reads_recorded() as readers:
        trainer = meta_trainer(
            len(batches) // accumulate, gradient_clip_val=1.0, accumulate_grad_batches=accumulate, **options
        )
        # without a length: Lightning would read that of all ranks
        trainer.fit(module, Unsized(batches))
    assert trainer.global_step == len(batches) // accumulate
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    return readers


@pytest.mark.parametrize(("encoder", "head", "drawn"), ALL_DRAWN + NONE_DRAWN)
def test_updates_of_two_micro_batches_stay_on_their_device_and_do_not_wait_for_it(monkeypatch, encoder, head, drawn):
    # decides which branches a Zipformer takes
    monkeypatch.setattr(schedules, "draw", lambda: drawn)
    module = module_of(encoder, head, EVE)
    batches = batch(60, 44), batch(52, 61, 40, seed=1)
    # the last update is logged
    assert readers_of(module, *batches, *batches, accumulate=2) == [SYNC]


@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda file: file.stem)
def test_no_step_of_an_optimizer_waits_for_its_device(config):
    def make(named: Any) -> Optimizer:
        optimizer = optim.grouped(build(config))(named)
        if config.stem not in LOOKED_AT:
            optimizer.make_capturable()
        return optimizer

    num_syncs = 2 if config.stem in LOOKED_AT else 1
    assert readers_of(tiny_module(make), batch_of(60, 44), batch_of(52, 61)) == [SYNC] * num_syncs


def test_callbacks_read_nothing_on_the_device():
    callbacks = [TrainingProgress(), TrainingCost(), WeightAveraging(), flat := StallWarning()]
    flat.found["loss"], flat.trend.best, flat.trend.best_update = "stuck", 1.0, -1000
    batches = [batch_of(60, 44, seed=seed) for seed in range(3)]
    module = tiny_module(EVE)
    assert readers_of(module, *batches, callbacks=callbacks) == ["describe_groups", SYNC]  # rates


@pytest.mark.parametrize(
    ("make", "callbacks", "num_syncs"),
    [
        pytest.param(adamw, [], 3, id="adamw"),
        pytest.param(EVE, [], 1, id="eve"),
        pytest.param(optim.grouped(partial(optim.Eve, lr=0.01)), [CudaGraphs(any_encoder=True)], 1, id="captured"),
    ],
)
def test_ranks_send_each_other_nothing_that_is_on_a_cpu(monkeypatch, make, callbacks, num_syncs):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 0)
    batches = batch_of(60, 44), unread("lost"), batch_of(52, 61)
    with meta_ranks(2, captures=bool(callbacks)) as strategy:
        options = {"strategy": strategy, "devices": 2, "use_distributed_sampler": False, "callbacks": callbacks}
        readers = readers_of(tiny_module(make), *batches, **options)
    # the second update has nothing to send but zeros
    assert readers == [SYNC] * num_syncs
