"""Every optimizer's hyper-parameters, parameter groups and learning rate, and the options of the HeavyBall family."""

from __future__ import annotations

import inspect
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import optim
from optim import aliases
from optim.aliases import ALIASES
from optim.composable import Composable
from optim.engine.param_batch import Update
from optim.engine.transform import Transform
from tests.optim.cases import BAD_OPTIONS, CASES, each_of_the_family
from tests.optim.training import duplicates, make_parameters, named, run, run_both, same, step_with, values


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64], ids=str)
def test_parameters_that_are_no_real_numbers_are_refused(case, dtype):
    with pytest.raises(ValueError, match=str(dtype)):
        case.factory([torch.zeros(3, dtype=dtype)])


def test_bad_options_are_refused_by_the_constructor_and_in_a_group(case):
    defaults = case.factory(make_parameters()).defaults
    bad = [*((option, "nonsense") for option in defaults), *case.bad_options.items()]
    bad += [(option, 1) for option, value in defaults.items() if isinstance(value, bool)]
    bad += [(option, value) for option, value in BAD_OPTIONS if option in defaults]
    for option, value in bad:
        # some options are for groups alone
        with pytest.raises((ValueError, TypeError), match=rf"\b{option}\b"):
            case.factory(make_parameters(), **{option: value})
        with pytest.raises(ValueError, match=rf"\b{option}\b"):
            case.factory([{"params": make_parameters(), option: value}])


@pytest.mark.parametrize(
    "optimizer", [*{case.optimizer for case in CASES}, *ALIASES.values()], ids=lambda cls: cls.__name__
)
def test_the_signature_shows_every_option_with_its_default(optimizer):
    options = dict(inspect.signature(optimizer).parameters)
    required = {"lr": 0.1} if options["lr"].default is inspect.Parameter.empty else {}
    defaults = optimizer([nn.Parameter(torch.ones(2, 3))], **required).defaults
    shown = {name: option.default for name, option in options.items()} | required
    assert {name: shown[name] for name in shown.keys() & defaults}.items() <= defaults.items()
    assert not any(option.kind is option.VAR_KEYWORD for option in options.values())


def test_unknown_options_are_refused_with_a_near_name(case):
    with pytest.raises(TypeError, match="learning_rate"):
        case.factory(make_parameters(), learning_rate=0.1)
    params, more = make_parameters(), make_parameters(seed=1)
    optimizer = case.factory(params)
    with pytest.raises(ValueError, match=r"'maximise' \(did you mean 'maximize'"):
        optimizer.add_param_group({"params": more, "maximise": True})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": more})
    assert len(optimizer.param_groups) == 2


def test_lists_are_as_good_as_tuples_and_become_tuples(case):
    lists = {key: list(value) for key, value in case.other_group.items() if isinstance(value, tuple)}
    for params, options in ((make_parameters(), lists), ([{"params": make_parameters(), **lists}], {})):
        group = case.factory(params, **options).param_groups[0]
        assert all(group[key] == tuple(value) for key, value in lists.items())


def test_numbers_of_numpy_become_pythons_which_a_checkpoint_can_hold(params, case):
    # a pair becomes an array
    given = {
        key: value if isinstance(value, bool | str) else np.asarray(value)[()]
        for key, value in case.other_group.items()
    }
    optimizer = case.factory([{"params": params, **given}])
    options = optimizer.param_groups[0]
    assert {key: options[key] for key in given} == case.other_group
    optim.WarmupCosine(optimizer, np.int64(9), np.float64(2))
    run(optimizer, params, [0])
    options["lr"] = np.float64(1e-3) if options["lr"] is not None else None
    torch.save(optimizer.state_dict(), file := io.BytesIO())
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    optimizer.state_dict()


def test_names_of_groups_and_parameters_are_kept(case):
    optimizer = case.factory([{"params": named(make_parameters()), "name": "encoder"}])
    for group in (optimizer.param_groups[0], optimizer.state_dict()["param_groups"][0]):
        assert group["param_names"] == [f"layer.{i}" for i in range(6)]
        assert group["name"] == "encoder"


