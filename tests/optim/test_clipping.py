"""Gradients and updates are limited by name or by a function of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from optim.transforms.clipping import HEAVYBALL_NAMES
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


def test_a_function_that_changes_the_shape_and_two_of_one_name_are_refused():
    params = make_parameters()
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
