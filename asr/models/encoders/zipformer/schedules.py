"""How far training of a Zipformer is, and what changes with it: scheduled values, limits, what is active in a pass."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import torch
from torch import Tensor

from asr.models.kernels import is_tracing

LIMIT_PROBABILITY = 0.6  # of limiting a parameter in a forward pass

FloatLike = SupportsFloat
"""A constant or a value that changes; ``float()`` gives its value now."""


class BatchCount:
    """How far training is: the number of batches of ``ref_duration_s`` seconds of audio since it began.

    Every scheduled value of an encoder reads the same one. Counting audio, as icefall's ``get_adjusted_batch_count``
    does, makes schedules independent of the batch size, of the number of processes, and of accumulation.

    Attributes:
        stochastic: probabilities of everything that changes gradients in some forward passes only.
        random_number: uniform in [0, 1); decides in `is_active` what is active in this pass.
        is_plain: whether nothing of ``stochastic`` is active in this pass.
        values: (N,) on the encoder's device: ``random_number``, then the registered values of this pass.
    """

    def __init__(self) -> None:
        # no default: training would silently use values of another time
        self._num_batches: float | None = None
        # many modules share a schedule: each is evaluated once
        self._distinct: list[FloatLike] = []
        self._places: list[int] = []
        self.stochastic: Sequence[FloatLike] = ()
        self.random_number, self.is_plain = 1.0, True
        self.values = torch.empty(0)

    def set(self, num_batches: float) -> None:
        """Set the number of batches, at least 0."""
        self._num_batches = num_batches

    def register(self, *values: FloatLike) -> slice:
        """Have values computed for each forward pass; return where in ``values`` they will be."""
        self._distinct += [value for value in dict.fromkeys(values) if value not in self._distinct]
        self._places += map(self._distinct.index, values)
        return slice(1 + len(self._places) - len(values), 1 + len(self._places))

    def begin_pass(self, device: torch.device) -> tuple[bool, ...]:
        """Draw what is active in a forward pass in training, and compute all values for it.

        Returns:
            Whether each of ``stochastic`` is active: passes with equal tuples run the same code.
        """
        self.random_number = draw()
        is_active = tuple(map(self.is_active, self.stochastic))
        self.is_plain = not any(is_active)
        distinct = [float(value) for value in self._distinct]
        # one copy for all of them
        self.values = refilled(self.values, [self.random_number, *(distinct[place] for place in self._places)], device)
        return is_active

    def is_active(self, probability: FloatLike) -> bool:
        """Return whether a module that acts with this probability is active in this forward pass.

        One random number decides for all modules. Each keeps its probability, but rare ones are active in the same
        passes: many passes have none of them, and all of those run the same code, which can be compiled.
        """
        return not is_tracing() and self.random_number < float(probability)

    @property
    def num_batches(self) -> float:
        """The number that was set last.

        Raises:
            RuntimeError: none was set.
        """
        if self._num_batches is None:
            raise RuntimeError(
                "this encoder in training mode must know how far training is: call set_trained_seconds(audio_s) before "
                "each update, or eval() to encode without training"
            )
        return self._num_batches


def refilled(former: Tensor, numbers: Sequence[float], device: torch.device) -> Tensor:
    """Return numbers (N,) on a device; in the memory of ``former`` (N,) if it fits, where CUDA graphs read."""
    values = torch.tensor(numbers)
    if former.device != device or len(former) != len(values):
        return values.to(device)
    return former.copy_(values.pin_memory() if device.type == "cuda" else values, non_blocking=True)


class ScheduledFloat:
    """A value that is linear between points in time, and constant before the first and after the last point.

    Args:
        points: (batches, value), ordered by batches.
    """

    def __init__(self, batch_count: BatchCount, *points: tuple[float, float]) -> None:
        self.batch_count = batch_count
        self.times = [time for time, _ in points]
        self.values = [value for _, value in points]

    def __float__(self) -> float:
        """Return the value at the current number of batches."""
        num_batches = self.batch_count.num_batches
        if num_batches <= self.times[0]:
            return self.values[0]
        if num_batches >= self.times[-1]:
            return self.values[-1]
        right = bisect.bisect_right(self.times, num_batches)
        start, end = self.times[right - 1], self.times[right]
        return self.values[right - 1] + (num_batches - start) / (end - start) * (
            self.values[right] - self.values[right - 1]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduledFloat) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((*self.times, *self.values))


@dataclass(frozen=True)
class Limit:
    """A limit of a parameter in the passes in which it is active, infinite in others.

    Attributes:
        value: the limit.
        infinite: −∞ of a least value, ∞ of a largest.
    """

    batch_count: BatchCount
    value: FloatLike
    infinite: float

    def __float__(self) -> float:
        """Return the limit in this pass."""
        return float(self.value) if self.batch_count.is_active(LIMIT_PROBABILITY) else self.infinite


@dataclass(eq=False)  # equal ones are drawn apart
class Event:
    """1 in the passes in which it happens, which are drawn for it alone, in others 0.

    For what changes encodings: layers would all be changed at once if one number decided for them.
    """

    probability: FloatLike

    def __float__(self) -> float:
        """Draw whether it happens."""
        return float(draw() < float(self.probability))


def limits(batch_count: BatchCount, least: FloatLike, most: FloatLike) -> tuple[Limit, Limit]:
    """Return limits of a parameter, see `limit_param_value`."""
    return Limit(batch_count, least, -math.inf), Limit(batch_count, most, math.inf)


def draw() -> float:
    """Draw from [0, 1)."""
    # from torch's generator, so that torch.manual_seed decides every random choice: the authors draw from Python's;
    # on the CPU, because reading a number from a GPU would wait for it
    return float(torch.rand(()))
