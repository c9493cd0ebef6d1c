"""Transforms made of plain functions, and of other transforms in a row or side by side."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from optim.engine.options import Domain, check_options, did_you_mean
from optim.engine.param_batch import Group, ParamBatch, ParamEntry, State, Update, copied, zeros
from optim.engine.transform import Transform, applied, merged_options, merged_shared_state, merged_state

COPIED = ("update", "gradient")
STARTS = ("zeros", "param", *COPIED)
Start = str | Callable[[Tensor], Tensor]
"""How a statistic starts: one of `STARTS`, or a function of the parameter that returns a tensor."""
Function = Callable[..., Update | Tensor]
Decorator = Callable[[Function], "type[FunctionTransform]"]
Combine = Callable[[Sequence[Tensor], ParamBatch], Tensor]


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
        return copied(param)
    return zeros(param, group)


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


class Sequential(Transform):
    """Applies transforms in order, as a chain does; useful where one transform is expected, such as in `Branches`.

    In a chain itself, ``*transforms`` of a list does the same and lets torch's fused kernels do several at once.

    Args:
        transforms: at least one.
        name: prefix of the options and statistics of all of them, before their own.

    Raises:
        ValueError: there is no transform, or one has an eval mode, as `ScheduleFree` has.

    Examples:
        >>> from optim.transforms.learning_rate import LearningRate
        >>> from optim.transforms.momentum import Momentum
        >>> twice = optim.Sequential(Momentum(0.9, name="short"), Momentum(0.99, name="long"))
        >>> optimizer = optim.chain(twice, LearningRate(), lr=0.1)([nn.Parameter(torch.ones(2))])
        >>> optimizer.param_groups[0]["short/beta1"], optimizer.param_groups[0]["long/beta1"]
        (0.9, 0.99)
    """

    # the class does not know whether a member does
    acts_after_step: ClassVar = True

    def __init__(self, *transforms: Transform, name: str = "") -> None:
        for transform in transforms:
            if transform.has_eval_mode:
                raise ValueError(
                    f"{type(transform).__name__} averages parameters, and cannot be a part of another transform"
                )
        self.transforms = tuple(_renamed(transform, name) for transform in transforms)
        # the members' names are whole: this transform itself needs no prefix
        super().__init__(**merged_options(self.transforms))
        self.stacks = all(transform.stacks for transform in self.transforms)
        self.foreach = all(transform.foreach for transform in self.transforms)
        self.shardable = all(transform.shardable for transform in self.transforms)

    def check(self, group: Group) -> None:
        """Check the options of all transforms."""
        for transform in self.transforms:
            check_options(group, {transform.prefix + key: domain for key, domain in transform.allowed.items()})
            transform.check(transform.unprefixed(group))

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the statistics of all transforms: tensors of any shape by name."""
        return merged_state(self.transforms, param, group)

    def new_shared_state(self, group: Group) -> State:
        """Return the statistics of a group that all transforms keep."""
        return merged_shared_state(self.transforms, group)

    def kind(self, shape: torch.Size) -> Hashable:
        """Return what decides in any of the transforms."""
        return tuple(transform.kind(shape) for transform in self.transforms)

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Let every transform look at all gradients."""
        for transform in self.transforms:
            transform.before_step(groups)

    def needs_all_gradients(self, group: Group) -> bool:
        """Return whether any active transform does."""
        return any(transform.needs_all_gradients(transform.unprefixed(group)) for transform in self._active(group))

    def draws(self, group: Group) -> bool:
        """Return whether any transform does."""
        return any(transform.draws(transform.unprefixed(group)) for transform in self.transforms)

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return what leaves the last transform."""
        return applied(self._active(batch.group), update, batch)

    def after_step(self, batch: ParamBatch) -> None:
        """Let every transform look at the parameters after they have moved."""
        for transform in self.transforms:
            if transform.acts_after_step:
                transform.after_step(transform.view(batch))

    def _active(self, group: Group) -> list[Transform]:
        return [transform for transform in self.transforms if not transform.is_noop(transform.unprefixed(group))]


def _renamed(transform: Transform, name: str) -> Transform:
    """Return a copy of a transform whose names begin with one more prefix."""
    twin = copy.copy(transform)
    if isinstance(twin, Sequential):
        twin.transforms = tuple(_renamed(member, name) for member in twin.transforms)
        twin.options = merged_options(twin.transforms)
    elif name:
        twin.prefix = f"{name}/{twin.prefix}"
    return twin


def summed(updates: Sequence[Tensor], batch: ParamBatch) -> Tensor:
    """Return the sum of the updates, which all have the parameters' shape."""
    return reduce(torch.add, updates)


class Branches(Sequential):
    """Gives the same update to every transform, and combines what they make of it.

    Each branch has statistics of its own: two with equal names need ``name``. What a branch does to the parameter
    itself, as decay of weights does, happens once per branch, in order.

    Args:
        transforms: one per branch, at least one; several in a row are a `Sequential`.
        combine: makes one update, which it must not write to, of those of the branches; their sum by default.
        name: prefix of the options and statistics of all branches, before their own.

    Examples:
        >>> from optim.transforms.momentum import Momentum
        >>> both = optim.Branches(Momentum(0.0, name="now"), Momentum(0.9, name="average"))
        >>> param = nn.Parameter(torch.zeros(2))
        >>> param.grad = torch.tensor([1.0, -1.0])
        >>> optim.chain(both, lr=0.1)([param]).step()
        >>> param.data  # the gradient and a tenth of it
        tensor([-1.1000,  1.1000])
    """

    def __init__(self, *transforms: Transform, combine: Combine = summed, name: str = "") -> None:
        super().__init__(*transforms, name=name)
        self.combine = combine

    def __call__(self, update: Update, batch: ParamBatch) -> Tensor:
        """Return the combined update."""
        # not overwritable: the next branch needs it as it is
        shared = update._replace(overwritable=False)
        return self.combine([applied([branch], shared, batch).value() for branch in self._active(batch.group)], batch)
