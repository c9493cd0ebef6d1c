"""What ScaledAdam has beside the contracts: clipping by the median norm of each group, and the size of tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optim import ParamBatch, ScaledAdam, Update
from optim.transforms.clipping import ClipByMedianNorm
from tests.optim.training import make_gradient, make_parameters, run_both, same, step_with


def shared(optimizer: ScaledAdam, group: int = 0) -> dict:
    return optimizer.param_groups[group]["shared_state"]


def twins(number: int = 2, numel: int = 4) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(numel, dtype=torch.float64)) for _ in range(number)]


def test_each_group_is_clipped_by_itself():
    params, calm = twins(), twins()
    options = {"clipping_scale": 1.0, "clipping_update_period": 4}
    optimizers = [ScaledAdam([{"params": [a]}, {"params": [b]}], **options) for a, b in (params, calm)]
    for k in range(8):
        for pair, spike, optimizer in zip((params, calm), (1000.0, 1.0), optimizers, strict=True):
            step_with(optimizer, pair, spike if k == 6 else 1.0, 1.0 + k)
        if k == 6:
            assert [shared(optimizers[0], group)["clipping_factor"] < 0.1 for group in (0, 1)] == [True, False]
    assert torch.equal(params[1], calm[1])
    assert not torch.equal(params[0], calm[0])


def test_a_group_that_is_added_later_waits_for_norms_of_its_own():
    early, late = twins()
    optimizer = ScaledAdam([early], clipping_scale=1e-3, clipping_update_period=4)
    for _ in range(6):
        step_with(optimizer, [early], 1.0)
    optimizer.add_param_group({"params": [late]})
    factors = []
    for _ in range(6):
        step_with(optimizer, [early, late], 1.0)
        factors.append(shared(optimizer, 1)["clipping_factor"])
    assert factors[:4] == [1.0] * 4
    assert max(factors[4:]) < 0.01


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_counts_as_zero_once_there_is_a_threshold(bad):
    params = twins()
    hit, spared = (ScaledAdam([param], clipping_scale=2.0, clipping_update_period=3) for param in params)
    for sizes in ((1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (2.0, 2.0), (bad, 0.0)):
        step_with(hit, params[:1], sizes[0])
        step_with(spared, params[1:], sizes[1])
    assert same(params[:1], params[1:])
    step_with(hit, params[:1], 1.0)
    assert torch.isfinite(params[0]).all()


def test_too_many_norms_that_are_not_finite_end_the_training():
    params = twins(1)
    optimizer = ScaledAdam(params, lr=0.0, clipping_scale=2.0, clipping_update_period=6)
    for size in (1.0, *[float("inf")] * 3, 1.0, 1.0):
        step_with(optimizer, params, size)
    with pytest.raises(RuntimeError, match="half of the last 6 gradient norms were not finite"):
        step_with(optimizer, params, float("inf"))


def test_a_factor_of_zero_on_a_device_makes_zero_of_infinity():
    grad = torch.full((2,), float("inf"))
    group = {"clipping_scale": 2.0, "shared_state": {"clipping_factor": torch.tensor(0.0)}}
    batch = ParamBatch(torch.ones(2), grad, {}, group, step=1, shape=grad.shape)
    assert torch.equal(ClipByMedianNorm()(Update(grad), batch).value(), torch.zeros(2))


def test_a_gradient_of_none_is_one_of_zero():
    params, others = make_parameters(), make_parameters()
    optimizer, plain = ScaledAdam(params), ScaledAdam(others)
    run_both((optimizer, params), (plain, others), range(3))
    for place, (param, other) in enumerate(zip(params, others, strict=True)):
        param.grad = None if place % 2 else make_gradient(param, 3, place)
        other.grad = torch.zeros_like(other) if place % 2 else make_gradient(param, 3, place)
    optimizer.step()
    plain.step()
    assert same(params, others)
