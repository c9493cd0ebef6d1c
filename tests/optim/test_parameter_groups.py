"""Rules on parameter names become parameter groups, and several optimizers act as one."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from optim import Adafactor, AdamW, Cain, Combined, Constant, Eve, Muon, T5XAdafactor, grouped, step_in_backward
from tests.optim.training import copies, duplicates, make_parameters, named, run, run_both, same, step_with, values

EVE, CAIN = partial(Eve, lr=0.1), partial(Cain, lr=0.1)
REST = {"pattern": ".*"}


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


def options(optimizer, key):
    return [group[key] for group in optimizer.param_groups]


def test_without_rules_there_is_one_group_with_the_optimizers_options():
    model = Small()
    optimizer = build(model=model)
    assert names(optimizer) == [[name for name, _ in model.named_parameters()]]
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert options(optimizer, "lr") == [0.1]


def test_the_first_match_wins_and_overrides_options_also_in_another_process():
    rules = [{"pattern": "encoder", "lr_scale": 2.0}, {"pattern": r"norm\.|bias$", "weight_decay": 0.0}, REST]
    optimizer = pickle.loads(pickle.dumps(grouped(EVE, rules)))(Small().named_parameters())
    assert names(optimizer) == [["encoder.weight", "encoder.bias"], ["norm.weight", "norm.bias"], ["head.weight"]]
    assert options(optimizer, "lr") == [0.2, 0.1, 0.1]
    assert options(optimizer, "weight_decay") == [1e-3, 0.0, 1e-3]


def test_lr_scale_multiplies_a_tensor_too():
    optimizer = build({"pattern": "head", "lr_scale": 0.5}, REST, optimizer=partial(Eve, lr=torch.tensor(0.5)))
    assert options(optimizer, "lr") == [0.25, 0.5]


def test_any_hyper_parameter_may_be_overridden_also_of_torchs_optimizers():
    adamw = partial(torch.optim.AdamW, lr=0.1, fused=True)
    head, rest = build({"pattern": "head", "betas": [0.5, 0.6], "lr": 0.7}, REST, optimizer=adamw).param_groups
    assert (head["betas"], head["lr"], head["fused"]) == ((0.5, 0.6), 0.7, True)
    assert (rest["betas"], rest["lr"], rest["fused"]) == ((0.9, 0.999), 0.1, True)


def test_frozen_parameters_are_left_out_but_their_names_still_satisfy_a_rule():
    model = Small()
    model.norm.requires_grad_(False)
    rules = [{"pattern": "norm", "weight_decay": 0.0}, {"pattern": "encoder|head"}]
    assert names(build(*rules, model=model)) == [["encoder.weight", "encoder.bias", "head.weight"]]
    assert names(build(rules[1], model=model)) == [["encoder.weight", "encoder.bias", "head.weight"]]
    with pytest.raises(ValueError, match="none of 5 requires a gradient"):
        build(model=model.requires_grad_(False))


def test_a_last_rule_for_everything_may_find_nothing_left():
    assert len(build({"pattern": "weight|bias", "weight_decay": 0.0}, REST).param_groups) == 1


def without_lr(params):
    optimizer = torch.optim.SGD(params, lr=1.0)
    optimizer.defaults["lr"] = None
    return optimizer


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"pattern": "encodr.weight", "lr_scale": 2.0}, REST], "did you mean 'encoder.weight'"),
        ([REST, {"pattern": "bias", "weight_decay": 0.0}], r"'bias' decides about no parameter.*'\.\*'"),
        ([REST, {"pattern": "weight|bias", "optimizer": CAIN}], "decides about no parameter"),
        ([{"pattern": "encoder|head"}], "norm.weight, norm.bias"),
        ([{"pattern": "head", "weight_decy": 0.0}, REST], r"'head': .*'weight_decy' \(did you mean 'weight_decay'"),
        ([{"pattern": "head", "weight_decay": 7}, REST], r"'head': weight_decay.* in \[0, 0.1\], given 7"),
        ([{"pattern": "head", "optimizer": CAIN, "target_rms": 0.2}, REST], "'head': unknown option 'target_rms'"),
        (
            [{"pattern": "head", "optimizer": without_lr, "lr_scale": 2.0}, REST],
            "lr_scale needs an optimizer with an lr",
        ),
        ([{"pattern": "head", "optimizer": "cain"}, REST], "'head': optimizer"),
        ({"pattern": "head"}, "parameter rule 0"),
        ([{"lr_scale": 2.0}], "parameter rule 0"),
        (["head"], "parameter rule 0"),
        ([{"pattern": "("}], "parameter rule 0: .*no regular expression"),
        ([{"pattern": "head", "lr_scale": -1}], "lr_scale of parameter rule 'head'"),
        ([{"pattern": "head", "lr_scale": 2, "lr": 1}], "both lr and lr_scale"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        grouped(EVE, rules)(Small().named_parameters())


def test_an_option_that_torch_would_ignore_is_refused():
    with pytest.raises(ValueError, match="unknown option 'target_rms'"):
        build({"pattern": "head", "target_rms": 0.1}, REST, optimizer=torch.optim.AdamW)


@pytest.mark.parametrize("decay", [{}, {"weight_decay_rate": 0.1}, {"weight_decay_rate_lr_exponent": 1.0}])
def test_no_decay_is_none_by_any_name_also_where_there_never_is_one(decay):
    optimizer = build({"pattern": "bias$", "weight_decay": 0.0}, REST, optimizer=partial(T5XAdafactor, lr=0.1, **decay))
    chosen = [group["params"][0] for group in optimizer.param_groups]
    before = values(chosen)
    step_with(optimizer, chosen, 0.0)
    assert [not torch.equal(*pair) for pair in zip(chosen, before, strict=True)] == [False, bool(decay)]
    for other in (partial(T5XAdafactor, lr=0.1), CAIN):
        with pytest.raises(ValueError, match="unknown option 'weight_decay'"):
            build({"pattern": "bias$", "weight_decay": 0.1}, REST, optimizer=other)
    assert len(build({"pattern": "bias$", "weight_decay": 0.0}, REST, optimizer=CAIN).param_groups) == 2


def test_a_rule_may_give_its_parameters_to_another_optimizer():
    other = partial(Adafactor, lr=0.02, relative_step=False)
    optimizer = build(
        {"pattern": "head", "optimizer": other, "lr_scale": 0.5},
        {"pattern": "bias$", "weight_decay": 0.0},
        {"pattern": "norm", "optimizer": other, "weight_decay": 0.1},
        REST,
    )
    assert [type(member) for member in optimizer.optimizers] == [Adafactor, Eve]
    assert names(optimizer) == [["head.weight"], ["norm.weight"], ["encoder.bias", "norm.bias"], ["encoder.weight"]]
    assert options(optimizer, "lr") == [0.01, 0.02, 0.1, 0.1]
    assert options(optimizer, "weight_decay") == [0.0, 0.1, 0.0, 1e-3]


@pytest.mark.parametrize("decay", [{}, {"optimizer": partial(Adafactor, lr=0.02, relative_step=False)}])
@pytest.mark.parametrize("optimizer", [EVE, partial(Eve, lr=0.1, capturable=True), partial(T5XAdafactor, lr=0.1)])
def test_an_optimizer_that_was_built_of_an_outline_and_stepped_is_as_new_with_other_parameters(optimizer, decay):
    make = grouped(
        optimizer, [{"pattern": "bias$", "weight_decay": 0.0, **decay}, {"pattern": "head", "lr_scale": 0.5}, REST]
    )
    outline = Small()
    models = [copy.deepcopy(outline), copy.deepcopy(outline)]
    moved, new = make(outline.named_parameters()), make(models[1].named_parameters())
    step_with(moved, list(outline.parameters()), 1.0)
    moved.replace_params(dict(models[0].named_parameters()))
    for model, one in zip(models, (moved, new), strict=True):
        step_with(one, list(model.parameters()), 0.5)
    assert moved.state_dict()["param_groups"] == new.state_dict()["param_groups"]
    assert all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))


def combined(params, **options):
    make = grouped(
        partial(Eve, lr=0.01, **options),
        [
            {"pattern": "[135]$", "optimizer": partial(Adafactor, lr=0.02, relative_step=False)},
            {"pattern": "0$", "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)},
            {"pattern": ".*"},
        ],
    )
    return make(named(params))


def test_each_member_does_what_it_would_do_alone():
    params, apart = make_parameters(), make_parameters()
    optimizer = combined(params)
    alone = Adafactor([apart[i] for i in (1, 3, 5)], lr=0.02, relative_step=False)
    others = [torch.optim.SGD([apart[0]], lr=0.1, momentum=0.9), Eve([apart[i] for i in (2, 4)], lr=0.01)]
    for step in range(3):
        run_both((optimizer, params), (alone, apart), [step])
        for one in others:
            one.step()
    assert same(params, apart)


def test_a_schedule_moves_every_members_lr():
    optimizer = combined(make_parameters())
    schedule = Constant(optimizer, warmup_steps=3)
    assert [group["lr"] for group in optimizer.optimizers[0].param_groups] == [0.02 / 4]
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02 / 2, 0.1 / 2, 0.01 / 2])


@pytest.mark.parametrize(
    "schedule", [partial(OneCycleLR, total_steps=9, max_lr=0.1), partial(CyclicLR, base_lr=0.01, max_lr=0.1)]
)
@pytest.mark.parametrize("wrapped", [lambda params, make: make(params), step_in_backward], ids=["after", "in backward"])
def test_torchs_cycles_of_lr_and_momentum_are_followed_if_all_members_have_the_option(schedule, wrapped):
    others = partial(AdamW, betas=(0.95, 0.99))  # Muon's
    muon = grouped(partial(Muon, lr=0.01), [{"pattern": "[35]$"}, {"pattern": ".*", "optimizer": others}])
    optimizer, alone = wrapped(named(make_parameters()), muon), Muon(make_parameters())
    rates = [schedule(each) for each in (optimizer, alone)]
    for _ in range(3):
        for each in (optimizer, alone, *rates):
            each.step()
    for group in optimizer.param_groups:
        assert all(group[key] == alone.param_groups[0][key] for key in ("lr", "betas"))
    with pytest.raises(ValueError, match="momentum or beta1"):
        schedule(combined(make_parameters()))


def test_a_checkpoint_and_copies_continue_bit_for_bit_and_apart_from_the_original(params, tmp_path):
    optimizer = combined(params)
    run(optimizer, params, range(3))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twins = copies(params)
    twin = combined(twins)
    twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    copied = [(twin, twins), *duplicates((optimizer, params))]
    run(optimizer, params, range(3, 6))
    for each, its in copied:
        assert not same(params, its)
        run(each, its, range(3, 6))
        assert same(params, its)
    with pytest.raises(ValueError, match="1 groups, this optimizer has 3"):
        optimizer.load_state_dict(Eve(make_parameters()).state_dict())


def test_one_bad_gradient_stops_all_members(params):
    before = values(params)
    optimizer = combined(params, skip_nonfinite=True)
    for place, param in enumerate(params):  # not a parameter of the member that asks for it
        param.grad = torch.full_like(param, 1.0 if place else float("nan"))
    optimizer.step()
    assert same(params, before)
    assert [member.skipped_steps for member in (optimizer.optimizers[0], optimizer.optimizers[2])] == [1, 1]


def test_a_parameter_of_two_members_and_a_late_group_are_refused(params):
    with pytest.raises(ValueError, match="more than one parameter group"):
        Combined([Eve(params), Adafactor(params[:1])])
    with pytest.raises(ValueError, match="add the group to one of"):
        combined(params).add_param_group({"params": make_parameters()})
