"""Rules that say which axes of a parameter are rows, columns or a batch, and a search for them by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from optim.engine.options import compiled, did_you_mean

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
        return self._find(name) is not None

    def __getitem__(self, name: str) -> Any:
        """Return the value for a name."""
        pair = self._find(name)
        if pair is None:
            raise KeyError(name)
        return pair[1]

    def _find(self, name: str) -> tuple[re.Pattern[str], Any] | None:
        # rules written for T5X have slashes, where a pattern's dot would match any character
        path = name.replace(".", "/")
        matches = (pair for pair in self._compiled if pair[0].search(path) or pair[0].search(name))
        return next(matches, None)


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
