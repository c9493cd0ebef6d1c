"""What LearnedGradient's matrices must be, whatever they learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optim import LearnedGradient
from optim.engine.param_batch import ParamBatch
from optim.learned_gradient import learn, meta_gradient, symmetric_product
from tests.optim.training import make_parameters, run

SHAPE = (6, 5, 4)
AXES = [-3, -2, -1]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(steps: int = 25, shape=SHAPE, scale: float = 1.0, **options) -> tuple[nn.Parameter, LearnedGradient]:
    param = nn.Parameter(random(*shape, seed=1))
    optimizer = LearnedGradient([param], **options)
    for step in range(steps):
        param.grad = scale * random(*shape, seed=step + 2)
        optimizer.step()
    return param, optimizer


def as_batch(param: nn.Parameter, optimizer: LearnedGradient) -> ParamBatch:
    state = optimizer.state[param]
    return ParamBatch(param, param.grad, state, optimizer.param_groups[0], state["step"], param.shape)


def matrices(param: nn.Parameter, optimizer: LearnedGradient) -> list[Tensor]:
    return [value for key, value in optimizer.state[param].items() if key.startswith("matrix")]


@pytest.mark.parametrize("options", [{}, {"identity_mix": 0.1}, {"max_full_dim": 5}], ids=str)
def test_matrices_stay_symmetric_positive_definite_with_mean_diagonal_one(options):
    for matrix in matrices(*trained(100, lr=0.3, **options)):
        full = torch.diag(matrix) if matrix.dim() == 1 else matrix
        assert torch.equal(full, full.mT)
        assert full.diagonal().mean() == pytest.approx(1.0, abs=1e-12)
        assert torch.linalg.eigvalsh(full).min() > 0.01


def test_nothing_moves_before_the_first_gradient_that_is_not_zero():
    param = nn.Parameter(random(*SHAPE))
    optimizer = LearnedGradient([param])
    for _ in range(12):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    assert torch.equal(param, random(*SHAPE))
    assert all(torch.equal(matrix, torch.eye(len(matrix), dtype=matrix.dtype)) for matrix in matrices(param, optimizer))


@pytest.mark.parametrize(
    ("shape", "sizes"), [((9, 1), {}), ((3, 1, 4), {0: (3, 3), 2: (4, 4)}), ((), {}), ((7, 30), {0: (7, 7), 1: (30,)})]
)
def test_only_axes_with_something_to_learn_have_a_matrix_and_long_ones_a_diagonal(shape, sizes):
    param, optimizer = trained(3, shape, max_full_dim=20)
    found = {key: tuple(value.shape) for key, value in optimizer.state[param].items() if key.startswith("matrix")}
    assert found == {f"matrix_{axis}": size for axis, size in sizes.items()}


@pytest.mark.parametrize("copies", [1, 2], ids=["alone", "stacked"])
def test_matrices_that_would_not_be_finite_are_not_taken(copies):
    params = [nn.Parameter(random(*SHAPE, seed=1)) for _ in range(copies)]
    optimizer = LearnedGradient(params, lr_est_period=1, identity_mix=0.1)
    for step in range(5):
        for param in params:
            param.grad = random(*SHAPE, seed=step + 2)
        optimizer.step()
    before = [matrix.clone() for matrix in matrices(params[0], optimizer)]
    params[0].grad[0, 0, 0] = torch.inf
    optimizer.step()
    for matrix, old in zip(matrices(params[0], optimizer), before, strict=True):
        assert torch.equal(matrix, old)
    for param in params[1:]:
        assert not torch.equal(matrices(param, optimizer)[0], before[0])


@pytest.mark.parametrize("shape", [(2, 7, 4), (1030, 6)])
def test_a_symmetric_product_needs_not_multiply_both_halves(shape):
    first = random(*shape)
    weights = first.mT @ first
    product = symmetric_product(first @ weights, first)
    assert torch.equal(product, product.mT)
    torch.testing.assert_close(product, first @ weights @ first.mT)


@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (6, 5)])
def test_long_and_thin_tensors_learn_the_same_matrices(shape):
    param, optimizer = trained(21, shape)
    batch = as_batch(param, optimizer)
    state, old = batch.state, [matrix.clone() for matrix in matrices(param, optimizer)]
    learn(batch.grad, [-2, -1], batch)
    direction = old[0] @ state["exp_avg"] @ old[1]
    h = meta_gradient(batch.grad, direction, [-2, -1], batch)
    slopes = h @ (state["exp_avg"] @ old[1]).mT, h.mT @ (old[0] @ state["exp_avg"])
    for matrix, m, slope in zip(matrices(param, optimizer), old, slopes, strict=True):
        step = (slope + slope.mT) @ m
        a = torch.eye(len(m), dtype=m.dtype) + 0.03 * step / step.norm()
        new = a @ m @ a.mT
        torch.testing.assert_close(matrix, new / new.diagonal().mean(), rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("steps_as_on_a_gpu")
def test_what_is_due_can_be_decided_on_a_gpu():
    params, twins = ([*make_parameters(torch.float64), *make_parameters(torch.float64, seed=1)] for _ in range(2))
    for each, capturable in ((params, False), (twins, True)):
        run(LearnedGradient(each, lr_est_period=3, capturable=capturable), each, range(9))
    torch.testing.assert_close(twins, params)
