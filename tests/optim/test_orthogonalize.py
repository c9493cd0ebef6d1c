"""Orthogonal factors of matrices, and how parameters are seen as matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from optim.transforms.orthogonalize import by_qr, by_svd, newton_schulz, polynomials
from tests.optim.training import run

SHAPES = [(6, 4), (4, 6), (5, 5), (1, 7), (3, 12, 4), (400, 130), (150, 160)]
METHODS = {
    "newton_schulz": lambda x: newton_schulz(x, polynomials("newton_schulz", 5), x.dtype),
    "polar_express": lambda x: newton_schulz(x, polynomials("polar_express", 10), x.dtype),
    "svd": by_svd,
    "qr": by_qr,
}


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_singular_values(shape, values):
    u, _, vt = torch.linalg.svd(random(*shape), full_matrices=False)
    return (u * values) @ vt


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_singular_values_come_near_one(method, shape):
    found = METHODS[method](random(*shape))
    assert found.shape == shape
    low, high = (0.6, 1.25) if method == "newton_schulz" else (1 - 1e-3, 1 + 1e-3)
    values = torch.linalg.svdvals(found)
    # of square matrices, some values are too small for five steps of Jordan's polynomial
    assert values.max() < high
    assert method == "newton_schulz" or values.min() > low
    assert shape[-1] == shape[-2] or shape == (150, 160) or values.min() > low


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)], ids=str)
def test_qr_is_unique_and_never_points_uphill(shape):
    x = random(*shape)
    q = by_qr(x)
    factor = q.mT @ x if shape[0] > shape[1] else q @ x.mT
    torch.testing.assert_close(factor, factor.triu())
    assert (factor.diagonal() > 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_of_zeros_stays_one(method):
    assert not METHODS[method](torch.zeros(4, 3)).any()


# QR finds nothing in columns after one of zeros
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"qr"}))
def test_a_matrix_of_rank_one_stays_one(method):
    once = torch.zeros(4, 3)
    once[1, 2] = -5.0
    found = METHODS[method](once)
    assert found[1, 2] < -0.6
    assert found.count_nonzero() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("method", "num_steps"), [("newton_schulz", 5), ("newton_schulz", 8), ("polar_express", 12)])
@pytest.mark.parametrize("shape", [(64, 400), (400, 140), (2, 20, 64)], ids=str)
def test_iterations_on_the_gram_matrix_follow_the_plain_ones_on_a_matrix_of_low_rank(shape, method, num_steps, dtype):
    small = min(shape[-2:])
    x = with_singular_values(shape, torch.logspace(0, -8, small, dtype=torch.float64))
    plain = x.mT if shape[-2] > shape[-1] else x
    plain = plain / torch.linalg.vector_norm(plain, dim=(-2, -1), keepdim=True)
    for a, b, c in polynomials(method, num_steps):
        gram = plain @ plain.mT
        plain = a * plain + (b * gram + c * gram @ gram) @ plain
    expected = plain.mT if shape[-2] > shape[-1] else plain
    found = newton_schulz(x.to(dtype), polynomials(method, num_steps), dtype).double()
    # rounding is amplified as the smallest singular values are
    limit = 5e-3 if dtype == torch.float32 else 1e-4
    assert torch.linalg.vector_norm(found - expected) < limit * torch.linalg.vector_norm(expected)


def test_bfloat16_stays_near_float32():
    x = random(40, 100, dtype=torch.float32)
    found = newton_schulz(x, polynomials("newton_schulz", 5), torch.bfloat16)
    assert found.dtype == torch.bfloat16
    wide = newton_schulz(x, polynomials("newton_schulz", 5), torch.float32)
    assert torch.linalg.vector_norm(found.float() - wide) < 0.03 * torch.linalg.vector_norm(wide)


def torch_muon(param, **options):
    return torch.optim.Muon([param], lr=1e-3, **{"weight_decay": 0.1, **options})


@pytest.mark.parametrize("shape", [(30, 12), (140, 150)], ids=str)
@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_torchs_muon_is_followed_in_float32(shape, adjust_lr_fn, nesterov, monkeypatch):
    # torch iterates in bfloat16 on every device; what is compared is the rule
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    ours, theirs = (nn.Parameter(0.1 * random(*shape, dtype=torch.float32)) for _ in range(2))
    options = {"adjust_lr_fn": adjust_lr_fn, "nesterov": nesterov}
    first = optim.Muon([ours], lr=1e-3, betas=(0.95, 0.99), weight_decay=0.1, **options)
    run(first, [ours], range(25))
    run(torch_muon(theirs, momentum=0.95, **options), [theirs], range(25))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_torchs_muon_is_followed_in_bfloat16():
    ours, theirs = (nn.Parameter(0.1 * random(12, 30, dtype=torch.float32)) for _ in range(2))
    run(optim.Muon([ours], lr=1e-3, betas=(0.5, 0.99), weight_decay=0.1, ns_dtype="bfloat16"), [ours], range(25))
    run(torch_muon(theirs, momentum=0.5), [theirs], range(25))
    # the norm is rounded to bfloat16 there, and not here
    torch.testing.assert_close(ours, theirs, rtol=0, atol=25 * 1e-3 * 0.01)


def test_options_of_an_iteration_are_refused_where_there_is_none():
    with pytest.raises(ValueError, match=r"ns_steps .* do nothing for 'svd'"):
        optim.Muon([nn.Parameter(torch.ones(2, 2))], orthogonalization="svd", ns_steps=3)
