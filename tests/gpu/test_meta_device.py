"""An update touches no tensor of another device, and reads its own once; torch's CTC reads the lengths beside."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import optim
from asr.data.loading.batch import Batch
from asr.models.encoders.zipformer import scaling
from asr.training.callbacks.averaging import WeightAveraging
from asr.training.callbacks.cost import TrainingCost
from asr.training.callbacks.progress import TrainingProgress
from asr.training.callbacks.stall_warning import StallWarning
from asr.training.module import TrainingModule
from tests.gpu.meta_device import meta_ranks, meta_trainer, reads_recorded
from tests.gpu.trainings import PAIRS, batch, module_of
from tests.optim.test_configs import FILES, build
from tests.training.test_unreadable import unread
from tests.training.tiny import Unsized, batch_of, tiny_module

ALL_DRAWN = [
    pytest.param(*pair.values, 0.0, id=f"{pair.id}, all") for pair in PAIRS if pair.id.endswith("zipformer-ctc")
]
NONE_DRAWN = [pytest.param(*pair.values, 0.999, id=pair.id) for pair in PAIRS]
# torch's own does not know the meta device
OPTIMIZERS = [file for file in FILES["optimizer"] if file.stem != "torch_adamw"]


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
def test_an_update_of_two_micro_batches_stays_on_its_device_and_waits_for_it_once(monkeypatch, encoder, head, drawn):
    # decides which branches a Zipformer takes
    monkeypatch.setattr(scaling, "draw", lambda: drawn)
    module = module_of(encoder, head, optim.grouped(partial(optim.Eve, lr=0.01)))
    batches = batch(60, 44), batch(52, 61, 40, seed=1)
    assert readers_of(module, *batches, accumulate=2) == ["UpdateSums.over_ranks"]


@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda file: file.stem)
def test_no_optimizer_waits_for_its_device(config):
    module = tiny_module(optim.grouped(build(config)))
    assert readers_of(module, batch_of(60, 44), batch_of(52, 61)) == ["UpdateSums.over_ranks"] * 2


def test_callbacks_read_nothing_on_the_device():
    callbacks = [TrainingProgress(), TrainingCost(), WeightAveraging(), StallWarning()]
    batches = [batch_of(60, 44, seed=seed) for seed in range(3)]
    assert readers_of(tiny_module(), *batches, callbacks=callbacks) == ["UpdateSums.over_ranks"] * 3


def test_ranks_send_each_other_nothing_that_is_on_a_cpu():
    batches = batch_of(60, 44), unread("lost"), batch_of(52, 61)
    with meta_ranks(2) as strategy:
        options = {"strategy": strategy, "devices": 2, "use_distributed_sampler": False}
        readers = readers_of(tiny_module(), *batches, **options)
    # the second update has nothing to send but zeros
    assert readers == ["UpdateSums.over_ranks"] * 3
