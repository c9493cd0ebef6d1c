"""What Adafactor, T5XAdafactor and MaxFactor have beside the contracts."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from optim import (
    Adafactor,
    AdafactorSchedule,
    Combined,
    Eve,
    FactorDim,
    Health,
    HParamMap,
    MaxFactor,
    T5XAdafactor,
    standard_logical_factor_rules,
)
from optim.adafactor import base_step
from optim.t5x_adafactor import make_plan, parse_rule, rule_of_logical_axes
from optim.transforms.factored import FactorPlan
from tests.optim.training import copies, make_parameters, run, run_both, same, step_with, values


def params() -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((3, 4), 0.5)), nn.Parameter(torch.ones(4))]


def test_the_reported_step_is_the_one_that_was_taken():
    members = params()
    optimizer = Adafactor([{"params": members[:1]}, {"params": members[1:], "scale_parameter": False}])
    schedule, twin = AdafactorSchedule(optimizer, initial_lr=0.25), AdafactorSchedule(Adafactor(params()))
    assert schedule.get_last_lr() == [0.25, 0.25]
    for step in range(1, 4):
        step_with(optimizer, members, 1.0)
        schedule.step()
        size = float(members[0].detach().square().mean().sqrt())
        assert schedule.get_last_lr() == pytest.approx([1e-2 * size, 1e-2])
        assert schedule.last_epoch == step
    assert all(group["lr"] is None for group in optimizer.param_groups)
    twin.load_state_dict(schedule.state_dict())
    assert twin.last_epoch == 3


def test_the_relative_step_falls_with_time_and_warms_up():
    group = Adafactor(params()).param_groups[0]
    warm = Adafactor(params(), warmup_init=True).param_groups[0]
    assert [base_step(group, t) for t in (1, 9_999, 40_000)] == pytest.approx([1e-2, 1e-2, 0.005])
    assert [base_step(warm, t) for t in (1, 100, 1_000_000)] == pytest.approx([1e-6, 1e-4, 1e-3])


AXES = {"stack.weight": ("layers", "embed", "mlp"), "table": ("vocab", "embed"), "stack/bias": ("layers", "mlp")}


def named(scale: float = 1.0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"stack.weight": (3, 8, 6), "table": (20, 8), "stack.bias": (3, 6)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator) * scale) for name, shape in shapes.items()}


def make(params, **options):
    return T5XAdafactor(params.items(), **{"lr": 0.01, "min_dim_size_to_factor": 4, **options})


def shapes(optimizer, param):
    return {key: tuple(value.shape) for key, value in optimizer.state[param].items() if key != "step"}


def test_rules_by_name_decide_what_is_factored():
    params = named()
    dims = (FactorDim.BATCH, FactorDim.ROW, FactorDim.COLUMN)
    optimizer = make(params, factor_map=HParamMap([("stack/weight", dims), ("table", None), (".*", "heuristic")]))
    run(optimizer, params.values(), range(1))
    weight, table, bias = params.values()
    assert shapes(optimizer, weight) == {"row": (3, 8, 1), "col": (3, 1, 6)}
    assert shapes(optimizer, table) == {"exp_avg_sq": (20, 8)}
    assert shapes(optimizer, bias) == {"exp_avg_sq": (3, 6)}
    plain = (("stack/weight", ("batch", "row", "column")), ("table", None), (".*", "heuristic"))
    assert optimizer.param_groups[0]["factor_map"] == plain


def test_a_limited_slice_limits_its_parameter():
    param = nn.Parameter(torch.ones(2, 3))
    optimizer = T5XAdafactor([("p", param)], 0.1, factor_map=[("p", ("batch", "none"))], clipping_threshold=0.5)
    param.grad = torch.tensor([[1.0] * 3, [0.0] * 3])
    health = Health(optimizer, every=1)
    optimizer.step()
    assert health.take()["health/0/clipped_share"] == 1.0


def test_a_parameter_without_a_rule_is_refused_by_name():
    for options, message in (
        ({}, "stack.weight .* factor_map"),
        ({"factor_map": [("stack", None)]}, "factor_map is found in table"),
        ({"factor_map": "matrices", "multiply_by_parameter_scale": [("stack", True)]}, "scale is found in table"),
        ({"factor_map": [("stack", ("batch", "row", "column")), (".*", None)]}, "stack.bias has 2 axes"),
        ({"factor_map": [("(", None)]}, "no regular expression"),
        ({"factor_map": [(".*", ("row", "cow"))]}, "an axis must be 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(named(), **options)
    with pytest.raises(ValueError, match="factor_map finds parameters by name"):
        T5XAdafactor(make_parameters(), 0.1, factor_map=[(".*", None)])


def test_names_of_axes_become_rules():
    params = named()
    optimizer = make(params, logical_factor_rules=standard_logical_factor_rules())
    before = values(params.values())
    with pytest.raises(ValueError, match=r"stack.weight .*set_param_axes"):
        run(optimizer, reversed(params.values()), range(1))
    assert same(params.values(), before)
    optimizer.set_param_axes(AXES)
    run(optimizer, params.values(), range(2))
    weight, table, bias = params.values()
    assert shapes(optimizer, weight) == {"row": (3, 8, 1), "col": (3, 1, 6)}
    # without a batch the heuristic decides about a matrix: the smaller axis is the rows
    assert shapes(optimizer, table) == {"row": (1, 8), "col": (20, 1)}
    assert shapes(optimizer, bias) == {"exp_avg_sq": (3, 6)}
    twin = make(params, logical_factor_rules=standard_logical_factor_rules())
    twin.set_param_axes(AXES)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert shapes(twin, weight) == shapes(optimizer, weight)


def test_logical_rules_of_ones_own_decide():
    params = {"w": nn.Parameter(torch.ones(2, 3, 4))}
    optimizer = make(params, logical_factor_rules={"a": "row", "b": "batch", "c": FactorDim.COLUMN})
    assert optimizer.param_groups[0]["logical_factor_rules"] == {"a": "row", "b": "batch", "c": "column"}
    optimizer.set_param_axes({"w": ("a", "b", "c")})
    assert optimizer.param_groups[0]["factor_map"] == (("^w$", ("row", "batch", "column")),)


def test_names_of_axes_that_do_not_fit_change_nothing():
    params = named()
    optimizer = make(params, logical_factor_rules=standard_logical_factor_rules())
    for axes, message in [
        ({**AXES, "tables": ("vocab",)}, "there is no parameter 'tables'.*did you mean 'table'"),
        ({"table": AXES["table"]}, "no axes for stack.weight, stack.bias"),
        ({**AXES, "table": ("vocab",)}, "table has 2 axes"),
        ({**AXES, "table": ("vocab", "heds")}, "no rule for the logical axis 'heds'.*did you mean 'heads'"),
        ({**AXES, "stack.weight": ("embed", "mlp", "relpos_buckets")}, "beside rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            optimizer.set_param_axes(axes)
    assert optimizer.param_groups[0]["factor_map"] is None
    with pytest.raises(ValueError, match="set_param_axes needs names"):
        T5XAdafactor([nn.Parameter(torch.ones(2))], 0.1).set_param_axes({})
    with pytest.raises(ValueError, match="factored=False leaves nothing"):
        make(params, factored=False).set_param_axes(AXES)


def test_names_of_axes_come_before_the_first_step_and_leave_other_optimizers_alone():
    params, other = named(), nn.Parameter(torch.ones(3))
    own = make(params, factor_map="matrices")
    both = Combined([Eve([other]), own])
    run(both, [other], range(1))
    own.set_param_axes(AXES)
    assert both.state[other]["step"] == 1
    run(both, params.values(), range(1))
    with pytest.raises(ValueError, match="set_param_axes comes too late"):
        own.set_param_axes(AXES)


def step_sizes(optimizer, param, num_steps):
    """Return how far a parameter moves in each step with gradients 1, 2, 4, …."""
    moves = []
    for step in range(num_steps):
        before = param.detach().clone()
        step_with(optimizer, [param], 2.0**step)
        moves.append(float((before - param.detach()).abs().max()))
    return moves


def scalar_optimizer(**options):
    param = nn.Parameter(torch.zeros((), dtype=torch.float64))
    plain = {"multiply_by_parameter_scale": False, "clipping_threshold": None}
    return T5XAdafactor([param], **{"lr": 1.0, **plain, **options}), param


def test_steps_before_the_offset_count_as_the_first():
    optimizer, param = scalar_optimizer(step_offset=3)
    assert step_sizes(optimizer, param, 4) == pytest.approx([1.0] * 4)
    assert step_sizes(optimizer, param, 1)[0] != pytest.approx(1.0)
    resumed, param = scalar_optimizer(step_offset=3, initial_step=3)
    assert step_sizes(resumed, param, 2)[0] == pytest.approx(1.0)


def test_the_decay_follows_the_current_lr():
    for options, decay in (
        ({"weight_decay_rate": 0.1}, 0.1),
        ({"weight_decay_rate_lr_exponent": 2.0}, 0.25),
        ({"weight_decay_rate_lr_exponent": 2.0, "weight_decay_rate": 0.1}, 0.025),
    ):
        optimizer, param = scalar_optimizer(**options)
        param.data.fill_(4.0)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
        step_with(optimizer, [param], 0.0)
        assert param.item() == pytest.approx(4.0 * (1 - decay))


def test_the_global_norm_is_that_of_all_groups():
    def moved(threshold):
        params = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))]
        options = {"clipping_threshold": None, "epsilon1": 1.0, "global_norm_clip_threshold": threshold}
        optimizer = T5XAdafactor([{"params": [param]} for param in params], 1e3, **options)
        params[0].grad, params[1].grad = torch.tensor([2.0, 3.0]), torch.tensor([6.0], dtype=torch.bfloat16)
        optimizer.step()
        return torch.cat([param.detach().float() for param in params])

    gradient = torch.tensor([2.0, 3.0, 6.0])  # of norm 7
    for threshold, factor in ((None, 1.0), (0.0, 1.0), (8.0, 1.0), (3.5, 0.5)):
        clipped = gradient * factor
        torch.testing.assert_close(moved(threshold), -clipped / (1 + clipped**2).sqrt(), rtol=4e-3, atol=0)


@pytest.mark.parametrize("copies", [1, 2], ids=["alone", "stacked"])
def test_nan_gradients_stop_single_elements_only_where_nothing_couples_them(copies):
    params = [nn.Parameter(torch.ones(4)) for _ in range(copies)]
    optimizer = T5XAdafactor(params, 0.1, beta1=0.9, skip_nan_updates=True, clipping_threshold=None)
    for param in params:
        param.grad = torch.tensor([1.0, float("nan"), 1.0, 1.0])
    optimizer.step()
    for param in params:
        assert (param != 1).tolist() == [True, False, True, True]
        assert optimizer.state[param]["exp_avg_sq"][1] == optimizer.state[param]["exp_avg"][1] == 0
    clipped = T5XAdafactor(params, 0.1, skip_nan_updates=True)
    before = values(params)
    clipped.step()
    assert same(params, before)


@pytest.mark.parametrize(("size", "options"), [(1e20, {}), (math.inf, {"skip_nan_updates": True})], ids=["1e20", "inf"])
def test_an_element_whose_square_overflows_stops_as_if_its_gradients_were_zero(size, options):
    one, zero = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizers = [T5XAdafactor([param], 0.1, clipping_threshold=None, **options) for param in (one, zero)]
    for step in range(8):
        zero.grad = torch.tensor([1.0 if step < 1 else 0.0, 1.0, -2.0 + step])
        one.grad = zero.grad.clone()
        if step == 1:
            one.grad[0] = size
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(one, zero)
    assert optimizers[0].state[one]["exp_avg_sq"][0] == math.inf


@pytest.mark.parametrize(("given", "expected"), [("bfloat16", torch.bfloat16), (None, torch.float64)])
def test_momentum_keeps_its_type(given, expected):
    options = {"factor_map": "matrices", "beta1": 0.9, "dtype_momentum": given}
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    optimizer, twin = (T5XAdafactor(each, 0.01, **options) for each in (params, twins))
    run(optimizer, params, range(2))
    twin.load_state_dict(optimizer.state_dict())
    for each in (optimizer, twin):
        assert {state["exp_avg"].dtype for state in each.state.values()} == {expected}


def test_rules_are_loaded_with_the_state():
    params = named()
    optimizer = make(params, factor_map="matrices", multiply_by_parameter_scale=[("table", False), (".*", True)])
    run(optimizer, params.values(), range(2))
    twins = dict(zip(params, copies(params.values()), strict=True))
    twin = make(twins, factor_map="matrices")
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run_both((optimizer, params.values()), (twin, twins.values()), range(2, 4))
    assert same(params.values(), twins.values())


WHOLE = FactorPlan((), (), None, True)


PLANS = [
    ([(4, 5), (4, 4)], "heuristic", FactorPlan((-2,), (-1,), None, True)),
    ([(4, 5), (4, 4)], "matrices", FactorPlan((-2,), (-1,), None, True)),
    ([(5, 4)], "heuristic", FactorPlan((-1,), (-2,), None, True)),
    ([(5, 4)], "matrices", FactorPlan((-1,), (-2,), None, True)),
    ([(3, 500), (500,), ()], "heuristic", WHOLE),
    ([(3, 500), (500,), (), (9, 9, 9)], "matrices", WHOLE),
    ([(9, 9)], None, WHOLE),
    ([(2, 3, 1)], ("batch", "row", "column"), FactorPlan((-2,), (-1,), (-2, -1), True)),
    ([(2, 3, 1, 2)], ("row", "batch", "col", "COLUMN"), FactorPlan((-4,), (-2, -1), (-4, -2, -1), True)),
    # what is in none of them is averaged over for sizes but not for moments
    ([(2, 3, 1)], ("row", None, FactorDim.COLUMN), FactorPlan((-3,), (-1,), None, True)),
    ([(2, 3, 1)], ("batch", "none", "unfactorized"), FactorPlan((), (), (-2, -1), True)),
    # a rule for a matrix counts only with a batch
    ([(5, 4)], ("row", "column"), FactorPlan((-1,), (-2,), None, True)),
    ([(5, 4)], ("batch", "row"), FactorPlan((-1,), (), (-1,), True)),
    ([(5,)], ("batch",), FactorPlan((), (), (), True)),
]


@pytest.mark.parametrize(("shapes", "rule", "expected"), PLANS)
def test_a_rule_decides_the_axes(shapes, rule, expected):
    for shape in shapes:
        assert make_plan("p", shape, parse_rule(rule), 4, True) == expected


def test_the_first_pattern_found_in_the_name_or_in_the_path_decides():
    rules = HParamMap([("layers/0/", 1), (r"layers\.1\.", 2), ("weight$", 3)])
    assert [rules[f"layers.{i}.weight"] for i in range(3)] == [1, 2, 3]
    assert "layers.2.bias" not in rules
    with pytest.raises(KeyError, match=r"layers\.2\.bias"):
        rules["layers.2.bias"]
    assert HParamMap(rules).rules == rules.rules


def test_the_standard_rules_are_t5xs():
    rules = standard_logical_factor_rules()
    named = {dim: {axis for axis, value in rules.items() if value is dim} for dim in FactorDim}
    assert named[FactorDim.ROW] == {"embed"}
    assert named[FactorDim.BATCH] == {"layers", "stack"}
    assert named[FactorDim.NONE] == {"relpos_buckets", "layer_norm_scale"}
    assert named[FactorDim.COLUMN] == {
        *("vocab", "mlp", "heads", "kv", "joined_kv", "q_wi_fused", "o_wo_fused"),
        *("multiquery_heads", "kv_fused", "mlp_activations"),
    }


@pytest.mark.parametrize(
    ("axes", "rule"),
    [
        (("layers", "embed", "heads", "kv"), ("batch", "row", "column", "column")),
        (("layers", "mlp"), ("batch", "none")),
        (("vocab", "relpos_buckets"), ("none", "none")),
        ((), ()),
    ],
)
def test_logical_axes_become_a_rule_where_both_rows_and_columns_are_named(axes, rule):
    assert rule_of_logical_axes("p", axes, standard_logical_factor_rules()) == rule


@pytest.mark.parametrize("max_norm", [True, False])
def test_a_matrix_of_one_element_moves_as_a_single_element(max_norm):
    param = nn.Parameter(torch.full((1, 1), 2.0, dtype=torch.float64))
    eps, weight = 1e-10, 0.999
    step_with(
        MaxFactor([param], lr=0.1, eps=(eps, 1e-4), weight_decay=0.0, max_norm=max_norm, scalar_boost=3.0),
        [param],
        -0.5,
    )
    average = weight * 0.25 / (1 + eps)
    second_moment = average if max_norm else average**2
    expected = 2.0 + 2.0 * 0.1 * 3.0 * 0.5 / (second_moment**0.5 + eps)
    assert param.item() == pytest.approx(expected, rel=1e-9)
