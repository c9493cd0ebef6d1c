"""Makes the plan of each parameter from the rules of its group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch.nn.parameter import is_lazy

from optim.engine.param_batch import Group
from optim.t5x_adafactor.factor_rules import (
    BATCH,
    COLUMN,
    HEURISTIC,
    MATRICES,
    ROW,
    HParamMap,
    Rule,
    parse_factor_map,
    parse_logical_rules,
    parse_scale_map,
)
from optim.transforms.factored import Axes, FactorPlan

# a group looks its rules up once per parameter, and compiling the expressions takes longer than searching
_map_of = lru_cache(maxsize=32)(HParamMap)


def parse_rules(group: Group) -> None:
    """Replace a group's rules by plain values, which checkpoints can hold.

    Raises:
        ValueError: a rule is malformed, or ``factored`` contradicts it.
    """
    group["factor_map"] = parse_factor_map(group["factor_map"])
    group["multiply_by_parameter_scale"] = parse_scale_map(group["multiply_by_parameter_scale"])
    group["logical_factor_rules"] = parse_logical_rules(group["logical_factor_rules"])
    if group["factored"] is False and group["factor_map"] is not None:
        raise ValueError("factored=False leaves nothing for a factor_map to decide; remove one of them")


def check_rules(group: Group) -> None:
    """Refuse a group in which a parameter's rule is missing or does not fit.

    Raises:
        ValueError: naming the parameters, and what to write.
    """
    for option in ("factor_map", "multiply_by_parameter_scale"):
        if isinstance(group[option], tuple):
            _check_found(option, group)
    # every parameter now, so that a missing rule is an error at construction and not at a late first gradient
    params = group["params"]
    names = group.get("param_names", [f"parameter {i}" for i in range(len(params))])
    shapes = {name: param.shape for name, param in zip(names, params, strict=True) if not is_lazy(param)}
    plans = {name: plan_of(name, shape, group) for name, shape in shapes.items()}
    if group["logical_factor_rules"] is None and (undecided := [name for name, plan in plans.items() if plan is None]):
        raise ValueError(
            f"{_some(undecided)} of {len(plans)} parameters have more than two axes, which the heuristic does not "
            f"decide about; write factor_map={MATRICES!r} to factor matrices alone, or pairs such as "
            "[('conv', None), ('stacked', ('batch', 'row', 'column')), ('.*', 'heuristic')]"
        )


def _check_found(option: str, group: Group) -> None:
    if "param_names" not in group:
        raise ValueError(
            f"{option} finds parameters by name, and these have none: give (name, parameter) pairs, such as "
            "model.named_parameters(), or one value for all"
        )
    # no default for the rest: a typing error in a pattern would go unnoticed
    rules = _map_of(group[option])
    if unmatched := [name for name in group["param_names"] if name not in rules]:
        raise ValueError(f"no pattern of {option} is found in {_some(unmatched)}; end it with '.*' to cover the rest")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def plan_of(name: str, shape: Sequence[int], group: Group) -> FactorPlan | None:
    """Return what a group's rules mean for a parameter; None if the heuristic cannot decide."""
    options = ("factored", "factor_map", "multiply_by_parameter_scale", "min_dim_size_to_factor")
    return _plan_of(name, tuple(shape), *(group[option] for option in options))


@lru_cache(maxsize=1 << 14)  # each step asks, and a search of all regular expressions takes longer than the step
def _plan_of(
    name: str, shape: tuple[int, ...], factored: bool, factor_map: Any, scale_map: Any, min_dim_size: int
) -> FactorPlan | None:
    rule = HEURISTIC if factored else None
    if factor_map is not None:
        rule = _value(factor_map, name)
    if rule == HEURISTIC and len(shape) > 2:
        return None
    return make_plan(name, shape, rule, min_dim_size, _value(scale_map, name))


def _value(option: Any, name: str) -> Any:
    return _map_of(option)[name] if isinstance(option, tuple) else option


def make_plan(name: str, shape: Sequence[int], rule: Rule, min_dim_size: int, scaled: bool) -> FactorPlan:
    """Return what a rule means for a shape.

    The smaller axis of a matrix becomes the rows, if it has at least ``min_dim_size`` elements. The same holds for a
    rule of up to two axes without a batch.

    Raises:
        ValueError: the rule is for another number of axes.
    """
    rank = len(shape)
    if rule is None or (rule == MATRICES and rank > 2):
        return FactorPlan((), (), None, scaled)
    if isinstance(rule, tuple) and len(rule) != rank:
        raise ValueError(f"{name} has {rank} axes, {tuple(shape)}, and its rule {len(rule)}: {rule}; give one for each")
    # as in T5X, which ignores rules of up to two axes without a batch
    if isinstance(rule, str) or (rank <= 2 and BATCH not in rule):
        return FactorPlan(*_axes_by_size(shape, min_dim_size), None, scaled)
    rows, cols, batch = (
        tuple(place - len(rule) for place, entry in enumerate(rule) if entry == dim) for dim in (ROW, COLUMN, BATCH)
    )
    # from the end, so that a stack's first axis needs no case of its own
    averaged = tuple(axis for axis in range(-rank, 0) if axis not in batch)
    return FactorPlan(rows, cols, averaged if batch else None, scaled)


def _axes_by_size(shape: Sequence[int], min_dim_size: int) -> tuple[Axes, Axes]:
    if len(shape) < 2 or min(shape) < min_dim_size:
        return (), ()
    # the ratio r / mean r is taken over the rows, and T5X sorts the axes by size
    return ((-2,), (-1,)) if shape[0] <= shape[1] else ((-1,), (-2,))
