"""SOAP: its bases, what merging and splitting mean, which steps refresh, and an independent implementation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import optim
from optim.soap import STRIP, cover, first_basis, mirror, next_basis
from tests.optim.training import make_gradient, run


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def trained(shape, num_steps=12, twin=None, **options):
    """Return a parameter after some steps, and its optimizer; gradients are those of a twin's shape."""
    param = nn.Parameter(drawn(*(twin or shape)).reshape(shape))
    optimizer = optim.SOAP([param], **options)
    for step in range(num_steps):
        param.grad = drawn(*(twin or shape), seed=100 + step).reshape(shape)
        optimizer.step()
    return param.detach(), optimizer


@pytest.mark.parametrize("size", [STRIP // 2, 2 * STRIP + 7])
def test_a_covariance_is_symmetric_once_it_is_mirrored(size):
    x, covariance = drawn(size, 9), torch.eye(size, dtype=torch.float64)
    cover(covariance, x, -2, 0.75)
    mirror(covariance)
    torch.testing.assert_close(covariance, 0.75 * torch.eye(size, dtype=torch.float64) + 0.25 * x @ x.T)


def test_the_basis_of_the_eigenvalue_0_follows_from_the_others():
    """The covariance of 3 columns, with errors of the size of rounding: eigh alone returns other vectors each time."""
    x = drawn(8, 3)
    plain, moved = (first_basis(x @ x.T + 1e-15 * noise @ noise.T, 3) for noise in (drawn(8, 8, seed=1), drawn(8, 8)))
    torch.testing.assert_close(plain.abs(), moved.abs(), rtol=0, atol=1e-9)
    torch.testing.assert_close(plain @ plain.T, torch.eye(8, dtype=torch.float64))


def test_a_kernel_with_merged_axes_steps_like_the_matrix():
    kernel, _ = trained((6, 4, 3, 1), twin=(6, 12), merge_dims=True)
    matrix, _ = trained((6, 12))
    torch.testing.assert_close(kernel.reshape(6, 12), matrix, rtol=0, atol=0)


def test_the_blocks_of_a_split_matrix_step_like_matrices():
    whole, optimizer = trained((10, 6), max_precond_dim=5, split=True)
    parts = []
    for rows in (slice(0, 5), slice(5, 10)):
        for columns in (slice(0, 3), slice(3, 6)):
            part = nn.Parameter(drawn(10, 6)[rows, columns].clone())
            single = optim.SOAP([part])
            for step in range(12):
                part.grad = drawn(10, 6, seed=100 + step)[rows, columns].clone()
                single.step()
            parts.append(part.detach())
    expected = torch.cat([torch.cat(parts[:2], 1), torch.cat(parts[2:], 1)])
    torch.testing.assert_close(whole, expected)
    sizes = {key: tuple(value.shape) for key, value in next(iter(optimizer.state.values())).items() if key[:2] == "q_"}
    assert sizes == {f"q_{block}_{axis}": (5 if axis == 0 else 3,) * 2 for block in range(4) for axis in (0, 1)}


def test_long_axes_have_no_matrix_unless_they_are_split():
    _, optimizer = trained((10, 6), max_precond_dim=6)
    keys = set(next(iter(optimizer.state.values())))
    assert keys == {"step", "exp_avg", "exp_avg_sq", "gg_0_1", "q_0_1"}


def refreshes(num_steps, **options):
    """Return after which steps of Adam the bases changed."""
    param = nn.Parameter(drawn(4, 4, dtype=torch.float32))
    optimizer, found = optim.SOAP([param], **options), []
    for step in range(num_steps + 1):
        before = optimizer.state[param]["q_0_0"].clone() if step else None
        param.grad = drawn(4, 4, seed=step, dtype=torch.float32)
        optimizer.step()
        if before is not None and not torch.equal(before, optimizer.state[param]["q_0_0"]):
            found.append(step)
    return found


def test_the_schedule_refreshes_as_often_as_its_probability_says_and_equally_in_every_run():
    options = {"precondition_frequency": 1, "use_precond_schedule": True, "precond_scheduler": (1.0, 2.0)}
    found, expected = refreshes(1000, **options), 0.0
    for step in range(1, 1001):
        expected += 1 / (1 + math.log10(step) ** 2)
        assert abs(sum(one <= step for one in found) - expected) < 5
    assert refreshes(200, **options) == [step for step in found if step <= 200]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((12, 16), {"max_precond_dim": 12, "shampoo_beta": 0.8}),
        ((20, 5, 3), {"merge_dims": True, "max_precond_dim": 20}),
        ((7,), {"precondition_1d": True}),
        ((30, 20), {"normalize_grads": True}),
    ],
    ids=str,
)
def test_an_independent_implementation_takes_the_same_steps(shape, options):
    """Decay is left out, which stands after its step; so is the first basis, which eigh leaves to rounding."""
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer", reason="python3 scripts/setup.py peers")
    options = {"merge_dims": False, "precondition_frequency": 10, "betas": (0.9, 0.95), "weight_decay": 0.0, **options}
    theirs = {"max_precond_dim": "max_precondition_dim", "normalize_grads": "normalize_gradient"}
    ours, other = (nn.Parameter(drawn(*shape)) for _ in range(2))
    optimizer = optim.SOAP([ours], **options)
    peer = pytorch_optimizer.SOAP([other], **{theirs.get(name, name): value for name, value in options.items()})
    for step in range(25):
        ours.grad, other.grad = make_gradient(ours, step, 0), make_gradient(ours, step, 0)
        optimizer.step()
        peer.step()
        for axis, basis in enumerate(peer.state[other]["Q"]) if step == 0 else ():
            if len(basis):
                optimizer.state[ours][f"q_0_{axis}"].copy_(basis.T)
    moved = other - drawn(*shape)
    assert torch.linalg.vector_norm(ours - other) < 1e-5 * torch.linalg.vector_norm(moved)


