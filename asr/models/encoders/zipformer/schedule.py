"""Values that change in the course of training, and the clock that they all read.

A batch here is 600 seconds of audio, as in icefall's ``get_adjusted_batch_count``, so that schedules mean the same
whatever the batch size, the number of processes, and accumulation.
"""

from __future__ import annotations

import bisect

import torch


class TrainingClock:
    """Says how far training is to everything that was given this clock.

    It has no default: what reads it before it was set fails, instead of training with values of another time.
    """

    def __init__(self) -> None:
        self._num_batches: float | None = None

    def set(self, num_batches: float) -> None:
        """Set the time, in batches of 600 s of audio since training began."""
        if not num_batches >= 0:
            raise ValueError(f"num_batches must be at least 0, given {num_batches}")
        self._num_batches = num_batches

    @property
    def num_batches(self) -> float:
        """The time that was set last.

        Raises:
            RuntimeError: none was set.
        """
        if self._num_batches is None:
            raise RuntimeError(
                "a Zipformer in training mode must know how far training is: call follow_training(audio_s) before each "
                "update, or eval() to encode without training"
            )
        return self._num_batches


class Scheduled:
    """A value that is linear between points in time, and constant before the first and behind the last.

    Args:
        clock: tells the time.
        points: (time, value), in the order of time.
    """

    def __init__(self, clock: TrainingClock, *points: tuple[float, float]) -> None:
        self.clock = clock
        self.times = [time for time, _ in points]
        self.values = [value for _, value in points]
        if not points or self.times != sorted(set(self.times)):
            raise ValueError(f"a schedule needs points at increasing times, given {points}")

    def __float__(self) -> float:
        """Return the value now."""
        now = self.clock.num_batches
        if now <= self.times[0]:
            return self.values[0]
        if now >= self.times[-1]:
            return self.values[-1]
        right = bisect.bisect_right(self.times, now)
        start, end = self.times[right - 1], self.times[right]
        return self.values[right - 1] + (now - start) / (end - start) * (self.values[right] - self.values[right - 1])


Value = float | Scheduled
"""A constant, or a value that changes with time; ``float()`` gives what it is now."""


def draw() -> float:
    """Draw from [0, 1), from torch's generator on the CPU, so that seeding torch decides every random choice.

    The authors draw from Python's.
    """
    return float(torch.rand(()))
