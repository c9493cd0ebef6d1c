"""What ScaledAdam has beside the contracts: clipping by the median norm of each group, and the size of tensors."""

from __future__ import annotations

import io
import statistics

import pytest
import torch
from torch import nn

import optim.scaled_adam as scaled_adam
from optim import ParamBatch, ScaledAdam, Transform, Update, chain
from optim.engine import stacking
from optim.transforms.clipping.by_median_norm import ClipByMedianNorm
from tests.optim.training import make_gradient, make_parameters, run, same, values


def step(optimizer: ScaledAdam, param: nn.Parameter, size: float) -> None:
    """Make a step with a gradient whose every element is ``size``."""
    param.grad = torch.full_like(param, size)
    optimizer.step()


def shared(optimizer: ScaledAdam, group: int = 0) -> dict:
    return optimizer.param_groups[group]["shared_state"]


def twins(number: int = 2, numel: int = 4) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(numel, dtype=torch.float64)) for _ in range(number)]


def test_the_norm_is_weighted_by_the_size_of_each_tensor():
    params = [nn.Parameter(torch.tensor([3.0, -3.0])), nn.Parameter(torch.tensor(5.0))]
    optimizer = ScaledAdam(params, lr=0.0, clipping_scale=1.0, scalar_lr_scale=0.25)
    for _ in range(2):
        params[0].grad, params[1].grad = torch.tensor([0.6, 0.8]), torch.tensor(16.0)
        optimizer.step()
    # 3 · ‖(0.6, 0.8)‖ = 3, and 0.25 · 16 = 4
    assert shared(optimizer)["recent_norms"][1].item() == pytest.approx(5.0)


def test_the_threshold_is_twice_as_generous_until_a_period_has_passed():
    (param,) = twins(1, 1)
    optimizer = ScaledAdam([param], lr=0.0, clipping_scale=1.5, scalar_lr_scale=1.0, clipping_update_period=30)
    sizes = [float(size) for size in torch.randperm(61, generator=torch.Generator().manual_seed(0)) + 1]
    thresholds = []
    for size in sizes:
        step(optimizer, param, size)
        thresholds.append(shared(optimizer)["clipping_threshold"].item())
    assert thresholds[:10] == [float("inf")] * 10
    # of an even number of norms the reference takes the one at 2 ⌊n/4⌋ in ascending order
    assert thresholds[10] == thresholds[19] == pytest.approx(3.0 * sorted(sizes[1:11])[4])
    assert thresholds[20] == thresholds[29] == pytest.approx(3.0 * sorted(sizes[1:21])[10])
    assert thresholds[30] == thresholds[59] == pytest.approx(1.5 * sorted(sizes[1:31])[14])
    assert thresholds[60] == pytest.approx(1.5 * sorted(sizes[31:61])[14])


def test_a_gradient_above_the_threshold_is_scaled_down_to_it():
    params = twins()
    clipped, plain = (ScaledAdam([param], clipping_scale=2.0, clipping_update_period=5) for param in params)
    for size in (1.0, 2.0, 3.0, 1.0, 2.0, 3.0):
        step(clipped, params[0], size)
        step(plain, params[1], size)
    rms, threshold = clipped.state[params[0]]["param_rms"].item(), shared(clipped)["clipping_threshold"].item()
    step(clipped, params[0], 1000.0)
    step(plain, params[1], threshold / (2 * rms))
    assert shared(clipped)["clipping_factor"] == pytest.approx(threshold / (2 * rms * 1000.0))
    torch.testing.assert_close(params[0].detach(), params[1].detach())


def test_each_group_is_clipped_by_itself():
    params, calm = twins(), twins()
    options = {"clipping_scale": 1.0, "clipping_update_period": 4}
    optimizers = [ScaledAdam([{"params": [a]}, {"params": [b]}], **options) for a, b in (params, calm)]
    for k in range(8):
        for (first, second), spike, optimizer in zip((params, calm), (1000.0, 1.0), optimizers, strict=True):
            first.grad = torch.full_like(first, spike if k == 6 else 1.0)
            second.grad = torch.full_like(second, 1.0 + k)
            optimizer.step()
        if k == 6:
            assert [shared(optimizers[0], group)["clipping_factor"] < 0.1 for group in (0, 1)] == [True, False]
    assert torch.equal(params[1], calm[1])
    assert not torch.equal(params[0], calm[0])


def test_a_group_that_is_added_later_waits_for_norms_of_its_own():
    early, late = twins()
    optimizer = ScaledAdam([early], clipping_scale=1e-3, clipping_update_period=4)
    for _ in range(6):
        step(optimizer, early, 1.0)
    optimizer.add_param_group({"params": [late]})
    factors = []
    for _ in range(6):
        late.grad = torch.ones_like(late)
        step(optimizer, early, 1.0)
        factors.append(shared(optimizer, 1)["clipping_factor"])
    assert factors[:4] == [1.0] * 4
    assert max(factors[4:]) < 0.01


