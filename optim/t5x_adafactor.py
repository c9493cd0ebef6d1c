"""Adafactor as in T5X: rules on names say what is factored, and all parameters share one count of steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import SWITCH, WHOLE, compiled, did_you_mean
from optim.engine.param_batch import Group, Limits, ParamBatch, ParamEntry, State, Update, at_least
from optim.engine.transform import Transform
from optim.transforms.clipping import ClipByGlobalNorm, ClipByRms
from optim.transforms.factored import FACTOR_PLAN, Axes, FactorPlan, ParameterScale, moment_state, over_moment
from optim.transforms.learning_rate import AbsoluteDecay, LearningRate
from optim.transforms.momentum import Momentum

Rule = tuple[str, ...] | str | None
"""One value of `FactorDim` per axis, `HEURISTIC`, `MATRICES`, or None for a second moment per element."""
HEURISTIC = "heuristic"
"""The two axes of a matrix, if both are large enough; more axes are refused."""
MATRICES = "matrices"
"""`HEURISTIC` up to two axes, None for more."""


class FactorDim(Enum):
    """What an axis is for a factored second moment.

    Examples:
        >>> rule = (optim.FactorDim.BATCH, optim.FactorDim.ROW, optim.FactorDim.COLUMN)
        >>> stacked = nn.Parameter(torch.ones(12, 64, 32))
        >>> optimizer = optim.T5XAdafactor([("layers.weight", stacked)], lr=0.01, factor_map=[("layers", rule)])
        >>> optimizer.param_groups[0]["factor_map"]
        (('layers', ('batch', 'row', 'column')),)
    """

    NONE = "none"
    """Kept in both factors, like a batch axis, but updates are clipped and scaled across it."""
    BATCH = "batch"
    """Each of its slices is treated as a parameter."""
    ROW = "row"
    COLUMN = "column"


BATCH, ROW, COLUMN, NONE = (dim.value for dim in (FactorDim.BATCH, FactorDim.ROW, FactorDim.COLUMN, FactorDim.NONE))
# plain strings in groups: weights_only loading refuses an enum
_NAMES = {dim.value: dim.value for dim in FactorDim} | {"col": COLUMN, "unfactorized": NONE}


class HParamMap:
    """Values by the first regular expression that is found in a parameter's name.

    A pattern is searched for in the name as torch has it, ``encoder.0.weight``, and as a path, ``encoder/0/weight``.

    Args:
        rules: pairs of a regular expression and a value; or another map.

    Raises:
        ValueError: the rules are not such pairs, or an expression is malformed. Looking up a name in which no
            expression is found raises KeyError.

    Reference:
        t5x.adafactor.HParamMap.
        Differs: searches torch's names too.

    Examples:
        >>> scaled = optim.HParamMap([("bias$", False), ("encoder/.*", True)])
        >>> scaled["encoder.0.bias"], scaled["encoder.0.weight"], "decoder.weight" in scaled
        (False, True, False)
    """

    def __init__(self, rules: HParamMap | Iterable[Sequence[Any]]) -> None:
        pairs = rules.rules if isinstance(rules, HParamMap) else rules
        self._compiled = [_compiled(pair) for pair in pairs]

    @property
    def rules(self) -> tuple[tuple[str, Any], ...]:
        """The pairs, as plain values."""
        return tuple((pattern.pattern, value) for pattern, value in self._compiled)

    def __contains__(self, name: str) -> bool:
        """Return whether a name has a value."""
        return bool(self._values(name))

    def __getitem__(self, name: str) -> Any:
        """Return the value for a name."""
        if values := self._values(name):
            return values[0]
        raise KeyError(name)

    def _values(self, name: str) -> list[Any]:
        # rules written for T5X have slashes, where a pattern's dot would match any character
        path = name.replace(".", "/")
        return [value for pattern, value in self._compiled if pattern.search(path) or pattern.search(name)]


def _compiled(pair: Any) -> tuple[re.Pattern[str], Any]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ValueError(f"a rule must be a pair of a regular expression and a value, given {pair!r}")
    return compiled(pair[0]), pair[1]


def standard_logical_factor_rules() -> dict[str, FactorDim]:
    """Return what the usual logical axes of a transformer are for a factored second moment.

    Reference:
        t5x.adafactor.standard_logical_factor_rules.

    Examples:
        >>> rules = optim.standard_logical_factor_rules()
        >>> rules["embed"], rules["mlp"]
        (<FactorDim.ROW: 'row'>, <FactorDim.COLUMN: 'column'>)
    """
    attention = ("heads", "kv", "joined_kv", "multiquery_heads", "kv_fused")
    feed_forward = ("mlp", "mlp_activations", "q_wi_fused", "o_wo_fused")
    rules = dict.fromkeys(("vocab", *attention, *feed_forward), FactorDim.COLUMN)
    rules |= dict.fromkeys(("layers", "stack"), FactorDim.BATCH)
    rules |= dict.fromkeys(("relpos_buckets", "layer_norm_scale"), FactorDim.NONE)
    return rules | {"embed": FactorDim.ROW}


NamedRules = HParamMap | Sequence[tuple[str, Any]]


class T5XAdafactor(Chain):
    """Adafactor whose rules on names say which axes are rows, columns or a batch that is clipped and scaled slice by
    slice.

    T5X's form. In order: `SkipNan` remembers old values, `ClipByGlobalNorm` limits the gradients, `MomentsByPlan`
    divides by their averaged size, `ClipByRms` limits the update, `ParameterScale` and `LearningRate` give it its
    length, `Momentum` averages it, and `AbsoluteDecay` shrinks the parameter. Options that are None leave their
    transform out.

    All parameters share one count of steps: one whose gradients begin late starts with averages of zero and a weight
    below 1, unless ``per_param_step`` counts for each parameter.

    What is factored: a rule is "heuristic", "matrices", None (nothing), or what each axis is: "row", "column" or "col",
    "batch", "none", or a `FactorDim`. The heuristic factors matrices whose sizes both reach ``min_dim_size_to_factor``,
    leaves vectors and scalars, and refuses more axes; "matrices" leaves those too. A rule by axes holds for all sizes,
    but for at most two axes without a batch the heuristic decides. Rules are fixed once a group is made. Axes that a
    rule calls a batch split a parameter into slices, each clipped and scaled by itself.

    Use: if parameters are stacked, or state must be small; with `WarmupInverseSquareRoot`.

    State: 0.20 bytes per float32 parameter with the default ``min_dim_size_to_factor=128``, 0.09 with 32; with
    ``beta1`` 4 more, or 2 in bfloat16: r and c (``row``, ``col``), or v (``exp_avg_sq``); m (``exp_avg``) with beta1.

    Args:
        params: parameters, (name, parameter) pairs, or groups; rules by name need names.
        lr: learning rate; T5X's ``learning_rate``.
        factored: False keeps every second moment per element.
        multiply_by_parameter_scale: make steps relative to the parameter's size; or pairs of a regular expression and
            True or False.
        beta1: decay of the momentum, in [0, 1); None for none.
        decay_rate: at least 0.
        step_offset: taken off the count, such as the step at which fine-tuning began; until then the count is 1.
        clipping_threshold: RMS above which an update is scaled down; None for no limit.
        weight_decay_rate: fraction taken off per step, not times lr; None for none.
        min_dim_size_to_factor: see above.
        epsilon1: added to g².
        epsilon2: floor of the parameter's size.
        dtype_momentum: dtype of m, or its name; None for the dtype of the other statistics. In another dtype than the
            update's, such as bfloat16, beta1 and beta1 m are rounded to it, as JAX does: 0.9 acts as 0.8984.
        factor_map: one rule for all, or pairs of a regular expression and a rule. The first expression that is found
            in a parameter's name, ``encoder.0.weight``, or in its path, ``encoder/0/weight``, decides. None for the
            heuristic.
        logical_factor_rules: what `set_param_axes` makes of names of axes, such as
            `standard_logical_factor_rules`; parameters of more than two axes then wait for it.
        weight_decay_rate_lr_exponent: makes the decay follow a power of the current lr; a rate of None counts as 1.
        global_norm_clip_threshold: norm of all gradients together above which they are scaled down; None for no limit.
        max_parameter_scale: None for no limit.
        skip_nan_updates: keep old values where new ones are NaN; one NaN gradient stops a factored or clipped slice as
            a whole.
        initial_step: where the count begins, as if restored there; not read with ``per_param_step``.
        per_param_step: use the parameter's own step instead of the optimizer's count.
        cautious_weight_decay: see `shrink`.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, a rule is missing or does not fit, names are missing, or a
            parameter is not real floating point.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235; github.com/google-research/t5x/blob/main/t5x/adafactor.py
        (at 640f435). Also the defaults.
        Differs: a parameter without gradient is skipped, also in the global norm; rules are checked at construction;
        the count is at least 1; a weight_decay_rate of 0 with an exponent is refused, where the reference reads 1;
        ``initial_step`` and ``per_param_step`` are new, and so is the rule "matrices".

    Examples:
        >>> stacked = nn.Parameter(torch.ones(12, 64, 32))  # twelve layers
        >>> rules = [("layers", ("batch", "row", "col"))]
        >>> optimizer = optim.T5XAdafactor([("layers.weight", stacked)], lr=0.01, factor_map=rules)
        >>> stacked.grad = torch.randn(12, 64, 32)
        >>> optimizer.step()
        >>> [tuple(optimizer.state[stacked][name].shape) for name in ("row", "col")]
        [(12, 64, 1), (12, 1, 32)]
    """

    takes_blocks = False  # its rules say what each axis is

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        factored: bool = True,
        multiply_by_parameter_scale: bool | NamedRules = True,
        beta1: float | None = None,
        decay_rate: float = 0.8,
        step_offset: int = 0,
        clipping_threshold: float | None = 1.0,
        weight_decay_rate: float | None = None,
        min_dim_size_to_factor: int = 128,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        dtype_momentum: torch.dtype | str | None = "float32",
        factor_map: NamedRules | str | None = None,
        logical_factor_rules: Mapping[str, Any] | None = None,
        weight_decay_rate_lr_exponent: float | None = None,
        global_norm_clip_threshold: float | None = None,
        max_parameter_scale: float | None = None,
        skip_nan_updates: bool = False,
        initial_step: int = 0,
        per_param_step: bool = False,
        *,
        cautious_weight_decay: bool = False,
        **common: Unpack[ChainOptions],
    ) -> None:
        own = locals()
        transforms = [
            SkipNan(skip_nan_updates),
            ClipByGlobalNorm(global_norm_clip_threshold),
            MomentsByPlan.of(own),
            ClipByRms(clipping_threshold, option="clipping_threshold"),
            ParameterScale.of(own),
            LearningRate(),
            # after the learning rate, as in T5X: a changed lr acts with the momentum's delay
            Momentum(beta1, dtype_momentum),
            AbsoluteDecay.of(own),
        ]
        super().__init__(params, transforms, lr=lr, **common)

    def set_param_axes(self, axes: Mapping[str, Sequence[str]]) -> None:
        """Make rules from the names of axes; they replace ``factor_map``.

        ``logical_factor_rules``, or `standard_logical_factor_rules` if they are None, say what each axis is. If a
        parameter lacks rows or columns, nothing is factored, except that the heuristic decides about at most two axes
        without a batch.

        Args:
            axes: names of the axes, such as ``("layers", "embed", "mlp")``, for every parameter, by its name or path.

        Raises:
            ValueError: parameters have no names or have been stepped, a parameter or an axis is unknown or missing, or
                a rule does not fit; nothing was changed.

        Reference:
            t5x.adafactor.Adafactor.set_param_axes.
            Differs: uses the standard rules if it is given none; the reference then does nothing.
        """
        params = [param for group in self.param_groups for param in group["params"]]
        if any(self.state.get(param, {}).get("step", 0) > 0 for param in params):
            raise ValueError("set_param_axes comes too late: what is factored is fixed by the first step")
        by_name = {name.replace("/", "."): tuple(names) for name, names in axes.items()}
        param_names = [name for group in self.param_groups for name in group.get("param_names", ())]
        for name in by_name:
            if name not in param_names:
                raise ValueError(f"set_param_axes: there is no parameter {name!r}{did_you_mean(name, param_names)}")
        # checked on copies of the groups: an error leaves the optimizer as it was
        ruled = [{**group, "factor_map": _rules_of_axes(group, by_name)} for group in self.param_groups]
        for group in ruled:
            self._check_group(group)
        for group, new in zip(self.param_groups, ruled, strict=True):
            group["factor_map"] = new["factor_map"]
        # statistics that were made by the former rules, before any step, have other shapes
        for param in params:
            self.state.pop(param, None)

    def _check_group(self, group: Group) -> None:
        parse_rules(group)
        super()._check_group(group)
        check_rules(group)  # last, since it reads options that must have been checked

    def _fresh_state(self, name: str, param: Tensor, group: Group) -> State:
        plan = plan_of(name, param.shape, group)
        if plan is not None:
            return super()._fresh_state(name, param, {**group, FACTOR_PLAN: plan})
        if param.is_meta:
            return {}  # the engine tries the state of every new group; this parameter waits for `set_param_axes`
        check_rules(group)  # of a lazy parameter, which has its shape now
        raise ValueError(
            f"{name} has more than two axes, and logical_factor_rules wait for their names; call set_param_axes before "
            "the first step"
        )

    def _move(self, group: Group, entries: list[ParamEntry], limits: Limits | None) -> None:
        # only parameters with equal plans stack
        by_plan: dict[FactorPlan | None, list[ParamEntry]] = defaultdict(list)
        for entry in entries:
            by_plan[plan_of(entry.name, entry.shape, group)].append(entry)
        for plan, members in by_plan.items():
            super()._move({**group, FACTOR_PLAN: plan}, members, limits)


def _rules_of_axes(group: Group, axes: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, Any], ...]:
    if "param_names" not in group:
        raise ValueError("set_param_axes needs names: give the optimizer (name, parameter) pairs")
    if missing := [name for name in group["param_names"] if name not in axes]:
        raise ValueError(f"set_param_axes: no axes for {', '.join(missing[:3])} ({len(missing)} parameters)")
    table = group["logical_factor_rules"] or standard_logical_factor_rules()
    names = group["param_names"]
    # escaped: the dots of a name would match any character
    return tuple((f"^{re.escape(name)}$", rule_of_logical_axes(name, axes[name], table)) for name in names)


class MomentsByPlan(Transform):
    """Divides by the root of a second moment, factored into rows and columns as the parameter's `FactorPlan` says.

    The equations are those of `over_moment`. With i = 0, 1, … the optimizer's count of finished steps, and
    t = 1, 2, … the parameter's own step, the weight of the newest sample is

        τ = initial_step + i + 1,  or with per_param_step  t
        w = max(1, τ − step_offset)^−decay_rate

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``).

    Args:
        decay_rate: at least 0.
        epsilon1: added to g².
        step_offset: taken off τ.
        initial_step: not read with ``per_param_step``.
        per_param_step: count each parameter's own steps.
        factored: this and the following are not read here: the optimizer makes plans of them.
        min_dim_size_to_factor: see `optim.t5x_adafactor.make_plan`.
        factor_map: see `optim.t5x_adafactor.parse_factor_map`.
        logical_factor_rules: see `optim.t5x_adafactor.parse_logical_rules`.
        name: see `Transform`.
    """

    decay_rate: Annotated[float, "[0, inf)"] = 0.8
    epsilon1: Annotated[float, "[0, inf)"] = 1e-30
    step_offset: Annotated[int, "[0, inf)" + WHOLE] = 0
    initial_step: Annotated[int, "[0, inf)" + WHOLE] = 0
    per_param_step: Annotated[bool, SWITCH] = False
    factored: Annotated[bool, SWITCH] = True
    min_dim_size_to_factor: Annotated[int, "[0, inf)" + WHOLE] = 128
    factor_map: Any = None
    logical_factor_rules: Mapping[str, Any] | None = None
    foreach = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero (*shape): ``exp_avg_sq``, or ``row`` with size 1 on columns and ``col`` on rows."""
        plan = group[FACTOR_PLAN]
        return moment_state(param, group, plan.rows, plan.cols)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update over the root of its averaged square."""
        group, plan = batch.group, batch.group[FACTOR_PLAN]
        # T5X counts for the whole optimizer: a parameter whose gradients begin late starts with w < 1
        step = batch.step if group["per_param_step"] else group["initial_step"] + group["shared_state"]["steps"] + 1
        weight = at_least(1.0 * step - group["step_offset"], 1.0) ** -group["decay_rate"]
        return over_moment(update.value(), batch.state, plan.rows, plan.cols, weight, group["epsilon1"])


class SkipNan(Transform):
    """Keeps the old value of every element of a parameter or statistic whose new value is NaN; must come first.

    Costs a copy of the parameter and its statistics, one parameter at a time. Nothing waits for the device.

    Args:
        skip_nan_updates: False does nothing.
        name: see `Transform`.
    """

    skip_nan_updates: Annotated[bool, SWITCH] = True
    acts_after_step: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # between `__call__` and `after_step` of one batch only; not a statistic, since checkpoints must not hold it
        self.before: dict[int, list[Tensor]] = {}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Copy the parameters and statistics."""
        if batch.group["skip_nan_updates"]:
            # later transforms write in place: without a copy the old values would be lost
            self.before[id(batch.param)] = [x.clone() for x in _tensors(batch)]
        return update

    def after_step(self, batch: ParamBatch) -> None:
        """Put back what has become NaN."""
        if batch.group["skip_nan_updates"]:
            for x, old in zip(_tensors(batch), self.before.pop(id(batch.param)), strict=True):
                # where and not `if x.isnan().any()`, which would wait for the device
                x.copy_(torch.where(x.isnan(), old, x))


