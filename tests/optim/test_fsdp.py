"""FSDP2: two processes that hold a half of every parameter step as one does that holds them whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

import optim
from optim.transforms.adam import Adam
from optim.transforms.learning_rate import LearningRate
from optim.transforms.momentum import Momentum
from tests.optim.cases import CASES
from tests.optim.training import values

WORLD = 2


@optim.transform(shardable=True)
def reductions(update, batch):
    """Uses every number per parameter that a batch can reduce."""
    sizes = [batch.rms(update), batch.mean(update.abs()), batch.maximum(update), batch.minimum(update)]
    return update * (1 + batch.dot(update, batch.param)) + sum(sizes)


RULES = {
    "AdamW": partial(optim.AdamW, lr=0.01, weight_decay=0.1, warmup_steps=3),
    "AdamW_capturable": partial(optim.AdamW, lr=0.01, weight_decay=0.1, warmup_steps=3, capturable=True),
    "AdamW_finite": partial(optim.AdamW, lr=0.01, skip_nonfinite=True),
    "Eve": partial(optim.Eve, lr=0.01, weight_decay=0.05),
    "Chain": optim.chain(Momentum(0.9), reductions(), optim.Sequential(Adam(), name="b"), LearningRate(), lr=0.01),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    # 21 rows do not divide by 2, and of one row the second process holds nothing
    return nn.Sequential(nn.Linear(6, 21), nn.Tanh(), nn.Linear(21, 1)).double()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator, dtype=torch.float64)).square().sum().backward()
        optimizer.step()


def _refusals(model: nn.Module) -> dict[str, str]:
    """Return what each row says to sharded parameters."""
    messages = {}
    for case in CASES:
        try:
            case.factory(model.named_parameters())
        except ValueError as error:
            messages[case.name] = str(error)
    return messages


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    found = {}
    for name, make in RULES.items():
        model = make_model()
        fully_shard(model)
        optimizer = make(model.named_parameters())
        step(model, optimizer, range(4))
        whole = StateDictOptions(full_state_dict=True)
        saved = get_optimizer_state_dict(model, optimizer, options=whole)
        optimizer.zero_grad()  # torch makes the state to load into by a step with gradients of its own
        resumed = make(model.named_parameters())
        before = values(model.parameters())
        set_optimizer_state_dict(model, resumed, saved, options=whole)
        # that step has lr = 0, but Eve's decay does not follow lr: the model is loaded after its optimizer
        with torch.no_grad():
            for param, value in zip(model.parameters(), before, strict=True):
                param.copy_(value)
        step(model, resumed, range(4, 8))
        found[name] = {key: param.full_tensor().detach() for key, param in model.named_parameters()}
        found[name] |= {f"{key} state": value["step"] for key, value in saved["state"].items()}
    found["refusals"] = _refusals(model)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> list[dict]:
    """What each process found."""
    folder: Path = tmp_path_factory.mktemp("sharded")
    mp.spawn(_train, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("name", RULES)
def test_shards_step_as_the_whole_does_also_after_resuming(name, sharded):
    model = make_model()
    optimizer = RULES[name](model.named_parameters())
    step(model, optimizer, range(8))
    for found in sharded:
        for key, param in model.named_parameters():
            torch.testing.assert_close(found[name][key], param.detach(), rtol=1e-6, atol=1e-9)
            assert found[name][f"{key} state"] == 4


def test_rules_that_need_whole_parameters_are_refused_by_name(case, sharded):
    message = sharded[0]["refusals"].get(case.name, "")
    if case.not_shardable:
        assert message.startswith(f"{case.name}: 0.weight is sharded, as by fully_shard, and {case.not_shardable}")
    else:
        assert not message
