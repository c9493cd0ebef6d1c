"""Clipping, orthogonal factors, products of matrices, and how parameters are seen as matrices."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Annotated

import pytest
import torch
from torch import Tensor, nn

import optim
from optim.transforms.clipping import HEAVYBALL_NAMES
from optim.transforms.matrices import addmm, matmul, merged_dims
from optim.transforms.orthogonalize import by_qr, by_svd, newton_schulz, polynomials
from tests.optim.training import (
    copies,
    duplicates,
    make_gradient,
    make_parameters,
    run,
    run_both,
    same,
    step_with,
    values,
)

NAME = f"{__name__}.to_unit_norm"


class Longer(optim.Transform):
    """Multiplies by numbers that it declares."""

    factor: Annotated[float, "[0, 10]"]
    power: Annotated[int, "[1, 3]"] = 1

    def __call__(self, update, batch):
        return update.times(batch.group["factor"] ** batch.group["power"])


class LongerStill(Longer):
    """Has one more option, and another default."""

    power: Annotated[int, "[1, 3]"] = 2
    shift: Annotated[float | None, "[0, inf) or None"] = None


def test_an_option_that_a_transform_declares_has_its_type_its_range_and_its_default():
    assert [*signature(LongerStill).parameters] == ["factor", "power", "shift", "name"]
    param = nn.Parameter(torch.zeros(2))
    for transform, moved in ((Longer(3.0), -3.0), (LongerStill.of({"factor": 3.0, "lr": 1.0, "beta": 0}), -9.0)):
        optimizer = optim.chain(transform, lr=1.0)([nn.Parameter(param.detach().clone())])
        step_with(optimizer, optimizer.param_groups[0]["params"], 1.0)
        assert optimizer.param_groups[0]["params"][0].tolist() == [moved] * 2
    for options, option in (({"factor": 11.0}, "factor"), ({"factor": 1.0, "power": 0}, "power")):
        with pytest.raises(ValueError, match=option):
            optim.chain(LongerStill(**options), lr=1.0)([param])
    with pytest.raises(TypeError, match="factor"):
        Longer(name="second")


def to_unit_norm(x):
    """Divide by the norm of one parameter, in place: a stack of several would have another norm."""
    return x.div_(x.norm())


@pytest.mark.parametrize("repeats", [1, 3], ids=["alone", "stacked"])
@pytest.mark.parametrize("option", ["gradient_clipping", "update_clipping"])
def test_a_function_gets_one_parameter_at_a_time_and_may_overwrite_it(option, repeats):
    params = [param for _ in range(repeats) for param in make_parameters(torch.float64)]
    optimizer = optim.Lion(params, lr=1.0, betas=(0.0, 0.0), **{option: to_unit_norm})
    before = values(params)
    run(optimizer, params, range(1))
    for place, (param, start) in enumerate(zip(params, before, strict=True)):
        assert torch.equal(param.grad, make_gradient(param, 0, place))
        sign = param.grad.sign()
        moved = sign if option == "gradient_clipping" else sign / sign.norm()
        torch.testing.assert_close(start - param, moved)


def test_groups_checkpoints_and_copies_hold_the_name_of_a_function(tmp_path):
    def build(params):
        return optim.AdamW([{"params": params[:3], "gradient_clipping": to_unit_norm}, {"params": params[3:]}])

    params = make_parameters()
    optimizer = build(params)
    run(optimizer, params, range(2))
    assert [group["gradient_clipping"] for group in optimizer.param_groups] == [NAME, None]
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    twins = copies(params)
    twin = build(twins)
    twin.load_state_dict(state)
    copied = duplicates((optimizer, params))
    run(optimizer, params, range(2, 4))
    for each, its in ((twin, twins), *copied):
        run(each, its, range(2, 4))
        assert same(params, its)
    stranger = optim.AdamW([{"params": make_parameters()[:3]}, {"params": make_parameters()[3:]}])
    with pytest.raises(ValueError, match=NAME):
        stranger.load_state_dict(state)


def test_heavyballs_names_are_ours():
    for theirs, ours in HEAVYBALL_NAMES.items():
        params, twins = make_parameters(), make_parameters()
        optimizer = optim.AdamW(params, gradient_clipping=theirs)
        assert optimizer.param_groups[0]["gradient_clipping"] == optimizer.defaults["gradient_clipping"] == ours
        twin = optim.AdamW([{"params": twins, "gradient_clipping": theirs}])
        run_both((optimizer, params), (twin, twins), range(2))
        assert same(params, twins)


def test_a_function_that_changes_the_shape_and_two_of_one_name_are_refused(params):
    groups = [{"params": params[:3], "gradient_clipping": lambda x: x}, {"params": params[3:]}]
    with pytest.raises(ValueError, match="two functions called"):
        optim.AdamW(groups, gradient_clipping=lambda x: 2 * x)
    with pytest.raises(ValueError, match=r"flatten must keep the shape \(16, 12\)"):
        run(optim.AdamW(params[3:4], gradient_clipping=torch.flatten), params[3:4], [0])


def test_the_global_norm_is_that_of_all_groups_and_half_precision_does_not_overflow_it():
    params = [nn.Parameter(torch.zeros(2, dtype=torch.float16)), nn.Parameter(torch.zeros(3))]
    groups = [{"params": params[:1]}, {"params": params[1:], "gradient_clipping": "identity"}]
    optimizer = optim.RMSprop(groups, lr=1.0, eps=1e6, gradient_clipping="global_norm")
    step_with(optimizer, params, 300.0, 4e4)
    norm = (2 * 300.0**2 + 3 * 4e4**2) ** 0.5
    torch.testing.assert_close(params[1].detach(), torch.full((3,), -4e4 / 1e6))
    torch.testing.assert_close(params[0].detach().float(), torch.full((2,), -300 / norm / 1e6), rtol=1e-2, atol=1e-7)


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


PRODUCTS = [(3, 4, 5), (200, 150, 170)]
ORDERS: dict[str, Callable[[int, int], Tensor]] = {
    "rows": lambda rows, columns: torch.randn(rows, columns),
    "columns": lambda rows, columns: torch.randn(columns, rows).mT,
    "a part of columns": lambda rows, columns: torch.randn(columns, rows + 7).mT[3 : rows + 3],
    "every second": lambda rows, columns: torch.randn(rows, 2 * columns)[:, ::2],
}


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
@pytest.mark.parametrize("left_order", ORDERS)
@pytest.mark.parametrize("right_order", ORDERS)
def test_a_product_is_that_of_torch(shape, left_order, right_order):
    rows, size, columns = shape
    left, right = ORDERS[left_order](rows, size), ORDERS[right_order](size, columns)
    expected = left.double() @ right.double()
    torch.testing.assert_close(matmul(left, right).double(), expected, rtol=0, atol=1e-6 * size)
    base = torch.randn(rows, columns)
    total = addmm(base, left, right, beta=0.5, alpha=-2.0).double()
    torch.testing.assert_close(total, 0.5 * base.double() - 2 * expected, rtol=0, atol=3e-6 * size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes_and_stacks_are_left_to_torch(dtype):
    left, right = torch.randn(2, 200, 150, dtype=dtype), torch.randn(2, 150, 170, dtype=dtype)
    assert torch.equal(matmul(left, right), left @ right)
    assert torch.equal(matmul(left[0], right[0]), left[0] @ right[0])


@pytest.mark.parametrize(
    ("shape", "max_dim", "merged"),
    [
        ((), 100, ()),
        ((1, 1), 100, ()),
        ((7,), 100, (7,)),
        ((1, 7, 1), 100, (7,)),
        ((64, 32), 4096, (64, 32)),
        ((128, 64, 3, 3), 576, (128, 576)),
        ((128, 64, 3, 3), 575, (128, 64, 9)),
        ((128, 64, 3, 3), 8, (128, 64, 3, 3)),
        ((256, 1, 31), 100, (256, 31)),
        ((5, 4, 3, 2), 12, (5, 4, 6)),
    ],
)
def test_the_first_axis_stays_and_later_ones_join_from_the_last_on(shape, max_dim, merged):
    assert merged_dims(shape, max_dim).shape == merged


def test_without_merging_only_axes_of_size_1_disappear():
    assert merged_dims((4, 1, 3, 2), 1000, merge=False).shape == (4, 3, 2)


@pytest.mark.parametrize(
    ("shape", "max_dim", "blocks"),
    [
        ((5, 4), 5, [(5, 4)]),
        ((5, 4), 4, [(2, 4), (3, 4)]),
        ((7, 5), 3, [(2, 2), (2, 3), (2, 2), (2, 3), (3, 2), (3, 3)]),
        ((10,), 4, [(3,), (3,), (4,)]),
        ((), 4, [()]),
    ],
)
def test_long_axes_are_cut_into_the_fewest_even_blocks(shape, max_dim, blocks):
    assert merged_dims(shape, max_dim, split=True).block_shapes() == blocks
    assert merged_dims(shape, max_dim).block_shapes() == [shape]