def _tensors(batch: ParamBatch) -> list[Tensor]:
    return [batch.param, *(x for x in batch.state.values() if isinstance(x, Tensor))]


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


def parse_dim(value: Any) -> str:
    """Return what an axis is, given a `FactorDim`, its name or an alias (``col``, ``unfactorized``)."""
    name = value.value if isinstance(value, FactorDim) else str(value).lower()
    if name not in _NAMES:
        raise ValueError(f"an axis must be {', '.join(map(repr, _NAMES))} or a FactorDim, given {value!r}")
    return _NAMES[name]


def parse_rule(rule: Any) -> Rule:
    """Return a rule as plain values, which checkpoints can hold."""
    if rule is None or rule in (HEURISTIC, MATRICES):
        return rule
    if not isinstance(rule, Sequence) or isinstance(rule, str):
        raise ValueError(
            f"a rule of factor_map must be {HEURISTIC!r}, {MATRICES!r}, None, or a list of what each axis is, such as "
            f"('batch', 'row', 'column'), given {rule!r}"
        )
    return tuple(map(parse_dim, rule))


def parse_factor_map(value: Any) -> Any:
    """Return one rule for all, or pairs of an expression and a rule, as plain values."""
    if isinstance(value, HParamMap) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return tuple((pattern, parse_rule(rule)) for pattern, rule in HParamMap(value).rules)
    return parse_rule(value)


