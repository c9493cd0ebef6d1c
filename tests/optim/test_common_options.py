"""The options of the HeavyBall family: what they refuse, and what they cost while they are off."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import optim
from optim import aliases
from optim.composable import CommonOptions, Composable
from optim.engine.batch import Update
from optim.engine.transform import Transform
from tests.optim.cases import CASES, COMMON_RUNS
from tests.optim.training import make_parameters, run, same

FAMILY = [pytest.param(case, id=case.name) for case in CASES if issubclass(case.optimizer, Composable)]
OF_THE_WHOLE = {"skip_nonfinite", "capturable"}  # options of an optimizer, not of its groups


@pytest.mark.parametrize("row", FAMILY)
def test_all_common_options_are_in_the_groups(row):
    group = row.factory(make_parameters()).param_groups[0]
    wanted = set(CommonOptions.__annotations__) - OF_THE_WHOLE
    wanted -= set() if row.optimizer.has_beta2 else {"palm", "beta2_scale"}
    wanted -= set(row.optimizer.refused)
    assert wanted <= set(group)


@pytest.mark.parametrize("row", FAMILY)
def test_only_a_rule_with_a_second_moment_has_palms_schedule(row):
    for option, value in (("palm", True), ("beta2_scale", 0.5)):
        if row.optimizer.has_beta2:
            assert row.factory(make_parameters(), **{option: value}).defaults[option] == value
            continue
        with pytest.raises(ValueError, match=f"{row.name} has no option {option}, a schedule of beta2"):
            row.factory(make_parameters(), **{option: value})
        with pytest.raises(ValueError, match=f"unknown option '{option}'"):
            row.factory([{"params": make_parameters(), option: value}])


@pytest.mark.parametrize("row", FAMILY)
def test_no_common_option_waits_for_the_device(row):
    """On the meta device there are no values to wait for: reading one raises."""
    for options in COMMON_RUNS:
        params = [nn.Parameter(param.to("meta")) for param in make_parameters(torch.bfloat16)]
        known = row.factory(params).defaults
        optimizer = row.factory(params, **{key: value for key, value in options.items() if key in known})
        for _ in range(3):
            for param in params:
                param.grad = torch.empty_like(param)
            optimizer.step()


@pytest.mark.parametrize("row", FAMILY)
def test_half_precision_parameters_take_every_common_option(row):
    small = make_parameters(torch.bfloat16)
    wide = [nn.Parameter(param.detach().float()) for param in small]
    known = row.factory(small).defaults
    options = {key: value for key, value in COMMON_RUNS[-1].items() if key in known}
    optimizer, reference = row.factory(small, **options), row.factory(wide, **options)
    for step in range(20):
        run(optimizer, small, [step])
        for param, twin in zip(small, wide, strict=True):
            twin.grad = param.grad.float()
        reference.step()
    for param, twin in zip(small, wide, strict=True):
        torch.testing.assert_close(param.float(), twin.detach(), rtol=torch.finfo(torch.bfloat16).eps, atol=1e-4)


@pytest.mark.parametrize("row", FAMILY)
def test_beta2_counts_unless_palm_is_on(row):
    """HeavyBall 1.4.1 ignores it everywhere."""
    if not row.optimizer.has_beta2:
        pytest.skip("no second moment")
    for palm in (False, True):
        first, second = make_parameters(), make_parameters()
        run(row.factory(first, betas=(0.9, 0.99), palm=palm), first, range(4))
        run(row.factory(second, betas=(0.9, 0.5), palm=palm), second, range(4))
        assert same(first, second) == palm


@pytest.mark.parametrize("row", FAMILY)
def test_options_that_do_nothing_are_refused_with_the_reason(row):
    for option, reason in row.optimizer.refused.items():
        with pytest.raises(ValueError, match=f"{row.name} has no option {option}: {reason}. Remove it"):
            row.factory(make_parameters(), **{option: 1})


def test_rmsprop_refuses_the_weights_of_an_average_that_it_does_not_have():
    assert set(optim.RMSprop.refused) == {"foreach", "r", "weight_lr_power"}


@pytest.mark.parametrize(
    ("rule", "options", "name"),
    [(optim.Scion, {"beta1": None}, "beta1"), (optim.ScheduleFreeAdamW, {"betas": (1.0, 0.99)}, r"betas\[0\]")],
)
def test_mars_needs_an_average_of_gradients(rule, options, name):
    with pytest.raises(ValueError, match=f"{name} must be a number below 1"):
        rule(make_parameters(), mars=True, **options)
    rule(make_parameters(), **options)


class Sign(Transform):
    """A rule without options, and so without an average."""

    def __call__(self, update, batch):
        return Update(update.value().sign())


def test_a_rule_without_betas_is_composed_without_mars():
    Composable(make_parameters(), [Sign()], lr=0.1)
    with pytest.raises(ValueError, match="beta1 must be a number below 1, given None"):
        Composable(make_parameters(), [Sign()], lr=0.1, mars=True)


def test_mars_keeps_a_gradient_only_where_it_is_on():
    params = make_parameters()
    optimizer = optim.LaProp([{"params": params[:3], "mars": True}, {"params": params[3:]}])
    run(optimizer, params, range(2))
    assert ["previous_grad" in optimizer.state[param] for param in params] == [True] * 3 + [False] * 3


def test_mars_with_clipping_and_maximize_is_the_minimization_of_the_negative():
    params, twins = make_parameters(), make_parameters()
    options = {"mars": True, "mars_gamma": 0.1, "gradient_clipping": "global_norm"}
    up, down = optim.AdamW(params, maximize=True, **options), optim.AdamW(twins, **options)
    for step in range(4):
        run(up, params, [step])
        for param, twin in zip(params, twins, strict=True):
            twin.grad = -param.grad
        down.step()
    assert same(params, twins)


def test_caution_moves_nothing_against_the_gradient():
    param = nn.Parameter(torch.zeros(4))
    optimizer = optim.LaProp([param], lr=0.1, caution=True)
    param.grad = torch.tensor([1.0, 1.0, -1.0, -1.0])
    optimizer.step()
    before = param.detach().clone()
    param.grad = torch.tensor([1.0, -0.01, -1.0, -1.0])
    optimizer.step()
    assert ((before - param) * param.grad).tolist() == pytest.approx(
        [0.1 * 4 / 3, 0, 0.1 * 4 / 3, 0.1 * 4 / 3], rel=1e-4
    )


def test_caution_without_any_agreement_stands_still():
    param = nn.Parameter(torch.ones(4))
    optimizer = optim.AdamW([param], lr=0.1, betas=(0.99, 0.99), caution=True)
    for sign, expected in ((1.0, 0.9), (-1e-3, 0.9)):
        param.grad = torch.full((4,), sign)
        optimizer.step()
        torch.testing.assert_close(param.detach(), torch.full((4,), expected))


def test_heavyballs_names_are_the_documented_classes():
    for name, (optimizer, options) in aliases.TABLE.items():
        found = getattr(optim, name)
        assert issubclass(found, optimizer)
        assert isinstance(found(make_parameters()), optimizer)
        assert {key: found(make_parameters()).defaults[key] for key in options} == dict(options)
    with pytest.raises(AttributeError, match="module 'optim' has no attribute 'ForeachEve'"):
        _ = optim.ForeachEve


def test_an_alias_with_options_is_a_class_that_can_be_pickled(monkeypatch):
    made = aliases.with_options("PaLMLaProp", optim.LaProp, {"palm": True})
    monkeypatch.setattr(aliases, "PaLMLaProp", made, raising=False)
    params = make_parameters()
    optimizer = made(params, 0.1, beta2_scale=0.6)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["palm"], group["beta2_scale"]) == (0.1, True, 0.6)
    assert made(params, palm=False).param_groups[0]["palm"] is False
    run(optimizer, params, range(2))
    for twin, twins in (copy.deepcopy((optimizer, params)), pickle.loads(pickle.dumps((optimizer, params)))):
        assert type(twin) is made
        assert isinstance(twin, optim.LaProp)
        run(twin, twins, range(2, 4))
        assert not same(params, twins)
