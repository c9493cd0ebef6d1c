"""Tensors that step together: a list with a Tensor's methods, whose elementwise ones are one call for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

FOREACH: dict[str, Callable[..., Any]] = {
    name.removeprefix("_foreach_"): getattr(torch, name)
    for name in dir(torch)
    # the other foreach calls take other arguments than the functions that they are named after
    if name.startswith("_foreach_") and name not in ("_foreach_max", "_foreach_norm", "_foreach_powsum", "_foreach_mm")
}
TAKES_TENSOR = ("div", "div_", "mul", "mul_")
"""Foreach calls whose second operand may be one tensor without axes; that of ``add`` is read on some devices."""


EXPAND_BELOW_NUMEL = 1 << 25
"""Elements of a list up to which numbers per parameter are written out for each element: two calls, and a pass over
memory, instead of a call per tensor."""


class TensorList:
    """Tensors of one device and dtype, each of one parameter or of a stack of N along its first axis.

    An operand may be another such list, a number, a Python list of one number per tensor, a tensor without axes, or a
    vector of one number per parameter, in the order of the list. What torch has no foreach call for runs once per
    tensor, so that all of torch's functions work; axes are counted from the end, as everywhere in transforms. ``out``
    only says whose memory is free.

    Args:
        tensors: at least one.
        counts: N of each; 0 for a parameter alone, whose tensor has no axis for it.
    """

    __slots__ = ("counts", "tensors")

    def __init__(self, tensors: Sequence[Tensor], counts: Sequence[int]) -> None:
        self.tensors, self.counts = list(tensors), counts

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply one of torch's functions."""
        return _apply(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)
        return lambda *args, **kwargs: _apply(method, (self, *args), kwargs)

    def __mul__(self, other: Any) -> Any:
        return _apply(torch.mul, (self, other), {})

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return _apply(torch.add, (self, other), {})

    __radd__ = __add__

    def __rsub__(self, other: Any) -> Any:
        # no foreach call has a number on the left
        return _apply(torch.neg, (self,), {}) + other

    def __sub__(self, other: Any) -> Any:
        return _apply(torch.sub, (self, other), {})

    def __truediv__(self, other: Any) -> Any:
        return _apply(torch.div, (self, other), {})

    def __rtruediv__(self, other: Any) -> Any:
        return _apply(torch.reciprocal, (self,), {}) * other

    def __neg__(self) -> Any:
        return _apply(torch.neg, (self,), {})

    def __lt__(self, other: Any) -> Any:
        return _apply(torch.lt, (self, other), {})

    def __gt__(self, other: Any) -> Any:
        return _apply(torch.gt, (self, other), {})

    def __ge__(self, other: Any) -> Any:
        return _apply(torch.ge, (self, other), {})

    @property
    def device(self) -> torch.device:
        """Return the device of all tensors."""
        return self.tensors[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of all tensors."""
        return self.tensors[0].dtype

    def like(self, tensors: Sequence[Tensor]) -> TensorList:
        """Return other tensors of the same parameters, each (*) or (N, *)."""
        return TensorList(tensors, self.counts)

    def per_member(self) -> list[Tensor]:
        """Return a view of every parameter's part."""
        parts = zip(self.tensors, self.counts, strict=True)
        return [view for x, count in parts for view in (x.unbind() if count else (x,))]

    def spread(self, numbers: Tensor) -> list[Tensor]:
        """Return a vector of one number per parameter as views that broadcast against the tensors."""
        parts = numbers.split([max(1, count) for count in self.counts])
        return [
            part.view(-1, *[1] * (x.dim() - 1)) if count else part.view(())
            for part, x, count in zip(parts, self.tensors, self.counts, strict=True)
        ]

    def expand(self, numbers: Tensor) -> list[Tensor]:
        """Return a vector of one number per parameter as tensors of the shapes of this list, if they are small."""
        sizes = [x.numel() for x in self.tensors]
        if sum(sizes) > EXPAND_BELOW_NUMEL:
            return self.spread(numbers)
        if sum(sizes) > len(numbers):
            counts = [max(1, count) for count in self.counts]
            each = tuple(size // n for size, n in zip(sizes, counts, strict=True) for _ in range(n))
            numbers = numbers.repeat_interleave(_repeats(each, numbers.device), output_size=sum(sizes))
        parts = numbers.split(sizes)
        return [part.view(x.shape) for part, x in zip(parts, self.tensors, strict=True)]

    def column(self, operand: Any) -> list[Any]:
        """Return an operand once per tensor."""
        if isinstance(operand, TensorList):
            return operand.tensors
        if isinstance(operand, Tensor) and operand.dim():
            return self.spread(operand)
        if isinstance(operand, list):
            return operand
        return [operand] * len(self.tensors)


def _apply(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    lists = [x for x in (*args, *kwargs.values()) if isinstance(x, TensorList)]
    first, name = lists[0], func.__name__
    if name in ("mul", "add") and args[0] is not first:
        args = (first, args[0])
    if name in ("clamp", "clamp_"):
        return _clamped(name, *args, **kwargs)
    if isinstance(args[0], TensorList) and name in FOREACH and not kwargs.keys() - {"alpha", "value", "out"}:
        kwargs.pop("out", None)
        operands = [_operand(first, x, name) for x in args[1:]]
        result = FOREACH[name](args[0].tensors, *operands, **kwargs)
    else:
        columns = [first.column(x) for x in args]
        named = {key: first.column(x) for key, x in kwargs.items()}
        result = [
            func(*row, **{key: column[i] for key, column in named.items()})
            for i, row in enumerate(zip(*columns, strict=True))
        ]
    if name.endswith("_") and not name.startswith("__"):
        return args[0]
    return kwargs["out"] if "out" in kwargs else first.like(result)


def _operand(first: TensorList, x: Any, name: str) -> Any:
    """Return an operand as a foreach call takes it."""
    if isinstance(x, TensorList):
        return x.tensors
    if isinstance(x, Tensor) and not x.dim() and name not in TAKES_TENSOR:
        x = x.to(first.dtype).expand(sum(max(1, count) for count in first.counts))
    return first.expand(x) if isinstance(x, Tensor) and x.dim() else x


def _clamped(name: str, x: TensorList, min: Any = None, max: Any = None) -> TensorList:
    """Clamp by the foreach calls that clamp from one side."""
    for bound, side in ((min, "clamp_min"), (max, "clamp_max")):
        if bound is not None:
            call = FOREACH[side + ("_" if name.endswith("_") else "")]
            result = call(x.tensors, _operand(x, bound, side))
            x = x if name.endswith("_") else x.like(result)
    return x


@lru_cache(maxsize=64)
def _repeats(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)


def flattened(tensors: list[Tensor]) -> Tensor:
    """Return the elements of tensors of one dtype and device, one tensor after the other, as a vector."""
    # by one call, which makes no view of each tensor in Python
    flat: Tensor = torch._C._nn.flatten_dense_tensors(tensors)
    return flat


def unflattened(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return views of such a vector with the shapes of these tensors."""
    pieces: list[Tensor] = torch._C._nn.unflatten_dense_tensors(flat, like)
    return pieces
