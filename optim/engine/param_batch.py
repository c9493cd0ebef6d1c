"""Batches of parameters, and updates on their way to them: what a transform sees.

A `ParamBatch` is one parameter, or a stack of N of equal shape. A `ForeachBatch` is several of them at once, whose
tensors are `TensorList`: lists with a Tensor's methods, whose elementwise ones are one call for all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten

from optim.engine.random import key_of

State = dict[str, Any]
Group = dict[str, Any]
Scalar = float | Tensor
"""One number per parameter: a Python number for a single tensor on a CPU, else a tensor that broadcasts against the
parameters, so that nothing waits for the device."""
HALF = (torch.float16, torch.bfloat16)
DRAW_KEY = "draw_key"
"""The statistic that draws of a parameter depend on: see `optim.engine.random.key_of`."""
LOOP_STATE = ("step", "rounding_error", DRAW_KEY)
"""Statistics that belong to the step loop, not to a transform."""
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


def state_dtype(param: Tensor) -> torch.dtype:
    """Return the dtype of statistics and arithmetic: float32 for half precision, else the parameter's, of any shape."""
    return torch.float32 if param.dtype in HALF else param.dtype


def is_narrow(group: Group) -> bool:
    """Return whether a group stores statistics in bfloat16, see `optim.engine.transform.StateStorage`."""
    return group.get("storage_dtype") == "bfloat16"


def zeros(param: Tensor, group: Group) -> Tensor:
    """Return a statistic of zeros, with the shape and memory layout of the parameter, in the group's storage dtype."""
    dtype = torch.bfloat16 if is_narrow(group) else state_dtype(param)
    # fused kernels walk through memory: a channels_last parameter needs statistics that are channels_last too
    return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)


def copied(param: Tensor) -> Tensor:
    """Return a statistic that equals the parameter; not in the storage dtype, as rounding would move it."""
    return param.detach().to(state_dtype(param), copy=True, memory_format=torch.preserve_format)