def parse_scale_map(value: Any) -> Any:
    """Return whether steps are relative to the parameter's size: one answer for all, or pairs, as plain values."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, HParamMap) and (not isinstance(value, Sequence) or isinstance(value, str)):
        raise ValueError(f"multiply_by_parameter_scale must be True or False, or pairs with them, given {value!r}")
    rules = HParamMap(value).rules
    for pattern, scaled in rules:
        if not isinstance(scaled, bool):
            raise ValueError(f"multiply_by_parameter_scale must be True or False for {pattern!r}, given {scaled!r}")
    return rules


def parse_logical_rules(value: Any) -> dict[str, str] | None:
    """Return what each logical axis is, as plain values."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"logical_factor_rules must map names of logical axes to what they are, given {value!r}")
    return {str(name): parse_dim(dim) for name, dim in value.items()}


def rule_of_logical_axes(name: str, axes: Sequence[str], table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the rule of a parameter whose axes have the given logical names.

    Without both rows and columns there is nothing to factor: rows or columns alone become ``none``.

    Raises:
        ValueError: an axis is unknown, or is "none" although others are rows and columns.
    """
    for axis in axes:
        if axis not in table:
            raise ValueError(f"{name}: no rule for the logical axis {axis!r}{did_you_mean(str(axis), table)}")
    rule = tuple(parse_dim(table[axis]) for axis in axes)
    if {ROW, COLUMN, NONE} <= set(rule):
        raise ValueError(
            f"{name}: logical axes {tuple(axes)} are {rule}; beside rows and columns every axis must be a batch, a row "
            "or a column"
        )
    return rule if {ROW, COLUMN} <= set(rule) else tuple(dim if dim == BATCH else NONE for dim in rule)