@pytest.mark.parametrize("size", [8, 200])
def test_a_gpu_finds_a_basis_whatever_the_covariance(size, steps_as_on_a_gpu):
    one, x = torch.ones(size, 1), drawn(size, size // 4, dtype=torch.float32)
    half, graded = drawn(size, size).float(), drawn(size, size).float() * torch.logspace(0, -6, size)[:, None]
    half[size // 2 :] = 0
    whole = (drawn(size, 5) > 0).float()
    columns = [torch.zeros(size, 1), one, 1e-12 * one, x, half, graded, whole]
    covariances = torch.stack([each @ each.T for each in columns])
    for bases in (first_basis(covariances, 1), torch.eye(size).expand_as(covariances)):
        found, _ = next_basis(covariances, bases)
        # each of the products that make a basis sums `size` rounded terms
        atol = 2 * size * torch.finfo(found.dtype).eps
        torch.testing.assert_close(found @ found.mT, torch.eye(size).expand_as(found), rtol=0, atol=atol)


def test_shapes_that_share_calls_on_a_gpu_step_as_they_do_alone(request, monkeypatch):
    """Also bases of one size of several shapes, in pieces, and covariances that a CPU left without an upper part."""
    size = STRIP + 9
    shapes, trained = [(30, 30), (30, 30), (6, 9), (30, 5, 6), (size, size), (size, size), (45,), (6,), ()], []
    monkeypatch.setattr("optim.soap.STACK_NUMEL", 2 * 30**2)
    for fixture in (None, "steps_as_on_a_gpu"):
        params = [nn.Parameter(torch.ones(shape)) for shape in shapes]
        optimizer = optim.SOAP(params, precondition_frequency=3, merge_dims=True)
        run(optimizer, params, range(3))
        if fixture:
            request.getfixturevalue(fixture)
        run(optimizer, params, range(3, 9))
        trained.append(params)
    for alone, together in zip(*trained, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