def zero_per_axes(param: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return a statistic of zeros in the parameter's shape, but with size 1 on all axes except the given ones."""
    # size 1, not squeezed: the statistic then broadcasts against the parameter without a reshape in every step
    full_axes = {axis % param.dim() for axis in axes}
    shape = [size if axis in full_axes else 1 for axis, size in enumerate(param.shape)]
    # of a sharded parameter a plain tensor, equal in all processes: one element cannot be divided
    like = param.to_local() if hasattr(param, "to_local") else param
    return like.new_zeros(shape, dtype=state_dtype(param))


def constant(value: float, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a number as a 0-dimensional tensor on the device of a tensor, of its dtype or another."""
    # on a CPU, calls with tensors alone take a third of the time of those with a Python number
    return _constant(value, dtype or like.dtype, like.device)


@lru_cache(maxsize=256)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def shared_zero(group: Group) -> Tensor:
    """Return a statistic of a whole group, a zero without axes, on the device of its parameters."""
    params = group["params"]
    wide = any(param.dtype == torch.float64 for param in params)
    device = params[0].device if params else None
    return torch.zeros((), dtype=torch.float64 if wide else torch.float32, device=device)


def at_least(x: Scalar, floor: float) -> Scalar:
    """Return the larger of a number per parameter, or a step, and a floor."""
    # max() of a tensor would read it, and wait for the device
    return x.clamp(min=floor) if isinstance(x, Tensor | TensorList) else max(x, floor)


def at_most(x: Scalar, ceiling: Any) -> Scalar:
    """Return the smaller of a number per parameter, or a step, and a ceiling; it may be a tensor if the number is."""
    return x.clamp(max=ceiling) if isinstance(x, Tensor | TensorList) else min(x, ceiling)


def choose(condition: bool | Tensor, x: Any, y: Any) -> Any:
    """Return x if a condition holds, else y; on the device if the condition is a tensor, whose shape may broadcast."""
    return torch.where(condition, x, y) if isinstance(condition, Tensor) else x if condition else y


def assign(target: Tensor, value: Scalar) -> None:
    """Put a number per parameter into a statistic, (1, …) or (N, 1, …), in place."""
    # fill_ takes one number, and a stack has N of them
    if isinstance(value, Tensor):
        target.copy_(value)
    else:
        # beyond the target's dtype it is infinite, as it would be on a device
        target.fill_(math.copysign(math.inf, value) if abs(value) > torch.finfo(target.dtype).max else value)


class Place(NamedTuple):
    """Where a part of a tensor lies: the axis that is divided, among whom, and which of the parts it is."""

    axis: int
    group: dist.ProcessGroup
    size: int
    rank: int


class Shard(NamedTuple):
    """The whole of a sharded tensor.

    Attributes:
        shape: of the whole.
        places: of this part, one per axis that is divided.
        owner: rank that steps the whole, and holds its statistics; None if every process steps its part.
    """

    shape: torch.Size
    places: tuple[Place, ...]
    owner: int | None = None


class Part(NamedTuple):
    """Blocks of one shape that follow each other in a parameter.

    Attributes:
        axes: of the parameter, in the order in which they are seen, rows first.
        start: first row of them, along the first of these axes.
        stop: row after them.
        num_blocks: 0 for a single one, whose tensors have no axis for it.
        shape: of each, (R, C), or (n,) for what is no matrix.
        suffix: of the names of their statistics, if a parameter has several parts.
    """

    axes: tuple[int, ...]
    start: int
    stop: int
    num_blocks: int
    shape: torch.Size
    suffix: str = ""

    def of(self, x: Tensor) -> Tensor:
        """Return the blocks of a parameter or gradient, (*shape) or (count, *shape): a view.

        Unless they are contiguous, rows and columns may be several axes.
        """
        x = x.permute(self.axes)[self.start : self.stop]
        return self.seen(x.unflatten(0, (self.num_blocks, -1)) if self.num_blocks else x)

    def seen(self, x: Tensor) -> Tensor:
        """Return these blocks in their own shape, if they are contiguous."""
        return x.view(self.whole) if x.is_contiguous() else x

    @property
    def whole(self) -> torch.Size:
        """Return the shape of the statistics of all blocks that have the shape of a block."""
        return torch.Size((self.num_blocks, *self.shape)) if self.num_blocks else self.shape


class ParamEntry(NamedTuple):
    """A parameter that takes part in this step, with gradient, state and name, empty if the optimizer knows none.

    If the parameter is sharded, all tensors are the parts that this process holds.

    Attributes:
        part: which blocks of the parameter it is; None for the parameter.
        key: of the place of its statistics, the same in every step.
    """

    param: Tensor
    grad: Tensor
    state: Any
    name: str = ""
    shard: Shard | None = None
    part: Part | None = None
    key: Any = None

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the whole parameter, or of a block."""
        if self.part:
            return self.part.shape
        return self.shard.shape if self.shard else self.param.shape

    @property
    def draw_key(self) -> int:
        """Return what random numbers depend on; blocks draw others than the parameter would."""
        key: int = self.state[DRAW_KEY]
        return key_of(f"{key}/{self.part.start}") if self.part else key

    @property
    def num_members(self) -> int:
        """Return how many tensors it stands for: the blocks, or one."""
        return max(1, self.part.num_blocks) if self.part else 1


def progress(entries: Sequence[ParamEntry], key: str) -> Iterator[tuple[list[ParamEntry], list[Tensor], Tensor]]:
    """Yield parameters of one dtype, device and count of steps, their gradients, and Σ ⟨g, state[key] − p⟩ of them."""
    kinds: dict[Any, list[ParamEntry]] = defaultdict(list)
    for entry in entries:
        step = entry.state["step"]
        count = id(step) if isinstance(step, Tensor) else step
        kinds[entry.param.dtype, entry.grad.dtype, entry.param.device, count].append(entry)
    for (dtype, *_), members in kinds.items():
        wide = state_dtype(members[0].param)
        grads = [entry.grad.to(wide) for entry in members]
        path = flatten([entry.state[key] for entry in members]) - flatten([entry.param for entry in members]).to(wide)
        if dtype in HALF:
            path -= flatten([entry.state["rounding_error"] for entry in members]).to(wide)
        yield members, grads, torch.dot(flatten(grads), path)


Limits = list[tuple[Scalar, Sequence[ParamEntry]]]
"""Factors of clipping, each with the parameters that it belongs to, which may be a part of a batch."""


class Update(NamedTuple):
    """An update ``scale · row_scale · direction``, which is subtracted from the parameter.

    The factors are kept apart because a number per parameter, or per row, then costs no pass over the elements.

    Attributes:
        direction: (*shape) or (N, *shape); must not be modified unless ``overwritable``, as it may be the gradient or a
            statistic.
        scale: one number per parameter.
        overwritable: whether nothing else uses the memory of the direction; the next transform may then overwrite it.
        row_scale: broadcasts against the direction, such as one number per row.

    Examples:
        >>> update = optim.Update(torch.tensor([1.0, -2.0]), scale=3.0)
        >>> update.value()
        tensor([ 3., -6.])
        >>> update.times(2.0).scale  # the elements are not touched
        6.0
    """

    direction: Tensor
    scale: Scalar = 1.0
    overwritable: bool = False
    row_scale: Tensor | None = None

    def times(self, factor: Scalar) -> Update:
        """Return the update multiplied by one number per parameter."""
        return Update(self.direction, self.scale * factor, self.overwritable, self.row_scale)

    def unscaled(self) -> Tensor:
        """Return ``row_scale · direction`` as one tensor, which must not be modified."""
        return self.direction if self.row_scale is None else self.direction * self.row_scale

    def value(self) -> Tensor:
        """Return the update as one tensor, which must not be modified."""
        direction = self.unscaled()
        return direction if self._has_unit_scale() else direction * self.scale

    def writable(self) -> Tensor:
        """Return the update as one tensor that may be modified; the update itself must not be used afterwards."""
        direction = self.direction if self.overwritable else self.direction.clone()
        if self.row_scale is not None:
            direction.mul_(self.row_scale)
        return direction if self._has_unit_scale() else direction.mul_(self.scale)

    def subtract_from(self, target: Tensor) -> Tensor:
        """Subtract the update in place, in one pass over the elements, from a target of its shape that is returned."""
        scale = self.scale
        if not isinstance(scale, Tensor):
            if self.row_scale is None:
                return target.sub_(self.direction, alpha=scale)
            return target.addcmul_(self.direction, self.row_scale, value=-scale)
        # alpha must be a Python number, which would be read from the device; addcmul_ takes the tensor itself
        return target.addcmul_(self.direction, scale if self.row_scale is None else self.row_scale * scale, value=-1)

    def _has_unit_scale(self) -> bool:
        # a tensor is not compared: the answer would have to be read from the device
        return not isinstance(self.scale, Tensor) and self.scale == 1.0


@dataclass(slots=True)
class ParamBatch:
    """One parameter, or N of equal shape stacked along a new first axis.

    A transform reads it and changes it in place. Count axes from the end: a stack then needs no case of its own.
    `norm`, `rms`, `mean`, `dot`, `maximum` and `minimum` return one number per parameter, also if it is sharded.

    Attributes:
        param: (*shape) or (N, *shape), in float32 if the parameter is stored in half precision; of a sharded parameter
            the part that this process holds, which may be empty.
        grad: gradient of the function to be minimized, with the same shape; must not be modified.
        state: statistics by name, of this parameter or stacked likewise; changed in place.
        group: hyper-parameters; ``lr`` may be a tensor.
        step: number of this step of these parameters, from 1: a Python int, or, if the optimizer is ``capturable``, a
            0-dimensional tensor, on which no `if` can be decided.
        shape: of one parameter, all shards together.
        stacked: whether the first axis is N.
        entries: where the parameters and statistics are stored.
        limited: while `Health` measures, what `note_limit` was told about the parameters of this group.
        found_inf: a flag on the device, for a kernel that then changes nothing if it is not zero.
        shard_groups: over which `norm` and the like reduce, if the parameter is sharded.
        store: puts what was changed in copies where it belongs; called once with this batch, when its step is complete.
        numel: of one parameter, all shards together; in a `ForeachBatch` one number per parameter.
        single_element: whether the parameters have one element each.

    Examples:
        >>> @optim.transform
        ... def unit_rms(update, batch):
        ...     return update / batch.rms(update)
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, -4.0])
        >>> optim.chain(unit_rms(), lr=0.0)([weight]).step()
        >>> f"{weight.detach().square().mean().sqrt():.2f}"
        '1.00'
    """

    param: Tensor
    grad: Tensor
    state: State
    group: Group
    step: Any
    shape: torch.Size
    stacked: bool = False
    entries: Sequence[ParamEntry] = ()
    limited: Limits | None = None
    found_inf: Tensor | None = None
    shard_groups: tuple[dist.ProcessGroup, ...] = ()
    store: Callable[[ParamBatch], None] = lambda batch: None
    numel: Any = field(init=False)
    single_element: bool = field(init=False)

    def __post_init__(self) -> None:
        self.numel = self.shape.numel()
        self.single_element = self.shape.numel() == 1

    @property
    def parts(self) -> list[ParamBatch]:
        """Return each stack, or parameter alone, as a batch of its own."""
        return [self]

    def tensors(self, x: Tensor) -> list[Tensor]:
        """Return the tensor of each part, (*) or (N, *)."""
        return [x]

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return one tensor per part, (*) or (N, *), as one that has a Tensor's methods."""
        return tensors[0]

    @property
    def draw_keys(self) -> list[int]:
        """Return what random numbers of each parameter depend on."""
        return [entry.draw_key for entry in self.entries]

    def per_parameter(self, x: Tensor) -> Tensor:
        """Reshape N numbers, (N) or (), so that they broadcast against the parameters."""
        return x.reshape(-1, *[1] * len(self.shape)) if self.stacked else x.reshape(())

    def read(self, x: Tensor) -> Scalar:
        """Return a tensor of one number per parameter as a `Scalar`."""
        if self.stacked:
            return self.per_parameter(x)
        # a CPU has no queue to wait for, and Python numbers are faster than tensors of one element
        return x.item() if x.device.type == "cpu" else x.reshape(())

    def of_shape(self, function: Callable[[torch.Size], float]) -> Any:
        """Return a number that follows from the shape of a parameter; in a `ForeachBatch`, one per tensor."""
        return function(self.shape)

    def norm(self, x: Tensor, order: float = 2) -> Scalar:
        """Return the norm of every parameter's part of x: a number for (*), (N, 1, …) for (N, *).

        Args:
            x: in the parameters' shape.
            order: 2, or, unless the parameter is sharded, another as in `torch.linalg.vector_norm`.
        """
        if self.stacked:
            return self.per_parameter(torch.linalg.vector_norm(x.reshape(len(x), -1), order, dim=-1))
        norm = torch.linalg.vector_norm(x, order)
        return self.read(self._reduced(norm.square()).sqrt() if self.shard_groups else norm)

    def rms(self, x: Tensor) -> Scalar:
        """Return √(mean of x²) of every parameter's part of x: a number for (*shape), (N, 1, …) for (N, *shape)."""
        return self.norm(x) / max(1, self.numel) ** 0.5

    def rms_of(self, update: Update) -> Scalar:
        """Return the RMS of every parameter's update."""
        # the scale is taken out: only the direction needs a pass over the elements
        scale = update.scale
        return self.rms(update.unscaled()) * (scale.abs() if isinstance(scale, Tensor) else abs(scale))

    def mean(self, x: Tensor) -> Scalar:
        """Return the mean of every parameter's part of x: a number for (*shape), (N, 1, …) for (N, *shape)."""
        if self.shard_groups:
            return self.read(self._reduced(x.sum()) / max(1, self.numel))
        return self.read(x.reshape(len(x), -1).mean(-1) if self.stacked else x.mean())

    def maximum(self, x: Tensor) -> Scalar:
        """Return the largest element of every parameter's part of x: a number for (*), (N, 1, …) for (N, *)."""
        if self.shard_groups:
            largest = x.amax() if x.numel() else x.new_full((), -torch.inf)
            return self.read(self._reduced(largest, largest=True))
        return self.read(x.reshape(len(x), -1).amax(-1) if self.stacked else x.amax())

    def minimum(self, x: Tensor) -> Scalar:
        """Return the smallest element of every parameter's part of x: a number for (*), (N, 1, …) for (N, *)."""
        return -self.maximum(-x)

    def dot(self, x: Tensor, y: Tensor) -> Scalar:
        """Return the inner product of every parameter's parts of x and y: a number for (*), (N, 1, …) for (N, *)."""
        if self.stacked:
            return self.read(torch.linalg.vecdot(x.reshape(len(x), -1), y.reshape(len(y), -1)))
        # torch.dot sums without a temporary of x * y, but takes vectors only
        return self.read(self._reduced(torch.dot(x.reshape(-1), y.reshape(-1))))

    def _reduced(self, x: Tensor, *, largest: bool = False) -> Tensor:
        """Replace the number of this shard by the sum, or the largest, of those of all shards."""
        for group in self.shard_groups:
            dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
        return x

    def note_limit(self, factor: Scalar) -> None:
        """Tell `Health` by which factor an update was limited; below 1 means that it was."""
        if self.limited is not None:
            self.limited.append((factor, self.entries))


class ForeachBatch(ParamBatch):
    """Several stacks, and parameters alone, as one batch for transforms that are ``foreach``.

    Its tensors are `TensorList`. One number per parameter is a vector for all, in the order of ``entries``.

    Args:
        stacks: the members of each; all of one dtype, device, step and names of statistics, and all with
            one element or all with more.
        params: of each stack, (N, *shape), or (*shape) if it has one member.
        grads: likewise.
        state: likewise, by name.
        group: hyper-parameters.
    """

    def __init__(
        self,
        stacks: Sequence[Sequence[ParamEntry]],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        state: dict[str, list[Tensor]],
        group: Group,
    ) -> None:
        self.counts, self.stacks = [len(stack) if len(stack) > 1 else 0 for stack in stacks], stacks
        entries = [entry for stack in stacks for entry in stack]
        first = entries[0]
        super().__init__(
            param=self.joined(params),
            grad=self.joined(grads),
            state={key: self.joined(tensors) for key, tensors in state.items()},
            group=group,
            step=first.state["step"],
            shape=first.shape,
            entries=entries,
        )

    @classmethod
    def of(cls, batches: Sequence[ParamBatch]) -> ForeachBatch:
        """Return several batches as one; their updates and what they store are their own."""
        names = [key for key in batches[0].state if key not in LOOP_STATE]
        state = {key: [batch.state[key] for batch in batches] for key in names}
        params, grads = [batch.param for batch in batches], [batch.grad for batch in batches]
        joined = cls([batch.entries for batch in batches], params, grads, state, batches[0].group)
        joined.step, joined.found_inf = batches[0].step, batches[0].found_inf
        return joined

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors as a `TensorList`."""
        return cast(Tensor, TensorList(tensors, self.counts))

    def tensors(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of a `TensorList`."""
        return cast(TensorList, x).tensors

    @cached_property
    def parts(self) -> list[ParamBatch]:
        """Return each stack, or parameter alone, as a batch of its own."""
        tensors = map(self.tensors, (self.param, self.grad))
        return [
            ParamBatch(
                param,
                grad,
                {key: self.tensors(x)[i] for key, x in self.state.items()},
                self.group,
                self.step,
                stack[0].shape,
                len(stack) > 1,
                stack,
                self.limited,
                self.found_inf,
            )
            for i, (stack, param, grad) in enumerate(zip(self.stacks, *tensors, strict=True))
        ]

    @property
    def numel(self) -> Any:
        """Return a vector of how many elements each parameter has."""
        return _on_device(tuple(entry.param.numel() for entry in self.entries), self.param.device, self.param.dtype)

    @numel.setter
    def numel(self, value: int) -> None:
        pass  # the first parameter's, which `ParamBatch` would keep

    def each(self, update: Update) -> list[Update]:
        """Return the update of every part."""
        like = cast(TensorList, self.param)
        columns = (like.column(x) for x in (update.direction, update.scale, update.row_scale))
        return [Update(u, scale, update.overwritable, rows) for u, scale, rows in zip(*columns, strict=True)]

    def join(self, updates: Sequence[Update]) -> Update:
        """Return the updates of all parts as one."""
        if len({update.row_scale is None for update in updates}) > 1:
            updates = [update._replace(direction=update.unscaled(), row_scale=None) for update in updates]
        row_scales = [update.row_scale for update in updates if update.row_scale is not None]
        row_scale = self.joined(row_scales) if row_scales else None
        direction = self.joined([update.direction for update in updates])
        overwritable, scales = all(update.overwritable for update in updates), [update.scale for update in updates]
        of_members = isinstance(scales[0], Tensor) and scales[0].dim()  # of a single part, in the shape for its stack
        if all(scale is scales[0] for scale in scales) and not of_members:
            return Update(direction, scales[0], overwritable, row_scale)
        # numbers that follow from shapes: a call takes one per tensor, but a vector of them would come from the host
        numbers = [1.0 if isinstance(scale, Tensor) else scale for scale in scales]
        if any(number != numbers[0] for number in numbers):
            direction = self.joined(torch._foreach_mul(self.tensors(direction), numbers))
            overwritable, numbers = True, [1.0] * len(numbers)
        if not any(isinstance(scale, Tensor) for scale in scales):
            return Update(direction, numbers[0], overwritable, row_scale)
        unit = torch.ones(1, dtype=self.param.dtype, device=self.param.device)
        vectors = [self._numbers(scale if isinstance(scale, Tensor) else unit) for scale in scales]
        counts = (len(stack) for stack in self.stacks)
        scale = torch.cat([x.expand(count) for x, count in zip(vectors, counts, strict=True)])
        return Update(direction, scale, overwritable, row_scale)

    def per_parameter(self, x: Tensor) -> Tensor:
        """Return the numbers as a vector."""
        return torch.cat([y.reshape(-1) for y in x.tensors]) if isinstance(x, TensorList) else x.reshape(-1)

    def read(self, x: Tensor) -> Scalar:
        """Return a statistic of one number per parameter, or one number of all, as a `Scalar`."""
        return self.per_parameter(x) if isinstance(x, TensorList) or x.dim() else x

    def norm(self, x: Tensor, order: float = 2) -> Scalar:
        """Return a vector of the norm of every parameter's part of x, (*) or (N, *) each."""
        return torch.stack(torch._foreach_norm(cast(TensorList, x).per_member(), order))

    def of_shape(self, function: Callable[[torch.Size], float]) -> Any:
        """Return one number per tensor, which follows from the shape of a parameter."""
        return [function(stack[0].shape) for stack in self.stacks]

    def rms(self, x: Tensor) -> Scalar:
        """Return a vector of √(mean of x²) of every parameter's part of x, (*) or (N, *) each."""
        return self.norm(x) / self.numel**0.5

    def mean(self, x: Tensor) -> Scalar:
        """Return a vector of the mean of every parameter's part of x, (*) or (N, *) each."""
        return self._per_part(ParamBatch.mean, x)

    def maximum(self, x: Tensor) -> Scalar:
        """Return a vector of the largest element of every parameter's part of x, (*) or (N, *) each."""
        return self._per_part(ParamBatch.maximum, x)

    def dot(self, x: Tensor, y: Tensor) -> Scalar:
        """Return a vector of the inner product of every parameter's parts of x and y, (*) or (N, *) each."""
        return self._per_part(lambda part, z: z.flatten(1).sum(-1) if part.stacked else z.sum(), x * y)

    def _per_part(self, reduce: Callable[[ParamBatch, Tensor], Scalar], x: Tensor) -> Tensor:
        pairs = zip(self.parts, self.tensors(x), strict=True)
        return torch.cat([self._numbers(reduce(part, y)) for part, y in pairs])

    def _numbers(self, x: Scalar) -> Tensor:
        x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=self.param.dtype)  # a parameter alone, on a CPU
        return x.reshape(-1)


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: _apply(function, operands, {})


class TensorList:
    """Tensors of one device and dtype, each of one parameter or of a stack of N along its first axis.

    An operand may be another such list, a number, a Python list of one number per tensor, a tensor without axes, or a
    vector of one number per parameter, in the order of the list. What torch has no foreach call for runs once per
    tensor, so that all of torch's functions work; axes are counted from the end, as everywhere in transforms. ``out``
    only names memory that may be overwritten.

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

    __mul__ = __rmul__ = _operator(torch.mul)
    __add__ = __radd__ = _operator(torch.add)
    __sub__, __truediv__, __neg__ = _operator(torch.sub), _operator(torch.div), _operator(torch.neg)
    __lt__, __gt__, __ge__ = _operator(torch.lt), _operator(torch.gt), _operator(torch.ge)

    # no foreach call has a number on the left
    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __rtruediv__(self, other: Any) -> Any:
        return _apply(torch.reciprocal, (self,), {}) * other

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
            numbers = numbers.repeat_interleave(_on_device(each, numbers.device), output_size=sum(sizes))
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


@lru_cache(maxsize=128)
def _on_device(numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)
