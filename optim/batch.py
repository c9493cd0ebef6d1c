"""What a transform sees: tensors of one shape that step together, and the update on its way to them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

State = dict[str, Any]
Group = dict[str, Any]
Scalar = float | Tensor
"""One number per parameter: Python's for a single tensor on a CPU, where reading costs nothing; else a tensor that
broadcasts against the parameters, so that nothing waits for the device."""

HALF = (torch.float16, torch.bfloat16)


def state_dtype(param: Tensor) -> torch.dtype:
    """Return the type of statistics and arithmetic: float32 for half-precision parameters, else their own."""
    return torch.float32 if param.dtype in HALF else param.dtype


def zeros(param: Tensor) -> Tensor:
    """Return a statistic of zeros, shaped and laid out like the parameter."""
    return torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)


def zero_per_axes(param: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return a statistic of zeros that keeps only the given axes; the others have size 1."""
    kept = {axis % param.dim() for axis in axes}
    shape = [size if axis in kept else 1 for axis, size in enumerate(param.shape)]
    return param.new_zeros(shape, dtype=state_dtype(param))


def constant(value: float, like: Tensor) -> Tensor:
    """Return a number as a tensor of no axes: on a CPU, calls with tensors take a third of the time."""
    return _constant(value, like.dtype, like.device)


@lru_cache(maxsize=256)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def at_least(x: Scalar, floor: float) -> Scalar:
    """Return the larger of a number per parameter and a floor."""
    return x.clamp(min=floor) if isinstance(x, Tensor) else max(x, floor)


def at_most(x: Scalar, ceiling: float) -> Scalar:
    """Return the smaller of a number per parameter and a ceiling."""
    return x.clamp(max=ceiling) if isinstance(x, Tensor) else min(x, ceiling)


class Member(NamedTuple):
    """A parameter that takes part in a step."""

    param: Tensor
    grad: Tensor
    state: State
    kind: Hashable


class Update(NamedTuple):
    """An update ``scale · rows · direction``, to be subtracted from the parameter.

    The factors are kept apart because a number per parameter, or per row, then costs no pass over the elements.

    Attributes:
        direction: must not be modified, for it may be the gradient or a statistic, unless it is ``free``.
        scale: one number per parameter.
        free: whether the direction's memory is nobody else's, so that the next transform may take it.
        rows: broadcasts against the direction, such as one number per row.
    """

    direction: Tensor
    scale: Scalar = 1.0
    free: bool = False
    rows: Tensor | None = None

    def times(self, factor: Scalar) -> Update:
        """Return the update multiplied by one number per parameter."""
        return Update(self.direction, self.scale * factor, self.free, self.rows)

    def value(self) -> Tensor:
        """Return the update as one tensor, to be read only."""
        direction = self.direction if self.rows is None else self.direction * self.rows
        return direction if self._is_plain() else direction * self.scale

    def writable(self) -> Tensor:
        """Return the update as one tensor that may be modified; the update itself must not be used any more."""
        direction = self.direction if self.free else self.direction.clone()
        if self.rows is not None:
            direction.mul_(self.rows)
        return direction if self._is_plain() else direction.mul_(self.scale)

    def subtract_from(self, target: Tensor) -> Tensor:
        """Subtract the update in place, in one pass over the elements, and return the target."""
        scale = self.scale
        if not isinstance(scale, Tensor):
            if self.rows is None:
                return target.sub_(self.direction, alpha=scale)
            return target.addcmul_(self.direction, self.rows, value=-scale)
        return target.addcmul_(self.direction, scale if self.rows is None else self.rows * scale, value=-1)

    def _is_plain(self) -> bool:
        return not isinstance(self.scale, Tensor) and self.scale == 1.0


@dataclass(slots=True)
class Batch:
    """One parameter, or N of equal shape stacked along a new first axis.

    A transform reads and changes it in place. Axes are counted from the end, so that a stack needs no case of its
    own; whatever is one number per parameter comes from `norm`, `mean` and `dot`.

    Attributes:
        param: (*shape) or (N, *shape), in float32 where the parameter is stored in half precision.
        grad: the gradient of the function to be minimised, laid out alike; must not be modified.
        state: statistics by name, of this parameter or stacked likewise; to be changed in place.
        group: hyper-parameters; ``lr`` may be a tensor.
        step: number of this step of these parameters, from 1.
        shape: of one parameter.
        stacked: whether there is a first axis of N.
        kind: what `Chain.kind` said about these parameters.
        limited: where the health of the optimizer is measured, what `note_limit` was told about this batch.
        numel: of one parameter.
    """

    param: Tensor
    grad: Tensor
    state: State
    group: Group
    step: int
    shape: torch.Size
    stacked: bool = False
    kind: Hashable = None
    limited: list[tuple[Scalar, int]] | None = None
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        self.numel = self.shape.numel()

    def per_parameter(self, x: Tensor) -> Tensor:
        """Shape N numbers, (N) or (), so that they broadcast against the parameters."""
        return x.reshape(-1, *[1] * len(self.shape)) if self.stacked else x.reshape(())

    def read(self, x: Tensor) -> Scalar:
        """Return a tensor of one number per parameter as a `Scalar`."""
        if self.stacked:
            return self.per_parameter(x)
        # on a CPU there is no device to wait for, and numbers are quicker than tensors of one element
        return x.item() if x.device.type == "cpu" else x.reshape(())

    def norm(self, x: Tensor) -> Scalar:
        """Return the Euclidean norm of every parameter's part of x."""
        if self.stacked:
            return self.per_parameter(torch.linalg.vector_norm(x.reshape(len(x), -1), dim=-1))
        return self.read(torch.linalg.vector_norm(x))

    def rms(self, x: Tensor) -> Scalar:
        """Return √(mean of x²) of every parameter's part of x."""
        return self.norm(x) / max(1, self.numel) ** 0.5

    def rms_of(self, update: Update) -> Scalar:
        """Return the RMS of every parameter's update."""
        direction = update.direction if update.rows is None else update.direction * update.rows
        scale = update.scale
        return self.rms(direction) * (scale.abs() if isinstance(scale, Tensor) else abs(scale))

    def mean(self, x: Tensor) -> Scalar:
        """Return the mean of every parameter's part of x."""
        return self.read(x.reshape(len(x), -1).mean(-1) if self.stacked else x.mean())

    def maximum(self, x: Tensor) -> Scalar:
        """Return the largest element of every parameter's part of x."""
        return self.read(x.reshape(len(x), -1).amax(-1) if self.stacked else x.amax())

    def minimum(self, x: Tensor) -> Scalar:
        """Return the smallest element of every parameter's part of x."""
        return self.read(x.reshape(len(x), -1).amin(-1) if self.stacked else x.amin())

    def dot(self, x: Tensor, y: Tensor) -> Scalar:
        """Return the inner product of every parameter's parts of x and y."""
        if self.stacked:
            return self.read(torch.linalg.vecdot(x.reshape(len(x), -1), y.reshape(len(y), -1)))
        return self.read(torch.dot(x.reshape(-1), y.reshape(-1)))

    def note_limit(self, factor: Scalar) -> None:
        """Tell the health report by which factor an update was limited; below 1 it was."""
        if self.limited is not None:
            self.limited.append((factor, len(self.param) if self.stacked else 1))