def test_clipping_goes_on_where_it_was_saved():
    params = make_parameters()
    optimizer = ScaledAdam(params, clipping_scale=0.8, clipping_update_period=15)
    run(optimizer, params, range(23))
    file = io.BytesIO()
    torch.save({"params": values(params), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    others = [nn.Parameter(value) for value in saved["params"]]
    resumed = ScaledAdam(others, clipping_scale=0.8, clipping_update_period=15)
    resumed.load_state_dict(saved["optimizer"])
    for k in range(23, 35):
        run(optimizer, params, [k])
        run(resumed, others, [k])
        assert shared(resumed)["clipping_factor"] == shared(optimizer)["clipping_factor"]
    assert torch.equal(shared(resumed)["recent_norms"], shared(optimizer)["recent_norms"])
    assert same(params, others)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_counts_as_zero_once_there_is_a_threshold(bad):
    params = twins()
    hit, spared = (ScaledAdam([param], clipping_scale=2.0, clipping_update_period=3) for param in params)
    for size in (1.0, 2.0, 1.0, 2.0):
        step(hit, params[0], size)
        step(spared, params[1], size)
    step(hit, params[0], bad)
    step(spared, params[1], 0.0)
    assert same(params[:1], params[1:])
    step(hit, params[0], 1.0)
    assert torch.isfinite(params[0]).all()


def test_too_many_norms_that_are_not_finite_end_the_training():
    (param,) = twins(1)
    optimizer = ScaledAdam([param], lr=0.0, clipping_scale=2.0, clipping_update_period=6)
    for size in (1.0, *[float("inf")] * 3, 1.0, 1.0):
        step(optimizer, param, size)
    with pytest.raises(RuntimeError, match=r"about half of the last 6 gradient norms were not finite"):
        step(optimizer, param, float("inf"))


def test_stacks_do_the_same_as_parameters_one_by_one(monkeypatch):
    results = []
    for below in (0, 4096):
        monkeypatch.setattr(stacking, "STACK_BELOW_NUMEL", below)
        params = [param for seed in range(3) for param in make_parameters(torch.float64, seed)]
        run(ScaledAdam(params, clipping_scale=0.9, clipping_update_period=5), params, range(14))
        results.append(values(params))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=0)


def test_numbers_that_stay_on_a_device_do_the_same_as_those_that_are_read(monkeypatch):
    results = []
    for read in (ParamBatch.read, ParamBatch.per_parameter):
        monkeypatch.setattr(ParamBatch, "read", read)
        params = make_parameters(torch.float64)
        run(ScaledAdam(params, size_update_period=3), params, range(8))
        results.append(values(params))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("factor", "gradient", "wanted"), [(1.0, 3.0, 3.0), (0.5, 3.0, 1.5), (0.0, float("inf"), 0.0)])
def test_a_factor_that_stays_on_a_device_does_the_same_as_one_that_is_read(factor, gradient, wanted):
    param, grad = torch.ones(2), torch.full((2,), gradient)
    for kept in (factor, torch.tensor(factor)):
        group = {"clipping_scale": 2.0, "shared_state": {"clipping_factor": kept}}
        batch = ParamBatch(param, grad, {}, group, step=1, shape=param.shape)
        assert torch.equal(ClipByMedianNorm()(Update(grad), batch).value(), torch.full((2,), wanted))


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.0, 0.5), (0.8, 0.0)])
def test_the_kernel_does_the_same_as_the_equations(monkeypatch, betas):
    params, others = ([nn.Parameter(torch.randn(9, 7, generator=torch.Generator().manual_seed(0)))] for _ in range(2))
    optimizer = ScaledAdam(params, betas=betas)
    run(optimizer, params, range(12))
    monkeypatch.setattr(scaled_adam, "same_layout", lambda *_: False)
    plain = ScaledAdam(others, betas=betas)
    run(plain, others, range(12))
    for key in ("delta", "exp_avg_sq"):
        torch.testing.assert_close(optimizer.state[params[0]][key], plain.state[others[0]][key])
    torch.testing.assert_close(params, others)


def test_a_gradient_of_none_is_one_of_zero():
    params, others = make_parameters(), make_parameters()
    optimizer, plain = ScaledAdam(params), ScaledAdam(others)
    run(optimizer, params, range(3))
    run(plain, others, range(3))
    for place, (param, other) in enumerate(zip(params, others, strict=True)):
        param.grad = None if place % 2 else make_gradient(param, 3, place)
        other.grad = torch.zeros_like(other) if place % 2 else make_gradient(param, 3, place)
    optimizer.step()
    plain.step()
    assert same(params, others)


def test_the_size_stays_below_its_limit_and_single_elements_within_theirs():
    large, single = nn.Parameter(torch.full((50,), 9.0)), nn.Parameter(torch.tensor(0.5))
    optimizer = ScaledAdam([large, single], lr=0.05, param_max_rms=2.0, scalar_max=0.4)
    sizes = []
    for _ in range(200):
        large.grad, single.grad = -torch.ones_like(large), torch.tensor(-1.0)
        optimizer.step()
        assert abs(single.item()) <= 0.4 + 1e-7
        sizes.append(large.detach().square().mean().sqrt().item())
    assert statistics.mean(sizes[-50:]) < 2.5


class Copies(Transform):
    """Keeps copies of the updates that arrive."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __call__(self, update, batch):
        self.copies.append(update.value().clone())
        return update


def test_the_change_leaves_complete_so_that_no_later_transform_sees_half_of_it():
    (param,) = twins(1, 10)
    options = dict.fromkeys(("scalar_lr_scale", "param_min_rms"), 0.1)
    change = scaled_adam.ScaledChange(betas=(0.9, 0.98), eps=1e-8, param_max_rms=3.0, size_update_period=1, **options)
    copies = Copies()
    optimizer = chain(change, copies, lr=0.1)([param])
    for k in range(3):
        run(optimizer, [param], [k])
        assert torch.equal(copies.copies[-1], -optimizer.state[param]["delta"])


def test_a_rate_of_zero_moves_nothing_but_goes_on_averaging():
    (param,) = twins(1, 10)
    optimizer = ScaledAdam([param], lr=0.0)
    run(optimizer, [param], range(5))
    assert torch.equal(param, torch.ones_like(param))
    assert (optimizer.state[param]["exp_avg_sq"] > 0).all()
