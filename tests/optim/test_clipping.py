"""Gradients and updates are limited by name or by a function of one's own."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import optim
from optim.transforms.clipping.functions import HEAVYBALL_NAMES
from tests.optim.training import make_gradient, make_parameters, run, same, values

NAME = f"{__name__}.to_unit_norm"


def to_unit_norm(x):
    """Divide by the norm of one parameter, in place: a stack of several would have another norm."""
    return x.div_(x.norm())


class Halve:
    """An object in the place of a function."""

    def __call__(self, x):
        return x / 2


def flattened(x):
    return x.reshape(-1)


@pytest.mark.parametrize("copies", [1, 3], ids=["alone", "stacked"])
@pytest.mark.parametrize("option", ["gradient_clipping", "update_clipping"])
def test_a_function_gets_one_parameter_at_a_time_and_may_overwrite_it(option, copies):
    params = [param for _ in range(copies) for param in make_parameters(torch.float64)]
    optimizer = optim.Lion(params, lr=1.0, betas=(0.0, 0.0), **{option: to_unit_norm})
    before = values(params)
    run(optimizer, params, range(1))
    for place, (param, start) in enumerate(zip(params, before, strict=True)):
        assert torch.equal(param.grad, make_gradient(param, 0, place))
        sign = param.grad.sign()
        moved = sign if option == "gradient_clipping" else sign / sign.norm()
        torch.testing.assert_close(start - param, moved)


def test_groups_and_checkpoints_hold_the_name_of_a_function(tmp_path):
    params = make_parameters()
    optimizer = optim.AdamW([{"params": params[:3], "gradient_clipping": to_unit_norm}, {"params": params[3:]}])
    run(optimizer, params, range(2))
    assert [group["gradient_clipping"] for group in optimizer.param_groups] == [NAME, None]
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    twins = [nn.Parameter(value) for value in values(params)]
    groups = [{"params": twins[:3], "gradient_clipping": to_unit_norm}, {"params": twins[3:]}]
    twin = optim.AdamW(groups)
    twin.load_state_dict(state)
    run(optimizer, params, range(2, 4))
    run(twin, twins, range(2, 4))
    assert same(params, twins)
    stranger = optim.AdamW([{"params": make_parameters()[:3]}, {"params": make_parameters()[3:]}])
    with pytest.raises(ValueError, match=f"given '{NAME}'; a state that was saved with a function needs it here too"):
        stranger.load_state_dict(state)


def test_an_optimizer_with_a_function_can_be_pickled_and_copied():
    params = make_parameters()
    optimizer = optim.AdamW(params, update_clipping=to_unit_norm)
    run(optimizer, params, range(2))
    copies = [copy.deepcopy((optimizer, params)), pickle.loads(pickle.dumps((optimizer, params)))]
    run(optimizer, params, range(2, 4))
    for twin, twins in copies:
        run(twin, twins, range(2, 4))
        assert same(params, twins)


def test_an_object_is_named_by_its_class():
    optimizer = optim.RMSprop(make_parameters(), update_clipping=Halve())
    assert optimizer.param_groups[0]["update_clipping"] == f"{__name__}.Halve"


def test_heavyballs_names_are_ours():
    for theirs, ours in HEAVYBALL_NAMES.items():
        params, twins = make_parameters(), make_parameters()
        optimizer = optim.AdamW(params, gradient_clipping=theirs)
        assert optimizer.param_groups[0]["gradient_clipping"] == optimizer.defaults["gradient_clipping"] == ours
        run(optimizer, params, range(2))
        run(optim.AdamW([{"params": twins, "gradient_clipping": theirs}]), twins, range(2))
        assert same(params, twins)


@pytest.mark.parametrize(
    ("option", "how", "message"),
    [
        ("gradient_clipping", "l2_norm", r"gradient_clipping must be one of l2, rms_norm, .*did you mean 'rms_norm'"),
        ("update_clipping", 1.0, "update_clipping must be one of .*, a function of a tensor, or None, given 1.0"),
        ("update_clipping", "global_norm", "would need all updates before the first parameter moves; use gradient_"),
    ],
)
def test_what_is_no_clipping_is_refused(option, how, message):
    with pytest.raises(ValueError, match=message):
        optim.AdamW(make_parameters(), **{option: how})
    with pytest.raises(ValueError, match=message):
        optim.AdamW([{"params": make_parameters(), option: how}])


def test_two_functions_of_one_name_are_refused():
    first, second = (lambda x: x), (lambda x: 2 * x)
    groups = [{"params": make_parameters()}, {"params": make_parameters(), "gradient_clipping": second}]
    with pytest.raises(ValueError, match=r"was given two functions called .*lambda.*; give one of them another name"):
        optim.AdamW(groups, gradient_clipping=first)


def test_a_function_that_changes_the_shape_is_refused():
    params = make_parameters()
    with pytest.raises(ValueError, match=r"flattened must keep the shape \(16, 12\) of its argument"):
        run(optim.AdamW(params[3:4], gradient_clipping=flattened), params[3:4], [0])


def test_the_global_norm_is_that_of_all_groups_and_half_precision_does_not_overflow_it():
    params = [nn.Parameter(torch.zeros(2, dtype=torch.float16)), nn.Parameter(torch.zeros(3))]
    groups = [{"params": params[:1]}, {"params": params[1:], "gradient_clipping": "identity"}]
    optimizer = optim.RMSprop(groups, lr=1.0, eps=1e6, gradient_clipping="global_norm")
    params[0].grad, params[1].grad = torch.full_like(params[0], 300.0), torch.full_like(params[1], 4e4)
    optimizer.step()
    norm = (2 * 300.0**2 + 3 * 4e4**2) ** 0.5
    torch.testing.assert_close(params[1].detach(), torch.full((3,), -4e4 / 1e6))
    torch.testing.assert_close(params[0].detach().float(), torch.full((2,), -300 / norm / 1e6), rtol=1e-2, atol=1e-7)


def test_health_counts_what_is_clipped():
    params = make_parameters()
    optimizer = optim.AdamW(params, gradient_clipping="rms_norm")
    health = optim.Health(optimizer, every=1)
    for param in params:
        param.grad = torch.full_like(param, 2.0 if param.dim() == 2 else 0.5)
    optimizer.step()
    assert health.take()["health/0/clipped_share"] == pytest.approx(2 / 6)
