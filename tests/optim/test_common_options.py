"""The options of the HeavyBall family: what they refuse, and what they cost while they are off."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from optim import aliases
from optim.composable import Composable
from optim.engine.param_batch import Update
from optim.engine.transform import Transform
from tests.optim.cases import COMMON_RUNS, each_of_the_family
from tests.optim.training import duplicates, make_parameters, run, run_both, same, step_with


def all_common_options(row, params):
    """Return an optimizer with all common options that it has."""
    known = row.factory(params).defaults
    return row.factory(params, **{key: value for key, value in COMMON_RUNS[-1].items() if key in known})


@each_of_the_family
def test_only_a_rule_with_a_second_moment_has_palms_schedule(row):
    for option, value in (("palm", True), ("beta2_scale", 0.5)):
        if row.optimizer.has_beta2:
            assert row.factory(make_parameters(), **{option: value}).defaults[option] == value
            continue
        for build in (
            lambda given: row.factory(make_parameters(), **given),
            lambda given: row.factory([{"params": make_parameters(), **given}]),
        ):
            with pytest.raises(ValueError, match=option):
                build({option: value})


@each_of_the_family
def test_no_common_option_waits_for_the_device(row):
    """On the meta device there are no values to wait for: reading one raises."""
    params = [nn.Parameter(param.to("meta")) for param in make_parameters(torch.bfloat16)]
    optimizer = all_common_options(row, params)
    for _ in range(3):
        step_with(optimizer, params, 1.0)


@each_of_the_family
def test_half_precision_parameters_take_every_common_option(row):
    small = make_parameters(torch.bfloat16)
    wide = [nn.Parameter(param.detach().float()) for param in small]
    run_both((all_common_options(row, small), small), (all_common_options(row, wide), wide), range(20))
    found = [param.float() for param in small]
    torch.testing.assert_close(found, wide, rtol=torch.finfo(torch.bfloat16).eps, atol=1e-4)


@each_of_the_family
def test_options_that_do_nothing_are_refused_with_the_reason(row):
    for option, reason in row.optimizer.refused.items():
        with pytest.raises(ValueError, match=f"{option}: {reason}"):
            row.factory(make_parameters(), **{option: 1})


class Sign(Transform):
    """A rule without options, and so without an average."""

    def __call__(self, update, batch):
        return Update(update.value().sign())


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda **mars: optim.Scion(make_parameters(), beta1=None, **mars), "beta1"),
        (lambda **mars: optim.ScheduleFreeAdamW(make_parameters(), betas=(1.0, 0.99), **mars), r"betas\[0\]"),
        (lambda **mars: Composable(make_parameters(), [Sign()], lr=0.1, **mars), "beta1"),
    ],
)
def test_mars_needs_an_average_of_gradients(build, name):
    build()
    with pytest.raises(ValueError, match=f"{name} must be a number below 1"):
        build(mars=True)


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


def test_caution_without_any_agreement_stands_still():
    param = nn.Parameter(torch.ones(4))
    optimizer = optim.AdamW([param], lr=0.1, betas=(0.99, 0.99), weight_decay=0.0, caution=True)
    for gradient in (1.0, -1e-3):
        step_with(optimizer, [param], gradient)
        torch.testing.assert_close(param.detach(), torch.full((4,), 0.9))


def test_a_name_of_heavyball_has_its_defaults_and_our_own_has_the_papers():
    adopt, theirs = (getattr(optim, name)(make_parameters()).defaults for name in ("ADOPT", "ForeachADOPT"))
    assert [adopt[key] for key in ("lr", "betas", "eps")] == [1e-3, (0.9, 0.9999), 1e-6]
    assert [theirs[key] for key in ("lr", "betas", "eps")] == [2.5e-3, (0.9, 0.99), 1e-8]
    assert optim.ForeachADOPT(make_parameters(), 0.1).defaults["lr"] == 0.1


def test_an_alias_with_options_is_a_class_that_can_be_pickled():
    params = make_parameters()
    optimizer = optim.PaLMSOAP(params, 0.1, beta2_scale=0.6)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["palm"], group["beta2_scale"]) == (0.1, True, 0.6)
    assert optim.PaLMSOAP(params, palm=False).param_groups[0]["palm"] is False
    for twin in duplicates(optimizer):
        assert type(twin) is aliases.ALIASES["PaLMSOAP"]
        assert isinstance(twin, optim.SOAP)
    with pytest.raises(AttributeError, match="ForeachEve"):
        _ = optim.ForeachEve
