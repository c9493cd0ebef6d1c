"""Transforms made of plain functions that declare their statistics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from optim.engine.options import Domain, did_you_mean
from optim.engine.param_batch import Group, ParamBatch, State, Update, state_dtype, zeros
from optim.engine.transform import Transform

COPIED = ("update", "gradient")
STARTS = ("zeros", "param", *COPIED)
Start = str | Callable[[Tensor], Tensor]
"""How a statistic starts: one of `STARTS`, or a function of the parameter that returns a tensor."""
Function = Callable[..., Update | Tensor]


class FunctionTransform(Transform):
    """What `transform` makes of a function; each has a subclass of its own, so that it can be copied and pickled.

    Args:
        name: see `Transform`.
        options: the function's keyword-only arguments.

    Raises:
        TypeError: an argument is unknown, or one without default is missing.
    """

    function: ClassVar[Function]
    state: ClassVar[Mapping[str, Start]]

    def __init__(self, *, name: str = "", **options: Any) -> None:
        owner, declared = type(self).__name__, inspect.signature(self.function).parameters.values()
        known = {argument.name: argument.default for argument in declared if argument.kind is argument.KEYWORD_ONLY}
        if unknown := sorted(options.keys() - known.keys()):
            raise TypeError(f"{owner} has no option {unknown[0]!r}{did_you_mean(unknown[0], known)}; it has {[*known]}")
        values = known | options
        if missing := [key for key, value in values.items() if value is inspect.Parameter.empty]:
            raise TypeError(f"{owner} needs a value of {', '.join(missing)}, as in {owner}({missing[0]}=...)")
        super().__init__(name=name, **values)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the statistics, (*shape) unless made by a function; the first step copies update or gradient."""
        return {key: _start(start, param, group) for key, start in self.state.items()}

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return what the function makes of the update."""
        value = update.value()
        if any(start in COPIED for start in self.state.values()):
            self._copy_at_first(value, batch)
        return self.function(value, batch, **{key: batch.group[key] for key in self.options})

    def _copy_at_first(self, update: Tensor, batch: ParamBatch) -> None:
        for key, start in self.state.items():
            if start in COPIED:
                new, kept = update if start == "update" else batch.grad, batch.state[key]
                if isinstance(batch.step, Tensor):
                    kept.copy_(torch.where(batch.step == 1, new, kept))
                elif batch.step == 1:
                    kept.copy_(new)


def _start(start: Start, param: Tensor, group: Group) -> Tensor:
    if callable(start):
        return start(param)
    if start == "param":
        return torch.empty_like(param, dtype=state_dtype(param)).copy_(param.detach())
    return zeros(param, group)


Decorator = Callable[[Function], type[FunctionTransform]]


@overload
def transform(function: Function, /) -> type[FunctionTransform]: ...
@overload
def transform(
    *, state: Mapping[str, Start] = ..., allowed: Mapping[str, Domain] = ..., stacks: bool = ..., shardable: bool = ...
) -> Decorator: ...
def transform(
    function: Function | None = None,
    /,
    *,
    state: Mapping[str, Start] | None = None,
    allowed: Mapping[str, Domain] | None = None,
    stacks: bool = True,
    shardable: bool = False,
) -> type[FunctionTransform] | Decorator:
    """Turn a function into a `Transform`; a decorator, with or without arguments.

    The function gets the update as a tensor, which it must not modify, a `ParamBatch`, and its keyword-only arguments,
    which are options in the groups. It returns the new update, or raises `SkipUpdate`.

    Args:
        function: ``(update, batch, *, option=default, ...) -> update``.
        state: the statistics that ``batch.state`` holds, by name, and how each starts: ``"zeros"``; a copy of the
            ``"param"``; a copy of the ``"update"`` or the ``"gradient"`` of the first step; or a function of the
            parameter. The latter is also called with a parameter on the meta device, which has no values.
        allowed: what an option may be, as in `optim.engine.options.check_options`; others are not checked.
        stacks: False to call the function for every parameter alone, never for a stack.
        shardable: whether it may get a part of a parameter; see `Transform`.

    Raises:
        ValueError: a statistic starts in an unknown way.

    Examples:
        >>> @optim.transform(state={"total": "zeros"}, allowed={"decay": "[0, 1]"})
        ... def fading_sum(update, batch, *, decay=0.9):
        ...     return batch.state["total"].mul_(decay).add_(update)
        >>> optimizer = optim.chain(fading_sum(decay=0.5), lr=0.1)([nn.Parameter(torch.ones(2))])
        >>> optimizer.param_groups[0]["decay"]
        0.5
    """
    state = dict(state or {})
    for key, start in state.items():
        if not callable(start) and start not in STARTS:
            wanted = ", ".join(map(repr, STARTS))
            raise ValueError(f"statistic {key!r} must start as {wanted} or by a function, given {start!r}")

    def declared(function: Function) -> type[FunctionTransform]:
        """Return the class of transforms that call the function."""
        body = {"function": staticmethod(function), "state": state, "allowed": dict(allowed or {})}
        body |= {"stacks": stacks, "shardable": shardable}
        # under the function's own name, where pickle then finds the class
        names = {key: getattr(function, key) for key in ("__doc__", "__module__", "__qualname__")}
        return type(function.__name__, (FunctionTransform,), {**body, **names})

    return declared if function is None else declared(function)
