"""Rules on parameter names become parameter groups, and no mistake in them passes unnoticed."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from torch import nn

from optim import Adafactor, Cain, Eve, T5XAdafactor, grouped

EVE = partial(Eve, lr=0.1)
NO_DECAY = [{"pattern": r"norm\.|bias$", "weight_decay": 0.0}, {"pattern": ".*"}]


class Small(nn.Module):
    """Names: encoder.weight, encoder.bias, norm.weight, norm.bias, head.weight."""

    def __init__(self):
        super().__init__()
        self.encoder, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.head = nn.Linear(3, 2, bias=False)


def build(*rules, optimizer=EVE, model=None):
    return grouped(optimizer, rules)((model or Small()).named_parameters())


def names(optimizer):
    return [group["param_names"] for group in optimizer.param_groups]


def test_without_rules_there_is_one_group_with_the_optimizers_options():
    model = Small()
    optimizer = build(model=model)
    assert names(optimizer) == [[name for name, _ in model.named_parameters()]]
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_rules_override_options_for_the_parameters_that_they_match():
    optimizer = build(*NO_DECAY)
    assert names(optimizer) == [["encoder.bias", "norm.weight", "norm.bias"], ["encoder.weight", "head.weight"]]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 1e-3]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


def test_the_first_match_wins():
    rules = [{"pattern": "encoder", "lr_scale": 2.0}, {"pattern": "bias", "lr_scale": 3.0}, {"pattern": ".*"}]
    optimizer = build(*rules)
    assert names(optimizer) == [["encoder.weight", "encoder.bias"], ["norm.bias"], ["norm.weight", "head.weight"]]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.3, 0.1])


def test_lr_scale_multiplies_a_tensor_too():
    optimizer = build(
        {"pattern": "head", "lr_scale": 0.5}, {"pattern": ".*"}, optimizer=partial(Eve, lr=torch.tensor(0.5))
    )
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.25, 0.5]


def test_any_hyper_parameter_may_be_overridden_also_of_torchs_optimizers():
    adamw = partial(torch.optim.AdamW, lr=0.1, fused=True)
    optimizer = build(
        {"pattern": "head", "betas": [0.5, 0.6], "eps": 1e-4, "lr": 0.7}, {"pattern": ".*"}, optimizer=adamw
    )
    head, rest = optimizer.param_groups
    assert (head["betas"], head["eps"], head["lr"]) == ((0.5, 0.6), 1e-4, 0.7)
    assert (rest["betas"], rest["eps"], rest["lr"]) == ((0.9, 0.999), 1e-8, 0.1)
    assert (head["fused"], rest["fused"]) == (True, True)


def test_groups_train_as_their_options_say():
    model = Small()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build({"pattern": "head", "lr_scale": 0.0, "weight_decay": 0.0}, {"pattern": ".*"}, model=model)
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])}
    # norm.bias starts at zero and has a zero gradient
    assert moved == {"encoder.weight", "encoder.bias", "norm.weight"}


def test_frozen_parameters_are_left_out_but_their_names_still_satisfy_a_rule():
    model = Small()
    model.norm.requires_grad_(False)
    rules = [{"pattern": "norm", "weight_decay": 0.0}, {"pattern": "encoder|head"}]
    assert names(build(*rules, model=model)) == [["encoder.weight", "encoder.bias", "head.weight"]]
    assert names(build(rules[1], model=model)) == [["encoder.weight", "encoder.bias", "head.weight"]]


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ValueError, match="no parameter to optimize: none of 5 requires a gradient"):
        build(model=Small().requires_grad_(False))


def test_a_pattern_that_matches_nothing_is_refused_with_near_names():
    message = r"'encodr.weight' matches no parameter \(did you mean 'encoder.weight'.*\); names look like encoder"
    with pytest.raises(ValueError, match=message):
        build({"pattern": "encodr.weight", "lr_scale": 2.0}, {"pattern": ".*"})


@pytest.mark.parametrize("asked", [{"lr_scale": 0.5}, {"weight_decay": 0.1}, {"optimizer": partial(Cain, lr=0.1)}])
def test_a_rule_that_asks_for_something_is_refused_after_one_that_takes_everything(asked):
    for later in ([{"pattern": "weight|bias", **asked}], [{"pattern": "bias", **asked}, {"pattern": "weight"}]):
        with pytest.raises(ValueError, match=r"decides about no parameter: earlier rules take all it matches, '\.\*'"):
            build({"pattern": ".*"}, *later)


def test_a_rule_that_comes_too_late_is_refused():
    with pytest.raises(ValueError, match=r"'bias' decides about no parameter.*'\.\*' takes encoder.bias"):
        build({"pattern": ".*"}, {"pattern": "bias", "weight_decay": 0.0})


def test_a_last_rule_for_everything_may_find_nothing_left():
    optimizer = build({"pattern": "weight|bias", "weight_decay": 0.0}, {"pattern": ".*"})
    assert len(optimizer.param_groups) == 1


def test_a_parameter_without_rule_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no parameter rule matches norm.weight, norm.bias \(2 of 5 parameters\)"):
        build({"pattern": "encoder|head"})


def test_an_unknown_option_is_refused_with_what_is_allowed():
    message = (
        r"rule 'head': unknown option 'weight_decy' \(did you mean 'weight_decay'\?\); allowed are betas, eps, lr, lr_"
    )
    for optimizer in (Eve, partial(Eve, lr=0.1)):
        with pytest.raises(ValueError, match=message):
            build({"pattern": "head", "weight_decy": 0.0}, {"pattern": ".*"}, optimizer=optimizer)
    with pytest.raises(ValueError, match=r"unknown option 'target_rms'"):
        build({"pattern": "head", "target_rms": 0.1}, {"pattern": ".*"}, optimizer=torch.optim.AdamW)


def test_a_bad_value_is_refused_by_the_optimizer():
    with pytest.raises(ValueError, match=r"weight_decay must be a number in \[0, 0.1\], given 7"):
        build({"pattern": "head", "weight_decay": 7}, {"pattern": ".*"})


MALFORMED = [
    ({"pattern": "head"}, "rules must be a list of mappings, given dict"),
    ("head", "rules must be a list of mappings, given str 'head'"),
    ([{"lr_scale": 2.0}], "parameter rule 0 must be a mapping with a string 'pattern'"),
    (["head"], "parameter rule 0 must be a mapping"),
    ([{"pattern": "("}], "'(' is no regular expression"),
    ([{"pattern": "a{99999999999999}"}], "is no regular expression: the repetition number is too large"),
    ([{"pattern": "x" * 1001}], "… has 1001 characters; at most 1000 are allowed"),
    ([{"pattern": "head", "lr_scale": -1}], "lr_scale of parameter rule 'head' must be a number in [0, inf)"),
    ([{"pattern": "head", "lr_scale": 2, "lr": 1}], "has both lr and lr_scale"),
]


@pytest.mark.parametrize(("rules", "message"), MALFORMED, ids=lambda value: str(value)[:30])
def test_malformed_rules_are_refused_before_there_is_a_model(rules, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        grouped(Eve, rules)
    assert message in str(caught.value)


def test_lr_scale_without_lr_is_refused():
    def without_lr(params):
        optimizer = torch.optim.SGD(params, lr=1.0)
        optimizer.defaults["lr"] = None
        return optimizer

    with pytest.raises(ValueError, match="lr_scale needs an optimizer with an lr"):
        build({"pattern": "head", "lr_scale": 2.0}, {"pattern": ".*"}, optimizer=without_lr)


def test_the_factory_can_be_sent_to_another_process():
    factory = pickle.loads(pickle.dumps(grouped(EVE, NO_DECAY)))
    assert [group["weight_decay"] for group in factory(Small().named_parameters()).param_groups] == [0.0, 1e-3]


def test_no_decay_may_be_asked_of_an_optimizer_that_never_decays():
    named = [("a.weight", nn.Parameter(torch.ones(2, 2))), ("a.bias", nn.Parameter(torch.ones(2)))]
    rules = [{"pattern": "bias$", "weight_decay": 0.0}, {"pattern": ".*"}]
    assert len(grouped(partial(Cain, lr=0.1), rules)(named).param_groups) == 2
    rules[0]["weight_decay"] = 0.1
    with pytest.raises(ValueError, match="unknown option 'weight_decay'"):
        grouped(partial(Cain, lr=0.1), rules)(named)


@pytest.mark.parametrize("options", [{}, {"weight_decay_rate": 0.1}, {"weight_decay_rate_lr_exponent": 1.0}])
def test_no_decay_is_none_by_any_name(options):
    rules, t5x = (
        [{"pattern": "bias$", "weight_decay": 0.0}, {"pattern": ".*"}],
        partial(T5XAdafactor, lr=0.1, **options),
    )
    optimizer = build(*rules, optimizer=t5x)
    spared, others = ([group["params"][0]] for group in optimizer.param_groups)
    before = [value.clone() for value in (*spared, *others)]
    for parameter in (*spared, *others):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = [not torch.equal(new, old) for new, old in zip((*spared, *others), before, strict=True)]
    assert moved == [False, bool(options)]
    with pytest.raises(ValueError, match=r"unknown option 'weight_decay'.*'weight_decay_rate'"):
        build({"pattern": "bias$", "weight_decay": 0.1}, {"pattern": ".*"}, optimizer=t5x)


def test_a_rule_may_give_its_parameters_to_another_optimizer():
    model = Small()
    other = partial(Adafactor, lr=0.02, relative_step=False)
    rules = [
        {"pattern": "head", "optimizer": other, "lr_scale": 0.5},
        {"pattern": "bias$", "weight_decay": 0.0},
        {"pattern": "norm", "optimizer": other, "weight_decay": 0.1},
        {"pattern": ".*"},
    ]
    optimizer = build(*rules, model=model)
    assert [type(member) for member in optimizer.optimizers] == [Adafactor, Eve]
    assert names(optimizer) == [["head.weight"], ["norm.weight"], ["encoder.bias", "norm.bias"], ["encoder.weight"]]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02, 0.1, 0.1]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.1, 0.0, 1e-3]


def test_an_option_of_the_other_optimizer_is_checked_against_it():
    rules = [{"pattern": "head", "optimizer": partial(Cain), "target_rms": 0.2}, {"pattern": ".*"}]
    with pytest.raises(ValueError, match="parameter rule 'head': unknown option 'target_rms'"):
        build(*rules)


def test_what_makes_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="rule 'head': optimizer must make an optimizer of parameters"):
        build({"pattern": "head", "optimizer": "cain"}, {"pattern": ".*"})
