"""Parameter groups from rules: regular expressions on parameter names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from optim.combined import Combined
from optim.engine.blocks import DEFAULTS, spec_of
from optim.engine.chain import Chain
from optim.engine.distributed import sees_matrices
from optim.engine.options import check_names, check_options, check_range, compiled, did_you_mean, plain
from optim.matrix_blocks import matrix_blocks

NamedParameters = Iterable[tuple[str, nn.Parameter]]
Factory = Callable[[Any], Optimizer]
T5X_DECAY = ("weight_decay_rate", "weight_decay_rate_lr_exponent")  # None is off
RULE_KEYS = ("pattern", "lr_scale", "optimizer")  # the others are hyper-parameters


@dataclass(frozen=True)
class Rule:
    """Options for the parameters in whose name a regular expression is found."""

    pattern: re.Pattern[str]
    lr_scale: float
    options: dict[str, Any]
    optimizer: Factory | None
    blocks: dict[str, Any]


def grouped(
    optimizer: Factory, rules: Sequence[Mapping[str, Any]] = (), blocks: str = "none"
) -> Callable[[NamedParameters | nn.Module], Optimizer]:
    """Return a function that builds the optimizer with one parameter group per rule.

    Rules are tried in order; the first whose pattern `re.search` finds in a parameter's name decides. Without rules
    there is one group. Parameters that need no gradient are left out.

    Args:
        optimizer: makes an optimizer of parameters or groups, such as ``functools.partial(Eve, lr=3e-3)``.
        rules: mappings with ``pattern``, optionally ``optimizer``, another one for these parameters, and ``lr_scale``,
            which multiplies the optimizer's lr, and any of the optimizer's hyper-parameters, which replace its own.
            ``weight_decay=0`` is allowed for an optimizer that has none, or calls it otherwise (T5X's Adafactor).
            Rules with the same object as ``optimizer`` share one optimizer; with more than one optimizer the result is
            a `Combined`. ``blocks``, ``heads`` and ``dims`` say which matrices these parameters are.
        blocks: "auto": rules that see matrices treat parameters as `matrix_blocks` says, unless a rule says otherwise;
            "none": as they are stored.

    Returns:
        A function of a model, or of (name, parameter) pairs that have it as their attribute ``model``, or, without
        "auto", of any such pairs; its groups carry ``param_names``.

    Raises:
        ValueError: a rule is malformed. The function raises it if no parameter needs a gradient, a rule names an
            unknown hyper-parameter, a rule decides about no parameter, or a parameter has no rule.

    Examples:
        >>> from functools import partial
        >>> rules = [{"pattern": "bias$", "weight_decay": 0.0}, {"pattern": ".*", "lr_scale": 0.5}]
        >>> make = optim.grouped(partial(optim.AdamW, lr=1e-3), rules)
        >>> optimizer = make(nn.Linear(3, 2).named_parameters())
        >>> [(group["param_names"], group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
        [(['bias'], 0.001, 0.0), (['weight'], 0.0005, 0.01)]
    """
    check_options({"blocks": blocks}, {"blocks": ["auto", "none"]})
    return partial(_build, optimizer, [_parse(i, rule) for i, rule in enumerate(rules)], blocks)


def _parse(place: int, rule: Mapping[str, Any]) -> Rule:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("pattern"), str):
        raise ValueError(f"parameter rule {place} must be a mapping with a string 'pattern', given {rule!r}")
    try:
        pattern = compiled(rule["pattern"])
    except ValueError as error:
        raise ValueError(f"parameter rule {place}: {error}") from error
    scale = plain(rule.get("lr_scale", 1.0))
    check_range(f"lr_scale of parameter rule {rule['pattern']!r}", scale, "[0, inf)")
    if "lr_scale" in rule and "lr" in rule:
        raise ValueError(f"parameter rule {rule['pattern']!r} has both lr and lr_scale; keep one")
    if "optimizer" in rule and not callable(rule["optimizer"]):
        raise ValueError(
            f"parameter rule {rule['pattern']!r}: optimizer must make an optimizer of parameters, such as "
            f"partial(Adafactor, lr=1e-2), given {rule['optimizer']!r}"
        )
    options = {key: _plain(rule[key]) for key in rule if key not in (*RULE_KEYS, *DEFAULTS)}
    given = {key: _plain(rule[key]) for key in DEFAULTS if key in rule}
    where = f"parameter rule {rule['pattern']!r}"
    blocks = spec_of({**given, "why": f"the rule {rule['pattern']!r}"}, where) if given else {}
    return Rule(pattern, scale, options, rule.get("optimizer"), blocks)


def _plain(value: Any) -> Any:
    """Turn a config's list type into a tuple, and numpy's numbers into Python's: checkpoints hold plain values only."""
    value = plain(value)
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _build(
    optimizer: Factory, rules: Sequence[Rule], blocks: str, named_parameters: NamedParameters | nn.Module
) -> Optimizer:
    model: Any = getattr(named_parameters, "model", None)
    if isinstance(named_parameters, nn.Module):
        model, named_parameters = named_parameters, named_parameters.named_parameters()
    if blocks == "auto" and model is None:
        raise ValueError("blocks='auto' asks the modules of a model; give the model instead of its parameters")
    named = list(named_parameters)
    trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if not trainable:
        raise ValueError(f"no parameter to optimize: none of {len(named)} requires a gradient")
    if not rules and blocks == "none":
        return optimizer(trainable)
    rules = rules or [_parse(0, {"pattern": ""})]
    whole = model.named_parameters() if model is not None else named
    shapes = {name: {} if is_lazy(param) else {"shape": tuple(param.shape)} for name, param in whole}
    known = matrix_blocks(model) if blocks == "auto" else {}
    owners = _assign(rules, [name for name, _ in named])
    _refuse_uncovered([name for name, _ in trainable], owners)
    # by optimizer, in the order in which rules name it first: checkpoints depend on the order of groups
    members: dict[Factory, list[tuple[Rule, list[tuple[str, nn.Parameter]]]]] = {}
    for place, rule in enumerate(rules):
        if params := [(name, parameter) for name, parameter in trainable if owners[name] == place]:
            members.setdefault(rule.optimizer or optimizer, []).append((rule, params))
    optimizers = [_member(factory, groups, shapes, known) for factory, groups in members.items()]
    return optimizers[0] if len(optimizers) == 1 else Combined(optimizers)


def _member(
    factory: Factory,
    groups: Sequence[tuple[Rule, list[tuple[str, nn.Parameter]]]],
    shapes: Mapping[str, dict[str, Any]],
    known: Mapping[str, dict[str, Any]],
) -> Optimizer:
    """Return an optimizer with a group for each rule, whose blocks are the rule's, or those that are known."""
    built = factory([{"params": params} for _, params in groups])
    for rule, _ in () if isinstance(built, Chain) else groups:
        if rule.blocks:
            raise ValueError(f"parameter rule {rule.pattern.pattern!r}: {type(built).__name__} knows no blocks")
    if isinstance(built, Combined):  # of several by itself, as torch_muon is
        return factory([{"params": params, **_options(rule, built.defaults)} for rule, params in groups])
    asks = isinstance(built, Chain) and built.takes_blocks and sees_matrices(built.transforms, built.param_groups[0])
    # only an optimizer knows its hyper-parameters, and the lr to scale: torch ignores unknown keys of a group
    built.param_groups.clear()
    for rule, params in groups:
        options = _options(rule, built.defaults)
        said = {name: {**rule.blocks, **shapes[name]} for name, _ in params} if rule.blocks else known
        if own := {name: said[name] for name, _ in params if name in said and (rule.blocks or asks)}:
            options["blocks"] = own
        try:
            built.add_param_group({"params": params, **options})
        except ValueError as error:
            raise ValueError(f"parameter rule {rule.pattern.pattern!r}: {error}") from error
    return built


def _options(rule: Rule, defaults: Mapping[str, Any]) -> dict[str, Any]:
    where = f"parameter rule {rule.pattern.pattern!r}"
    options = dict(rule.options)
    if options.get("weight_decay") == 0 and "weight_decay" not in defaults:
        # an optimizer that never decays does what the rule asks
        del options["weight_decay"]
        options |= {name: None for name in T5X_DECAY if name in defaults}
    check_names(options, {*RULE_KEYS, *defaults}, where)
    if rule.lr_scale == 1.0:
        return options
    if defaults.get("lr") is None:
        raise ValueError(f"{where}: lr_scale needs an optimizer with an lr; set its lr or remove lr_scale")
    return {**options, "lr": rule.lr_scale * defaults["lr"]}


def _assign(rules: Sequence[Rule], names: Sequence[str]) -> dict[str, int]:
    """Return the index of the first rule that matches, by name; refuse a rule that decides about no parameter."""
    owners: dict[str, int] = {}
    for place, rule in enumerate(rules):
        matched = [name for name in names if rule.pattern.search(name)]
        taken = [name for name in matched if name in owners]
        pattern = rule.pattern.pattern
        if not matched:
            raise ValueError(
                f"parameter rule {pattern!r} matches no parameter{did_you_mean(pattern, names)}; "
                f"names look like {', '.join(names[:3])}. Correct or remove the rule."
            )
        # a last rule that asks for nothing covers the rest, and the rest may be empty
        asks = rule.options or rule.lr_scale != 1.0 or rule.optimizer is not None
        covers_rest = not asks and place == len(rules) - 1 and len(matched) == len(names)
        if len(matched) == len(taken) and not covers_rest:
            raise ValueError(
                f"parameter rule {pattern!r} decides about no parameter: earlier rules take all it matches, "
                f"{rules[owners[taken[0]]].pattern.pattern!r} takes {taken[0]}. Move it up or remove it."
            )
        owners.update({name: place for name in matched if name not in owners})
    return owners


def _refuse_uncovered(names: Sequence[str], owners: Mapping[str, int]) -> None:
    if left := [name for name in names if name not in owners]:
        raise ValueError(
            f"no parameter rule matches {', '.join(left[:3])} ({len(left)} of {len(names)} parameters); "
            "end the rules with pattern '.*' to cover the rest"
        )
