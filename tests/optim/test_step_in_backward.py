"""Steps in the backward pass: the same training with less memory, and clear words where that cannot be."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import optim
from optim import StepInBackward, step_in_backward
from optim.testing import assert_same
from optim.transforms.clipping import ClipByGlobalNorm
from optim.transforms.momentum import Momentum
from tests.optim.training import make_gradient, make_parameters, named, same, values

SGD = partial(torch.optim.SGD, lr=0.02, momentum=0.9)
FACTORIES = {
    "torch AdamW": partial(torch.optim.AdamW, lr=0.02, fused=True),
    "without names": lambda named: optim.PSGDKron([param for _, param in named], lr=0.02),
    "several": optim.grouped(partial(optim.Eve, lr=0.02), [{"pattern": "bias", "optimizer": SGD}, {"pattern": "."}]),
}


class Model(nn.Module):
    """Two uses of one weight, parameters of several shapes, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 12)
        self.layers = nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 12))
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(3))

    def loss(self, step: int) -> torch.Tensor:
        tokens = torch.randint(7, (8,), generator=torch.Generator().manual_seed(step))
        return (self.layers(self.embedding(tokens)) @ self.embedding.weight.T * self.scale).square().mean()


def train(model: Model, optimizer: torch.optim.Optimizer, steps) -> None:
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        model.loss(step).backward()
        optimizer.step()
        optimizer.zero_grad()


def both(factory):
    """Return (model, optimizer) trained in the usual way, and in the backward pass."""
    usual, model = Model(), Model()
    pairs = (usual, factory(usual.named_parameters())), (model, step_in_backward(model, factory))
    for pair in pairs:
        train(*pair, range(6))
    return pairs


def test_every_optimizer_does_what_it_does_after_the_backward_pass(case):
    (usual, after), (model, within) = both(case.factory)
    assert all(param.grad is None for param in model.parameters())
    assert same(model.parameters(), usual.parameters())
    assert_same(after.state_dict(), within.state_dict(), "state")


@pytest.mark.parametrize("name", FACTORIES)
def test_a_run_of_other_optimizers_too_switches_from_either_way_to_the_other(name):
    factory = FACTORIES[name]
    (usual, after), (model, within) = both(factory)
    assert same(model.parameters(), usual.parameters())
    assert_same(after.state_dict(), within.state_dict(), "state")
    switched, turned = copy.deepcopy(usual), copy.deepcopy(usual)
    into, out = step_in_backward(switched, factory), factory(turned.named_parameters())
    # copies: torch's optimizers would share the tensors
    into.load_state_dict(copy.deepcopy(after.state_dict()))
    out.load_state_dict(copy.deepcopy(within.state_dict()))
    for one, optimizer in ((usual, after), (model, within), (switched, into), (turned, out)):
        train(one, optimizer, range(6, 9))
        assert same(one.parameters(), usual.parameters())


def test_no_two_gradients_exist_at_once():
    model, most = Model(), 0
    optimizer = step_in_backward(model, partial(optim.Eve, lr=0.01))

    def count(grad: torch.Tensor) -> bool:
        nonlocal most
        most = max(most, sum(param.grad is not None for param in model.parameters()))
        return True

    optimizer.before_step = count
    train(model, optimizer, range(3))
    assert most == 1


def test_gradients_may_be_changed_or_dropped_before_the_step():
    usual, model = Model(), Model()
    after, within = SGD(usual.named_parameters()), step_in_backward(model, SGD)
    usual.loss(0).backward()
    for param in usual.parameters():
        param.grad = None if param.grad is None else param.grad * 0.5
    after.step()
    for step, change in enumerate((lambda grad: grad.mul_(0.5) is not None, lambda grad: False)):
        within.before_step = change
        model.loss(step).backward()
        within.step()
        assert same(model.parameters(), usual.parameters())
    assert all(param.grad is None for param in model.parameters())


def test_it_evaluates_where_its_optimizer_does():
    (usual, after), (model, within) = both(partial(optim.ScheduleFreeAdamW, lr=0.02))
    assert within.has_eval_mode
    after.eval()
    within.eval()
    assert within.is_evaluating
    assert same(model.parameters(), usual.parameters())
    with pytest.raises(RuntimeError, match="cannot step while"):
        model.loss(9).backward()
    within.train()
    assert not within.is_evaluating
    plain = step_in_backward(Model(), SGD)
    plain.eval()
    plain.train()
    assert not plain.has_eval_mode
    assert not plain.is_evaluating


def test_a_closure_runs_the_backward_pass_and_gradients_set_by_hand_are_used():
    usual, params = make_parameters(), make_parameters()
    after, within = optim.Eve(usual, lr=0.1), StepInBackward(optim.Eve(params, lr=0.1))
    for place, (param, twin) in enumerate(zip(params, usual, strict=True)):
        param.grad = twin.grad = make_gradient(param, 0, place)
    after.step()
    assert within.step() is None
    assert same(params, usual)

    def closure(params):
        loss = sum(param.square().sum() for param in params)
        loss.backward()
        return loss

    after.zero_grad()
    assert torch.equal(within.step(partial(closure, params)), after.step(partial(closure, usual)))
    assert same(params, usual)


def test_a_second_backward_pass_before_step_is_refused():
    model = Model()
    optimizer = step_in_backward(model, partial(optim.Eve, lr=0.01))
    model.loss(0).backward()
    with pytest.raises(RuntimeError, match="gradients cannot be accumulated"):
        model.loss(1).backward()
    optimizer.remove()
    model.zero_grad()
    before = values(model.parameters())
    model.loss(1).backward()
    assert same(model.parameters(), before)


CLIPPED = partial(optim.ScaledAdam, clipping_scale=2.0)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(optim.Eve, skip_nonfinite=True), "Eve with skip_nonfinite=True"),
        (CLIPPED, "ClipByMedianNorm .*clipping_scale"),
        (partial(optim.AdamW, gradient_clipping="global_norm"), "gradient_clipping"),
        (optim.grouped(optim.Eve, [{"pattern": "bias", "optimizer": CLIPPED}, {"pattern": "."}]), "ScaledAdam"),
    ],
)
def test_what_needs_all_gradients_is_refused(factory, message):
    with pytest.raises(ValueError, match=message):
        step_in_backward(Model(), factory)


def test_transforms_within_another_are_refused_only_if_they_need_all_gradients():
    def within(*transforms):
        return step_in_backward(Model(), optim.chain(optim.Sequential(*transforms), lr=0.1))

    within(Momentum(0.9), ClipByGlobalNorm(None))
    with pytest.raises(ValueError, match="global_norm_clip_threshold"):
        within(Momentum(0.9), ClipByGlobalNorm(1.0))


def test_copies_and_later_groups_are_refused():
    optimizer = step_in_backward(Model(), partial(optim.Eve, lr=0.01))
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    with pytest.raises(ValueError, match="add the group to the optimizer before"):
        optimizer.add_param_group({"params": make_parameters()})


def test_small_parameters_of_one_shape_agree_up_to_rounding(case):
    usual, params = ([param for _ in range(3) for param in make_parameters()] for _ in range(2))
    after, within = case.factory(named(usual)), StepInBackward(case.factory(named(params)))
    for step in range(4):
        for optimizer, members in ((after, usual), (within, params)):
            optimizer.zero_grad()
            sum((param * make_gradient(param, step, i)).sum() for i, param in enumerate(members)).backward()
            optimizer.step()
    torch.testing.assert_close(params, usual, rtol=1e-5, atol=1e-6)
