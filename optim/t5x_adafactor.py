"""Adafactor as T5X knows it: rules on names say what is factored, and one count of steps is for all parameters."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optim.batch import Group, State
from optim.chain import Chain
from optim.factor_plan import Plan, check_rules, parse_rules, plan_of
from optim.factor_rules import HParamMap, rule_of_logical_axes, standard_logical_factor_rules
from optim.options import did_you_mean
from optim.transforms.absolute_decay import AbsoluteDecay
from optim.transforms.clip_by_global_norm import ClipByGlobalNorm
from optim.transforms.clip_slices import ClipSlices
from optim.transforms.factored_by_plan import FactoredByPlan
from optim.transforms.learning_rate import LearningRate
from optim.transforms.parameter_scale import ParameterScale
from optim.transforms.skip_nan import SkipNan
from optim.transforms.typed_momentum import TypedMomentum, name_of_type

NamedRules = HParamMap | Sequence[tuple[str, Any]]


class T5XAdafactor(Chain):
    """Adafactor whose rules on parameter names say which axes are factored, and whose clipping goes slice by slice.

    With i = 0, 1, … the optimizer's count of finished steps, gradient g, and E the mean over all axes but those that
    a rule calls a batch:

        g ← g · min(1, global_norm_clip_threshold/‖all gradients‖₂)                                 `ClipByGlobalNorm`
        τ = max(1, initial_step + i + 1 − step_offset),   w = τ^−decay_rate,   s = g² + epsilon1    `FactoredByPlan`
        factored:  r ← (1 − w) r + w (mean of s over columns),   c ← (1 − w) c + w (mean of s over rows)
                   u = g ⊙ (r / mean of r over rows)^-½ ⊙ c^-½
        else:      v ← (1 − w) v + w s,   u = g v^-½
        u ← u / max(1, √E[u²]/clipping_threshold)                                                   `ClipSlices`
        u ← min(max(√E[p²], epsilon2), max_parameter_scale) · u                                     `ParameterScale`
        u ← lr · u                                                                                  `LearningRate`
        u ← beta1 m + (1 − beta1) u,   m ← u                                                        `TypedMomentum`
        p ← (1 − d) p − u                                                                           `AbsoluteDecay`
        d = weight_decay_rate,  or with an exponent  weight_decay_rate · lr^weight_decay_rate_lr_exponent
        where new p, r, c, v or m are NaN, the old ones stay, with skip_nan_updates                 `SkipNan`

    Options that are None are left out. The count i is one for all: a parameter whose gradients begin late starts with
    averages of zero and w < 1, unless ``per_param_step`` counts for each parameter.

    What is factored: a rule is "heuristic", "matrices", None (nothing), or what each axis is: "row", "column" or "col",
    "batch", "none", or a `FactorDim`. The heuristic factors matrices whose sizes both reach
    ``min_dim_size_to_factor``, leaves vectors and scalars, and refuses more axes; "matrices" leaves those too. A rule
    by axes is obeyed whatever the sizes, but for at most two axes without a batch the heuristic decides. Rules are
    fixed once a group is made.

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``); m (``exp_avg``) with beta1.

    Args:
        params: parameters, (name, parameter) pairs, or groups; rules by name need names.
        lr: learning rate; T5X's ``learning_rate``.
        factored: False keeps every second moment per element.
        multiply_by_parameter_scale: make steps relative to the parameter's size; or pairs of a regular expression and
            True or False.
        beta1: decay of the momentum, in [0, 1); None for none.
        decay_rate: at least 0.
        step_offset: taken off the count, such as the step at which fine-tuning began; before it τ is 1.
        clipping_threshold: RMS above which an update is scaled down; None for no limit.
        weight_decay_rate: fraction taken off per step, not times lr; None for none.
        min_dim_size_to_factor: see above.
        epsilon1: added to g².
        epsilon2: floor of the parameter's size.
        dtype_momentum: type of m, as torch's or by name; None for the type of the other statistics. In another type
            than the update's, such as bfloat16, beta1 and beta1 m are rounded to it, as JAX does: 0.9 acts as 0.8984.
        factor_map: one rule for all, or pairs of a regular expression and a rule. The first that is found in a
            parameter's name, ``encoder.0.weight``, or in its path, ``encoder/0/weight``, decides. None for the
            heuristic.
        logical_factor_rules: what `set_param_axes` makes of names of axes, such as
            `standard_logical_factor_rules`; parameters of more than two axes then wait for it.
        weight_decay_rate_lr_exponent: makes the decay follow a power of the current lr; a rate of None counts as 1.
        global_norm_clip_threshold: norm of all gradients together above which they are scaled down; None for no limit.
        max_parameter_scale: None for no limit.
        skip_nan_updates: see above; one NaN gradient stops a factored or clipped slice as a whole.
        initial_step: what the count begins at, as if restored there; not read with ``per_param_step``.
        per_param_step: use the parameter's own step for initial_step + i + 1.
        maximize: ascend instead of descend.
        skip_nonfinite: see `Chain`.

    Raises:
        ValueError: an option is unknown or out of range, a rule is missing or does not fit, names are missing, or a
            parameter is not real floating point.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235; t5x/adafactor.py of google-research/t5x at 640f435.
        Differs: a parameter without gradient is skipped, also in the global norm; rules are checked at construction;
        τ is at least 1; a weight_decay_rate of 0 with an exponent is refused, where the reference reads 1;
        ``initial_step`` and ``per_param_step`` are new, and so is the rule "matrices".
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
    ) -> None:
        self.plans: dict[tuple[int, str, torch.Size], Plan] = {}
        transforms = [
            SkipNan(skip_nan_updates),
            ClipByGlobalNorm(global_norm_clip_threshold),
            FactoredByPlan(
                decay_rate,
                epsilon1,
                step_offset,
                initial_step,
                per_param_step,
                factored,
                min_dim_size_to_factor,
                factor_map,
                logical_factor_rules,
            ),
            ClipSlices(clipping_threshold),
            ParameterScale(multiply_by_parameter_scale, epsilon2, max_parameter_scale),
            LearningRate(),
            TypedMomentum(beta1, dtype_momentum),
            AbsoluteDecay(weight_decay_rate, weight_decay_rate_lr_exponent),
        ]
        super().__init__(params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite)

    def __getstate__(self) -> dict[str, Any]:
        # plans are of groups by identity, which a copy does not share
        return {**super().__getstate__(), "plans": {}}

    def kind(self, name: str, param: Tensor, group: Group) -> Hashable:
        """Return the parameter's plan.

        Raises:
            ValueError: it waits for `set_param_axes`.
        """
        key = (id(group), name, param.shape)
        plan = self.plans.get(key)
        if plan is None:
            plan = plan_of(name, param.shape, group)
            if plan is None:
                raise ValueError(
                    f"{name} has more than two axes, and logical_factor_rules wait for their names; call "
                    "set_param_axes before the first step"
                )
            self.plans[key] = plan
        return plan

    def set_param_axes(self, axes: Mapping[str, Sequence[str]]) -> None:
        """Make rules of the names of axes, in place of ``factor_map``.

        ``logical_factor_rules``, or `standard_logical_factor_rules` where they are None, say what each axis is. Where a
        parameter has not both rows and columns, nothing is factored, except that the heuristic decides about at most
        two axes without a batch.

        Args:
            axes: names of the axes, such as ``("layers", "embed", "mlp")``, for every parameter, by its name or path.

        Raises:
            ValueError: parameters have no names or have been stepped, a parameter or an axis is unknown or missing, or
                a rule does not fit; nothing was changed.

        Reference:
            t5x.adafactor.Adafactor.set_param_axes.
            Differs: uses the standard rules where the reference, given none, does nothing.
        """
        params = [param for group in self.param_groups for param in group["params"]]
        if any(self.state.get(param, {}).get("step", 0) > 0 for param in params):
            raise ValueError("set_param_axes comes too late: what is factored is fixed by the first step")
        by_name = {name.replace("/", "."): tuple(given) for name, given in axes.items()}
        known = [name for group in self.param_groups for name in group.get("param_names", ())]
        for name in by_name:
            if name not in known:
                raise ValueError(f"set_param_axes: there is no parameter {name!r}{did_you_mean(name, known)}")
        ruled = [{**group, "factor_map": _rules_of_axes(group, by_name)} for group in self.param_groups]
        for group in ruled:
            self._check_group(group)
        for group, new in zip(self.param_groups, ruled, strict=True):
            group["factor_map"] = new["factor_map"]
        for param in params:
            self.state.pop(param, None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, with its rules; see `Chain.load_state_dict`."""
        super().load_state_dict(state_dict)
        self.plans.clear()

    def _check_group(self, group: Group) -> None:
        self.plans.clear()  # plans are found by the identity of groups, and this one may be new where another was
        parse_rules(group)
        group["dtype_momentum"] = name_of_type(group["dtype_momentum"])
        super()._check_group(group)
        check_rules(group)

    def _fresh_by_name(self, name: str, param: Tensor, group: Group) -> State:
        # a group is tried when it is made; parameters that wait for `set_param_axes` have no statistics to try
        return {} if plan_of(name, param.shape, group) is None else super()._fresh_by_name(name, param, group)


def _rules_of_axes(group: Group, axes: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, Any], ...]:
    if "param_names" not in group:
        raise ValueError("set_param_axes needs names: give the optimizer (name, parameter) pairs")
    if left := [name for name in group["param_names"] if name not in axes]:
        raise ValueError(f"set_param_axes: no axes for {', '.join(left[:3])} ({len(left)} parameters)")
    table = group["logical_factor_rules"] or standard_logical_factor_rules()
    names = group["param_names"]
    return tuple((f"^{re.escape(name)}$", rule_of_logical_axes(name, axes[name], table)) for name in names)
