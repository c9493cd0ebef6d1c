"""Rules that say which axes are rows, columns or a batch."""

from __future__ import annotations

import pytest

from optim import FactorDim, HParamMap, standard_logical_factor_rules
from optim.t5x_adafactor import make_plan, parse_rule, rule_of_logical_axes
from optim.transforms.factored import FactorPlan

WHOLE = FactorPlan((), (), None, True)


def plan(shape, rule):
    return make_plan("p", shape, parse_rule(rule), 4, True)


@pytest.mark.parametrize("rule", ["heuristic", "matrices"])
def test_the_heuristic_makes_the_smaller_axis_of_a_large_matrix_its_rows(rule):
    assert plan((4, 5), rule) == plan((4, 4), rule) == FactorPlan((-2,), (-1,), None, True)
    assert plan((5, 4), rule) == FactorPlan((-1,), (-2,), None, True)
    assert plan((3, 500), rule) == plan((500,), rule) == plan((), rule) == WHOLE


def test_matrices_leaves_more_axes_alone_and_none_leaves_everything():
    assert plan((9, 9, 9), "matrices") == plan((9, 9), None) == WHOLE


def test_axes_are_what_a_rule_says_whatever_their_sizes():
    assert plan((2, 3, 1), ("batch", "row", "column")) == FactorPlan((-2,), (-1,), (-2, -1), True)
    assert plan((2, 3, 1, 2), ("row", "batch", "col", "COLUMN")) == FactorPlan((-4,), (-2, -1), (-4, -2, -1), True)
    # what is in none of them is averaged over for sizes but not for moments
    assert plan((2, 3, 1), ("row", None, FactorDim.COLUMN)) == FactorPlan((-3,), (-1,), None, True)
    assert plan((2, 3, 1), ("batch", "none", "unfactorized")) == FactorPlan((), (), (-2, -1), True)


def test_a_rule_for_a_matrix_counts_only_with_a_batch():
    assert plan((5, 4), ("row", "column")) == plan((5, 4), "heuristic")
    assert plan((5, 4), ("batch", "row")) == FactorPlan((-1,), (), (-1,), True)
    assert plan((5,), ("batch",)) == FactorPlan((), (), (), True)


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


@pytest.mark.parametrize(
    ("axes", "message"), [(("embedding",), "did you mean 'embed'"), (("embed", "mlp", "relpos_buckets"), "beside rows")]
)
def test_logical_axes_that_cannot_be_meant_are_refused(axes, message):
    with pytest.raises(ValueError, match=message):
        rule_of_logical_axes("p", axes, standard_logical_factor_rules())
