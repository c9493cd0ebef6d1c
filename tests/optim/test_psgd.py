"""PSGD: its triangular products, what fitting the factors achieves, and its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import optim
from optim.engine.param_batch import LOOP_STATE
from optim.engine.random import Draw, key_of, uniform_number
from optim.psgd.kron_factors import (
    Factor,
    Fit,
    applied,
    balance,
    fit,
    grams,
    minus_product,
    norm_bound,
    pack_all,
    times,
    transposed_solve,
    transposed_times,
    unpacked_all,
)
from optim.psgd.optimizer import expected_updates, update_probability, updates_at
from tests.optim.training import make_gradient, make_parameters, run

SIZES = (1, 5, 65, 600)  # the last in blocks
LEADS = pytest.mark.parametrize("lead", [(), (3,)], ids=["alone", "stacked"])


def triangular(n, lead=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(*lead, n, n, generator=generator, dtype=torch.float64).triu() / n
    return random + torch.eye(n, dtype=torch.float64)


def matrix(n, m, lead=(), seed=1):
    return torch.randn(*lead, n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@LEADS
@pytest.mark.parametrize("n", SIZES)
def test_products_in_blocks_are_those_of_whole_matrices(n, lead):
    q, t, x, y = triangular(n, lead), triangular(n, lead, 2), matrix(n, 7, lead), matrix(n, 7, lead, 2)
    torch.testing.assert_close(times(q, x), q @ x)
    torch.testing.assert_close(transposed_times(q, x), q.mT @ x)
    torch.testing.assert_close(transposed_solve(q, x), torch.linalg.inv(q).mT @ x)
    # as for the second axis of a matrix
    torch.testing.assert_close(times(q, x.mT.contiguous().mT), q @ x)
    q, t, x, y = (each.view(-1, *each.shape[-2:]) for each in (q, t, x, y))
    torch.testing.assert_close(minus_product(q, t, 0.1), q - 0.1 * t @ q)
    found, first, second = grams([x, x], [y, x]), x @ x.mT, y @ y.mT
    torch.testing.assert_close(found.difference, torch.cat((first - second, 0 * first)).triu())
    torch.testing.assert_close(found.total, torch.cat((first + second, 2 * first)))


@LEADS
@pytest.mark.parametrize("n", SIZES)
def test_a_line_holds_the_triangle_and_nothing_else(n, lead):
    q = triangular(n, lead)
    line = torch.full((*lead, n * (n + 1) // 2), float("nan"), dtype=q.dtype)
    pack_all([q], [line])
    assert torch.equal(unpacked_all([line])[0], q)
    assert torch.equal(line.sort(-1).values, q[..., *torch.triu_indices(n, n)].sort(-1).values)


@LEADS
def test_the_bound_of_the_norm_is_a_close_lower_one(lead):
    for n in (1, 3, 50):
        x, y = matrix(n, 9, lead or (1,)), matrix(n, 9, lead or (1,), 2)
        norm = torch.linalg.matrix_norm(x @ x.mT + y @ y.mT, 2)
        bound = norm_bound(grams([x], [y]).total)
        assert (bound <= norm * (1 + 1e-12)).all()
        assert (bound >= 0.7 * norm).all()
    assert norm_bound(torch.zeros(1, 2, 2)) == 0
    # squares of such numbers are beyond float32
    factors = [Factor(axis, torch.eye(2).expand(*lead, 2, 2), True) for axis in (-2, -1)]
    moved = fit([Fit(torch.full((*lead, 2, 2), 1e15), torch.ones(*lead, 2, 2), factors, 0.1)])
    assert all(q.isfinite().all() and (q != each.q).any() for q, each in zip(moved[0], factors, strict=True))


def test_balanced_factors_make_the_same_preconditioner():
    factors = [Factor(-2, 100 * triangular(5), True), Factor(-1, torch.linspace(0.1, 1, 4).double(), False)]
    x = matrix(5, 4)
    before = applied([x], [factors])[0]
    balance(factors)
    torch.testing.assert_close(applied([x], [factors])[0], before)
    sizes = [factor.q.abs().max().item() for factor in factors]
    assert sizes[0] == pytest.approx(sizes[1])


def test_the_schedule_is_flat_decays_and_has_a_floor():
    assert [update_probability(n, None) for n in (1, 1000)] == [1.0, 1.0]
    assert update_probability(2000, None) == pytest.approx(np.exp(-1))
    assert [update_probability(n, None) for n in (5000, 10**6)] == [0.03, 0.03]
    assert update_probability(10**6, 0.4) == 0.4
    sums = np.cumsum([update_probability(n, None) for n in range(1, 6001)])
    for n in (1, 1000, 1001, 3000, 4506, 4507, 6000):
        assert expected_updates(n, None) == pytest.approx(sums[n - 1])


@pytest.mark.parametrize("stochastic", [True, False])
def test_updates_are_as_frequent_as_their_probability(stochastic):
    made = [updates_at(n, 0.3, stochastic=stochastic, seed=0) for n in range(1, 3001)]
    assert abs(sum(made) - 900) <= (5 * 25 if stochastic else 1)
    assert set(made) == {True, False}


@pytest.mark.parametrize("options", [{"cached": True}, {"store_triu_as_line": False}], ids=str)
@pytest.mark.parametrize("delayed", [True, False])
def test_how_factors_are_kept_does_not_matter(options, delayed):
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    for each, how in ((params, {}), (twins, options)):
        run(optim.PSGDKron(each, delayed=delayed, preconditioner_update_probability=0.5, **how), each, range(12))
    torch.testing.assert_close(params, twins)
    with pytest.raises(ValueError, match="leaves no momentum"):
        optim.PSGDKron(params, exp_avg_input=False, momentum_into_precond_update=False)


def test_merged_axes_are_those_of_a_matrix():
    param = make_parameters()[4]
    flat = nn.Parameter(param.detach().reshape(3, 48))
    for each, merge_dims in ((param, True), (flat, False)):
        optimizer = optim.PSGDKron([each], merge_dims=merge_dims)
        for step in range(4):
            each.grad = make_gradient(param, step, 0).reshape(each.shape)
            optimizer.step()
    assert torch.equal(param.reshape(3, 48), flat)


def test_split_axes_have_factors_of_their_own():
    def factors(changed):
        param = nn.Parameter(torch.zeros(30, 20, dtype=torch.float64))
        optimizer = optim.PSGDKron([param], split=True, max_size_triangular=20)
        for step in range(4):
            param.grad = make_gradient(param, step, 0)
            param.grad[15:] *= changed
            optimizer.step()
        return optimizer.state[param]

    first, second = factors(1.0), factors(1.1)
    # 15 rows and 20 columns twice
    assert first["factor_1_0"].shape == (15 * 16 // 2,)
    # only the noise depends on the whole gradient
    torch.testing.assert_close(first["factor_0_0"], second["factor_0_0"], rtol=0, atol=1e-4)
    assert (first["factor_1_0"] - second["factor_1_0"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "num_bytes"),
    [
        ({"q_dtype": "bfloat16"}, 2 * (20 * 21 // 2 + 30 * 31 // 2)),
        ({"store_triu_as_line": False}, 4 * (20**2 + 30**2)),
        ({"cached": True}, 4 * (20 * 21 // 2 + 30 * 31 // 2 + 20**2 + 30**2)),
        ({"memory_save_mode": "one_diag"}, 4 * (20 * 21 // 2 + 30)),
        ({"memory_save_mode": "all_diag"}, 4 * (20 + 30)),
        ({"max_size_triangular": 25}, 4 * (20 * 21 // 2 + 30)),
        ({"min_ndim_triangular": 3}, 4 * (20 + 30)),
    ],
    ids=str,
)
def test_options_decide_the_bytes_of_factors(options, num_bytes):
    param = nn.Parameter(torch.ones(20, 30))
    optimizer = optim.PSGDKron([param], **options)
    run(optimizer, [param], range(2))
    factors = [x for key, x in optimizer.state[param].items() if key not in (*LOOP_STATE, "exp_avg")]
    assert sum(x.nbytes for x in factors) == num_bytes


@pytest.mark.parametrize("shape", [(7,), (3, 8, 6)], ids=str)
def test_kron_torch_is_followed(shape, monkeypatch):
    """With its clipping, and gradients into the fit: with momentum into it, its noise reaches the update too."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    kron = pytest.importorskip("kron_torch.kron", reason="pip install --no-deps kron-torch")

    def clip(u):
        return u * torch.clamp(1.1 / (u.square().mean().sqrt() + 1e-12), max=1.0)

    ours, theirs = (nn.Parameter(make_gradient(torch.empty(shape).double(), 99, 0)) for _ in range(2))
    common = {"lr": 0.01, "merge_dims": False}
    common |= {"momentum_into_precond_update": False, "preconditioner_update_probability": 1.0}
    optimizer = optim.PSGDKron([ours], update_clipping=clip, **common)
    peer = kron.Kron([theirs], precond_dtype=torch.float64, **common)
    # neither balances its factors in these steps, which would be at other steps in each
    assert min(uniform_number(0, step, "balance preconditioner") for step in range(1, 11)) > 0.01
    for step in range(1, 11):
        draw = Draw(0, step, "probe", [key_of("parameter 0 of group 0")], torch.device("cpu"))
        probe = draw.normal(ours.numel()).double().reshape(shape)
        monkeypatch.setattr(torch, "randn_like", lambda *_, probe=probe: probe.clone())
        for param, chosen in ((ours, optimizer), (theirs, peer)):
            param.grad = make_gradient(param, step, 0)
            chosen.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_shapes_that_share_calls_on_a_gpu_step_as_they_do_alone(request):
    """Also factors of one size of several shapes, and probes of more than one chunk of a draw."""
    shapes = [(45, 46), (45, 46), (46, 9), (9, 46, 1), (2, 3, 9), (45,), (6,), (6,), (1,), ()]
    trained = []
    for fixture in (None, "steps_as_on_a_gpu"):
        if fixture:
            request.getfixturevalue(fixture)
        params = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
        run(optim.PSGDKron(params, stochastic_schedule=False), params, range(3))
        trained.append(params)
    torch.testing.assert_close(*trained)