def test_a_generator_and_named_parameters_do_the_same_as_a_list(case):
    results = []
    for make in (lambda params: params, iter, named):
        params = make_parameters()
        run(case.factory(make(params)), params, range(2))
        results.append(params)
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_groups_with_different_options_act_like_optimizers_of_their_own(case):
    together, apart, plain = make_parameters(), make_parameters(), make_parameters()
    optimizer = case.factory([{"params": together[:3]}, {"params": together[3:], **case.other_group}])
    first, second = case.factory(apart[:3]), case.factory(apart[3:], **case.other_group)
    for step in range(3):
        run_both((optimizer, together), (first, apart), [step])
        second.step()
    assert same(together, apart)
    run(case.factory(plain), plain, range(3))
    assert not torch.equal(plain[3], together[3])


def test_lr_zero_moves_nothing(params, case):
    before = values(params)
    optimizer = case.factory(params, **case.no_decay)
    optimizer.param_groups[0]["lr"] = 0.0
    run(optimizer, params, range(3))
    assert same(params, before)


@pytest.mark.parametrize("build", [optim.AdamW, optim.Muon])
def test_a_model_may_be_cast_to_half_precision_after_a_step(build):
    model = nn.Linear(4, 4)
    optimizer = build(model.parameters(), lr=1e-3)
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        model.to(dtype)
        before = model.weight.detach().clone()
        model(torch.randn(2, 4, dtype=dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not torch.equal(model.weight, before) or dtype == torch.bfloat16
    assert "rounding_error" in optimizer.state[model.weight]


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float64, ()), (torch.float32, (1,)), (torch.bfloat16, (1, 1))])
def test_a_tensor_of_one_element_as_lr_does_what_the_number_does(case, dtype, shape):
    params, twins = make_parameters(dtype), make_parameters(dtype)
    lr = torch.full(shape, 2.0**-7, dtype=torch.float64)
    optimizer, twin = case.factory(params, lr=lr), case.factory(twins, lr=2.0**-7)
    run_both((optimizer, params), (twin, twins), range(2))
    assert lr == 2.0**-7
    lr.mul_(2)
    twin.param_groups[0]["lr"] *= 2
    run_both((optimizer, params), (twin, twins), range(2, 4))
    torch.testing.assert_close(params, twins)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_a_model_learns_under_torchs_schedules(case, as_tensor):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(10, 5, generator=generator))
    bias = nn.Parameter(torch.randn(10, generator=generator))
    x, y = torch.randn(5, generator=generator), torch.randn(10, generator=generator)
    optimizer = case.factory([{"params": [weight]}, {"params": [bias], "lr": 0.01}], lr=0.02)
    for group in optimizer.param_groups if as_tensor else ():
        group["lr"] = torch.tensor(group["lr"])
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns if it sees no step before a schedule's
        for _ in range(20):
            optimizer.zero_grad()
            loss = (weight.mv(x) + bias - y).square().sum()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            scheduler.step()
    assert losses[-1] < losses[0]
    assert all(isinstance(group["lr"], torch.Tensor) == as_tensor for group in optimizer.param_groups)


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
def test_half_precision_parameters_take_every_common_option(row):
    small = make_parameters(torch.bfloat16)
    wide = [nn.Parameter(param.detach().float()) for param in small]
    options = row.option_sets[-1]
    run_both((row.factory(small, **options), small), (row.factory(wide, **options), wide), range(20))
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


def test_mars_keeps_a_gradient_only_where_it_is_on(params):
    optimizer = optim.LaProp([{"params": params[:3], "mars": True}, {"params": params[3:]}])
    run(optimizer, params, range(2))
    assert ["previous_grad" in optimizer.state[param] for param in params] == [True] * 3 + [False] * 3


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


def test_an_alias_with_options_is_a_class_that_can_be_pickled(params):
    optimizer = optim.PaLMSOAP(params, 0.1, beta2_scale=0.6)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["palm"], group["beta2_scale"]) == (0.1, True, 0.6)
    assert optim.PaLMSOAP(params, palm=False).param_groups[0]["palm"] is False
    for twin in duplicates(optimizer):
        assert type(twin) is aliases.ALIASES["PaLMSOAP"]
        assert isinstance(twin, optim.SOAP)
    with pytest.raises(AttributeError, match="ForeachEve"):
        _ = optim.ForeachEve
