"""Options that have changed since a checkpoint, and updates within the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import optim
from asr.training.callbacks.measurements import TrainingCost
from asr.training.optimizer_protocols import apply_to_checkpoint
from tests.training import runs
from tests.training.runs import run, same, state
from tests.training.test_nonfinite_guard import bad_batch, unread
from tests.training.tiny import batch_of, tiny_module, trained
from werdict.errors import Diverged

DONE = 3  # updates before the change


def grouped(optimizer: Callable[..., torch.optim.Optimizer], **rule: Any) -> Callable[..., torch.optim.Optimizer]:
    return optim.grouped(optimizer, [{"pattern": "bias", "weight_decay": 0.0, **rule}, {"pattern": ".*"}])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def updated(factory, schedule) -> tuple[nn.Module, torch.optim.Optimizer, lr_scheduler.LRScheduler]:
    net = model()
    optimizer = factory(net.named_parameters())
    rates = schedule(optimizer)
    for _ in range(DONE):
        optimizer.zero_grad()
        net(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        rates.step()
    return net, optimizer, rates


def state_of(optimizer, rates) -> dict[str, Any]:
    parts = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [rates.state_dict()]}
    return copy.deepcopy({**parts, "global_step": DONE, "epoch": 0})


def apply_changes(state: dict[str, Any], changed: set[str], make, schedule, net: nn.Module) -> None:
    apply_to_checkpoint(state, changed, make(net.named_parameters()), schedule)


def options(group: dict[str, Any]) -> dict[str, Any]:
    plain = {
        key: value for key, value in group.items() if key not in ("params", "param_names", "shared_state", "betas")
    }
    return plain | {"beta1": group["betas"][0], "beta2": group["betas"][1]}


COSINE = partial(optim.WarmupCosine, max_steps=10, warmup_steps=2)
ADAMW, TORCH = partial(optim.AdamW, lr=1e-2), partial(torch.optim.AdamW, lr=1e-2)
SCHEDULES = {
    "a formula": (COSINE, COSINE),
    "another formula": (COSINE, partial(optim.Constant, warmup_steps=1)),
    "eden": (partial(optim.Eden, lr_batches=2, lr_epochs=1), partial(optim.Eden, lr_batches=5, lr_epochs=1)),
    "torch's steps, longer": (partial(lr_scheduler.StepLR, step_size=2), partial(lr_scheduler.StepLR, step_size=3)),
    "torch's cycle": (
        partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9),
        partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=9),
    ),
    "a formula after torch's": (
        COSINE,
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), COSINE(o)], [4]),
    ),
    "torch's chain": (
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.9)], o),
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.5)], o),
    ),
    "from torch's to a formula": (partial(lr_scheduler.StepLR, step_size=2), COSINE),
    "from a formula to torch's": (COSINE, partial(lr_scheduler.StepLR, step_size=2)),
}


@pytest.mark.parametrize("make", [ADAMW, TORCH], ids=["ours", "torch's"])
@pytest.mark.parametrize("schedules", SCHEDULES.values(), ids=SCHEDULES)
def test_the_rate_is_that_of_a_run_that_had_the_new_config_from_its_start(make, schedules):
    former, schedule = schedules
    net, optimizer, rates = updated(grouped(make, lr_scale=0.5), former)
    state, now = state_of(optimizer, rates), grouped(partial(make, lr=3e-2, weight_decay=0.3), lr_scale=0.1)
    apply_changes(state, {"lr", "weight_decay"}, now, schedule, net)
    resumed = now(net.named_parameters())
    resumed_rates = schedule(resumed)
    resumed.load_state_dict(state["optimizer_states"][0])
    resumed_rates.load_state_dict(state["lr_schedulers"][0])
    _, whole, whole_rates = updated(now, schedule)
    for _ in range(2):
        for group, expected in zip(resumed.param_groups, whole.param_groups, strict=True):
            assert options(group) == pytest.approx(options(expected))
        resumed.step()
        whole.step()
        resumed_rates.step()
        whole_rates.step()
    assert [group["weight_decay"] for group in resumed.param_groups] == [0.0, 0.3]


@pytest.mark.parametrize("make", [ADAMW, TORCH], ids=["ours", "torch's"])
def test_statistics_stay_bit_for_bit(make):
    net, optimizer, rates = updated(make, COSINE)
    state = state_of(optimizer, rates)
    apply_changes(state, {"eps"}, partial(make, eps=1e-3), COSINE, net)
    before = state_of(optimizer, rates)
    assert same(state["optimizer_states"][0]["state"], before["optimizer_states"][0]["state"])
    assert state["lr_schedulers"] == before["lr_schedulers"]
    (group,), (former,) = (s["optimizer_states"][0]["param_groups"] for s in (state, before))
    assert {key for key in group if not same(group[key], former[key])} <= {"eps", "lr"}


def test_other_groups_of_parameters_are_refused():
    net, optimizer, rates = updated(grouped(TORCH), COSINE)
    others = optim.grouped(TORCH, [{"pattern": "weight", "weight_decay": 0.0}, {"pattern": ".*"}])
    for after in (others, TORCH):
        with pytest.raises(ValueError, match="group 0 of the optimizer has other parameters"):
            apply_changes(state_of(optimizer, rates), {"weight_decay"}, after, COSINE, net)


FACTORIES = {
    "torch's AdamW": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "Schedule-Free": partial(optim.ScheduleFreeAdamW, lr=0.01),
}


def usual(factory, named):
    # groups of one tensor: others of its shape would be stacked, and rounded differently
    return factory([{"params": [pair]} for pair in named])


def in_backward(factory, named):
    return optim.step_in_backward(named, partial(usual, factory))


def last(folder: Path):
    return state(folder / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_the_run_is_the_usual_one_and_resumes_as_either(tmp_path, monkeypatch, factory):
    def train(folder: str, way, max_steps: int):
        monkeypatch.setattr(runs, "tiny_module", lambda: tiny_module(partial(way, factory)))
        run(tmp_path / folder, max_steps)

    train("usual", usual, 10)
    train("within", in_backward, 10)
    train("there", usual, 5)
    train("there", in_backward, 10)
    train("back", in_backward, 5)
    train("back", usual, 10)
    for folder in ("within", "there", "back"):
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert same(last(tmp_path / folder)[key], last(tmp_path / "usual")[key]), (folder, key)


def module_of(way):
    return tiny_module(partial(way, FACTORIES["torch's AdamW"]))


def test_updates_with_a_bad_loss_or_without_utterances_change_nothing():
    batches = [batch_of(60, 40, seed=0), bad_batch(), unread("a"), batch_of(60, 40, seed=1)]
    (within, _, seen), (after, _, expected) = (trained(batches, module_of(way)) for way in (in_backward, usual))
    assert same(within.recognizer.state_dict(), after.recognizer.state_dict())
    assert within.guard.state_dict() == after.guard.state_dict()
    assert [row["train/skipped_updates"] for row in seen] == [row["train/skipped_updates"] for row in expected]
    for name in ("train/loss", "train/gradient_norm", "train/utterances"):
        assert seen[0][name] == pytest.approx(expected[0][name], rel=1e-6)


def test_gradients_that_are_not_finite_end_the_run():
    module = module_of(in_backward)
    module.recognizer.head.project.bias.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(Diverged, match=r"update 0 .*resume the run from its last"):
        trained([batch_of(60, 40)] * 2, module)


def test_no_share_of_the_optimizer_is_claimed():
    for way, measured in ((in_backward, False), (usual, True)):
        cost = TrainingCost()
        trained([batch_of(60, 40)] * 3, module_of(way), [cost])
        found = cost.read()
        assert (found["optimizer_share"] is not None) == measured
        assert found["optimizer_state_bytes"] > 0
