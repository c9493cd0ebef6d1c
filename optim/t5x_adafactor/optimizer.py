"""Adafactor as in T5X: rules on names say what is factored, and all parameters share one count of steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optim.engine.chain import Chain
from optim.engine.options import did_you_mean
from optim.engine.param_batch import Group, Limits, ParamEntry, State
from optim.t5x_adafactor.factor_rules import HParamMap, rule_of_logical_axes, standard_logical_factor_rules
from optim.t5x_adafactor.group_rules import check_rules, parse_rules, plan_of
from optim.t5x_adafactor.transforms import MomentsByPlan, SkipNan
from optim.transforms.clipping import ClipByGlobalNorm, ClipByRms
from optim.transforms.factored import FACTOR_PLAN, FactorPlan, ParameterScale
from optim.transforms.learning_rate import AbsoluteDecay, LearningRate
from optim.transforms.momentum import Momentum

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
        maximize: ascend instead of descend.
        skip_nonfinite: see `Chain`.
        capturable: see `Chain`.

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
        dtype_momentum: torch.dtype | str | None = torch.float32,
        factor_map: NamedRules | str | None = None,
        logical_factor_rules: Mapping[str, Any] | None = None,
        weight_decay_rate_lr_exponent: float | None = None,
        global_norm_clip_threshold: float | None = None,
        max_parameter_scale: float | None = None,
        skip_nan_updates: bool = False,
        initial_step: int = 0,
        per_param_step: bool = False,
        *,
        maximize: bool = False,
        skip_nonfinite: bool = False,
        capturable: bool = False,
    ) -> None:
        weight = (decay_rate, epsilon1, step_offset, initial_step, per_param_step)
        rules = (factored, min_dim_size_to_factor, factor_map, logical_factor_rules)
        transforms = [
            SkipNan(skip_nan_updates),
            ClipByGlobalNorm(global_norm_clip_threshold),
            MomentsByPlan(*weight, *rules),
            ClipByRms(clipping_threshold, option="clipping_threshold"),
            ParameterScale(multiply_by_parameter_scale, epsilon2, max_parameter_scale),
            LearningRate(),
            # after the learning rate, as in T5X: a changed lr acts with the momentum's delay
            Momentum(beta1, dtype_momentum),
            AbsoluteDecay(weight_decay_rate, weight_decay_rate_lr_exponent),
        ]
        super().__init__(
            params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite, capturable=capturable
        )

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
            by_plan[plan_of(entry.name, entry.param.shape, group)].append(entry)
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
