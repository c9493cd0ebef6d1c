"""Which cuts form a micro-batch, and in which order."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler

from asr.data.seeding import seed_for


@dataclass(frozen=True)
class BatchSize:
    """How many cuts go into a micro-batch.

    Attributes:
        max_duration_s: seconds of audio per micro-batch.
        num_buckets: duration buckets; cuts of a micro-batch come from one.
        quadratic_duration_s: if given, longer cuts count more (attention grows with the square); 15–40 is usual.
        shuffle_buffer_cuts: how many cuts are shuffled at a time.
    """

    max_duration_s: float
    num_buckets: int = 10
    quadratic_duration_s: float | None = None
    shuffle_buffer_cuts: int = 20_000

    def __post_init__(self) -> None:
        for name in ("max_duration_s", "num_buckets", "shuffle_buffer_cuts"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, given {getattr(self, name)}")
        if self.quadratic_duration_s is not None and self.quadratic_duration_s <= 0:
            raise ValueError(f"quadratic_duration_s must be positive or null, given {self.quadratic_duration_s}")


class MicroBatches:
    """The micro-batches of an epoch: a function of (seed, epoch), whatever ran before and however many ranks there are.

    Every rank walks through the same global order and takes each ``world_size``-th micro-batch. Micro-batches that do
    not fill a whole update (``world_size * accumulate`` of them) at the end of an epoch are left out, so that
    accumulating on one device and spreading over several give the same updates.

    Args:
        cuts: what to draw from.
        size: how many cuts go together.
        seed: of the order.
        shuffle: whether the order changes with the epoch; False also keeps every cut (for evaluation).
    """

    def __init__(self, cuts: CutSet, size: BatchSize, seed: int = 0, shuffle: bool = True) -> None:
        self.cuts, self.size, self.seed, self.shuffle = cuts, size, seed, shuffle
        self.duration_bins = duration_bins(cuts, size.num_buckets)

    def epoch(self, epoch: int) -> Iterator[tuple[int, CutSet]]:
        """Yield (seed of the micro-batch, cuts) in the global order of an epoch."""
        for index, cuts in enumerate(self._sampler(epoch)):
            yield seed_for("micro-batch", self.seed, epoch, index), cuts

    def updates(self, epoch: int, start: int, rank: int, world_size: int, accumulate: int) -> Iterator:
        """Yield what one rank processes in an epoch.

        Args:
            epoch: counted from 0.
            start: micro-batches of this rank to leave out, because they were processed before an interruption.
            rank: of this process.
            world_size: number of processes.
            accumulate: micro-batches of one process per update.
        """
        whole_updates = _groups(self.epoch(epoch), world_size * accumulate)
        mine = (group[rank::world_size] for group in whole_updates)
        return itertools.islice(itertools.chain.from_iterable(mine), start, None)

    def count_updates(self, epoch: int, micro_batches_per_update: int) -> int:
        """Return the number of updates of an epoch; reads durations, no audio."""
        return sum(1 for _ in _groups(self.epoch(epoch), micro_batches_per_update))

    def _sampler(self, epoch: int) -> DynamicBucketingSampler | DynamicCutSampler:
        size = self.size
        options = {
            "max_duration": size.max_duration_s,
            "quadratic_duration": size.quadratic_duration_s,
            "shuffle": self.shuffle,
            "seed": seed_for("order", self.seed) % 2**31,
            "drop_last": False,
            # one walk through the data for all ranks: lhotse's own sharding depends on their number
            "world_size": 1,
            "rank": 0,
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*eagerly read CutSet.*")
            if self.duration_bins:
                bins = {"duration_bins": self.duration_bins, "num_buckets": None}
                sampler = DynamicBucketingSampler(self.cuts, buffer_size=size.shuffle_buffer_cuts, **bins, **options)
            else:
                sampler = DynamicCutSampler(self.cuts, shuffle_buffer_size=size.shuffle_buffer_cuts, **options)
        sampler.set_epoch(epoch)
        return sampler


def duration_bins(cuts: CutSet, num_buckets: int, num_sampled: int = 10_000) -> list[float]:
    """Return durations in seconds that divide cuts into buckets of about the same total duration; may be empty."""
    durations = np.sort([cut.duration for cut in itertools.islice(cuts, num_sampled)])
    if len(durations) == 0:
        raise ValueError("there are no cuts to draw from; prepare the data again and read its table")
    share = np.cumsum(durations) / durations.sum()
    at = np.searchsorted(share, np.arange(1, num_buckets) / num_buckets)
    edges = np.unique(durations[at])
    return [float(edge) for edge in edges if durations[0] < edge < durations[-1]]


def _groups(items: Iterator, size: int) -> Iterator[list]:
    """Yield whole groups of ``size`` items; what remains is left out."""
    while len(group := list(itertools.islice(items, size))) == size:
        yield group
