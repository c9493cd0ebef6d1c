"""Samples micro-batches of cuts, with seeds derived from their use, so that no random state has to be saved."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from lhotse.cut import Cut
from pydantic import PositiveFloat, PositiveInt

NUM_BUCKETS, NUM_BUCKETS_LARGE, LARGE = 10, 30, 20_000  # of a corpus of fewer cuts, and of more


def seed_for(*key: str | int) -> int:
    """Return a 63-bit seed that depends on ``key`` alone, the same in every process and on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_order(num: int, *key: str | int) -> np.ndarray:
    """Return the numbers below ``num`` in a random order that depends on ``key`` alone."""
    # numpy may change `permutation` between versions; its raw Philox numbers are fixed by a paper
    return np.argsort(np.random.Philox(key=seed_for(*key)).random_raw(num), kind="stable")


@dataclass(frozen=True)
class BucketingConfig:
    """Size of a micro-batch, and duration buckets.

    Attributes:
        max_duration_s: seconds of audio per micro-batch with its padding: the longest cut times the number of cuts. A
            longer cut forms a micro-batch of its own.
        num_buckets: number of duration buckets; the cuts of a micro-batch come from one. None: 10, and 30 from 20,000
            cuts on, where a third of the padding is left and micro-batches are still drawn from many cuts.
        quadratic_duration_s: if given, a cut of d seconds counts d + d²/this, because attention grows with the square;
            15–40 is usual.
    """

    max_duration_s: PositiveFloat
    num_buckets: PositiveInt | None = None
    quadratic_duration_s: PositiveFloat | None = None

    def costs(self, durations: np.ndarray) -> np.ndarray:
        """Return the seconds that cuts of these durations in seconds count; any shape."""
        return durations + (durations**2 / self.quadratic_duration_s if self.quadratic_duration_s else 0)


@dataclass(frozen=True)
class Mixing:
    """Decides how often an epoch passes over each corpus, whose cuts stand together in the training set.

    An epoch lasts about as long as all cuts together. Over the epochs, every cut of a corpus is used equally often, up
    to one time: each epoch takes the next cuts of an endless row of random orders of the corpus.

    Attributes:
        sizes: number of cuts of each corpus, by name, in the order of the cuts.
        passes: over each corpus in an epoch.
    """

    sizes: Mapping[str, int]
    passes: Mapping[str, float]

    @classmethod
    def by_weight(cls, sizes: Mapping[str, int], durations: np.ndarray, weights: Mapping[str, float]) -> Mixing:
        """Return the mixing that gives each corpus its share of the seconds.

        Args:
            sizes: number of cuts of each corpus, in the order of the cuts.
            durations: (N,) seconds of all cuts.
            weights: share of each corpus, relative to the sum of all.
        """
        ends = np.cumsum(list(sizes.values()))
        seconds = dict(zip(sizes, (float(part.sum()) for part in np.split(durations, ends[:-1])), strict=True))
        unit = sum(seconds.values()) / sum(weights.values())
        return cls(sizes, {name: weights[name] * unit / seconds[name] for name in sizes})

    def numbers(self, seed: int, epoch: int) -> np.ndarray:
        """Return the numbers of the cuts of an epoch, corpus after corpus."""
        used, first = [], 0
        for name, size in self.sizes.items():
            start, end = (round(count * self.passes[name] * size) for count in (epoch, epoch + 1))
            while start < end:
                turn, skipped = divmod(start, size)
                taken = min(size - skipped, end - start)
                used.append(first + random_order(size, "corpus", name, seed, turn)[skipped : skipped + taken])
                start += taken
            first += size
        return np.concatenate(used)

    def shares(self, numbers: np.ndarray, durations: np.ndarray) -> dict[str, float]:
        """Return the share of each corpus in the seconds of cuts that were used.

        Args:
            numbers: (M,) of these cuts.
            durations: (N,) seconds of all cuts.
        """
        corpus = np.searchsorted(np.cumsum(list(self.sizes.values())), numbers, side="right")
        seconds = np.bincount(corpus, weights=durations[numbers], minlength=len(self.sizes))
        return dict(zip(self.sizes, (seconds / max(seconds.sum(), 1e-9)).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class BatchPlan(Sequence[np.ndarray]):
    """Numbers of the cuts of every micro-batch, in the order of an epoch: a few bytes for each cut.

    Attributes:
        numbers: of all cuts, those of a micro-batch together.
        ends: where each micro-batch ends in them.
        order: of the micro-batches.
    """

    numbers: np.ndarray
    ends: np.ndarray
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]  # no slices
        """Return the numbers of the cuts of a micro-batch."""
        at = int(self.order[index])
        return self.numbers[self.ends[at - 1] if at else 0 : self.ends[at]]


class DurationBucketSampler:
    """Samples micro-batches as a function of (seed, epoch), independent of history and number of ranks.

    An epoch is planned on durations alone, a second per million cuts, so that resuming in its middle reads no cuts.
    Every rank takes each ``world_size``-th micro-batch of the same order. The last micro-batches of an epoch that do
    not fill an update (``world_size * accumulate``) are left out, so that accumulation on one device and several
    devices give the same updates. lhotse's DynamicBucketingSampler depends on a buffer, and on the world size.

    Args:
        cuts: to sample from; an `IndexedCutSet` knows its durations, and selects by numbers.
        size: of micro-batches.
        seed: of the order.
        shuffle: False: the same order in all epochs, shortest first, for evaluation.
        mixing: which cuts an epoch uses; None: each once.
    """

    def __init__(
        self,
        cuts: Iterable[Cut],
        size: BucketingConfig,
        seed: int = 0,
        shuffle: bool = True,
        mixing: Mixing | None = None,
    ) -> None:
        self.mixing = mixing
        self.cuts: Sequence[Cut] = cuts if isinstance(cuts, Sequence) else list(cuts)
        self.size, self.seed, self.shuffle = size, seed, shuffle
        durations = getattr(cuts, "durations", None)
        self.durations = np.array([cut.duration for cut in self.cuts]) if durations is None else durations
        num_buckets = size.num_buckets or (NUM_BUCKETS if len(self.durations) < LARGE else NUM_BUCKETS_LARGE)
        self.duration_bins = duration_bins(self.durations, num_buckets)

    def plan(self, epoch: int) -> BatchPlan:
        """Return the numbers of the cuts of every micro-batch of an epoch, counted from 0."""
        if self.shuffle:
            used = np.arange(len(self.durations)) if self.mixing is None else self.mixing.numbers(self.seed, epoch)
            order = used[random_order(len(used), "order", "cuts", self.seed, epoch)]
        else:
            order = np.argsort(self.durations, kind="stable")
        buckets = np.searchsorted(self.duration_bins, self.durations[order], side="right")
        # stable, so that the cuts of a bucket keep their random order
        order = order[np.argsort(buckets, kind="stable")]
        order = order.astype(np.int32) if len(order) < 2**31 else order
        ends = np.cumsum(np.bincount(buckets, minlength=len(self.duration_bins) + 1))
        costs = self.size.costs(self.durations)
        batch_ends = array("q")
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            batch_ends.extend(start + batch_end for batch_end in _packed(order[start:end], costs, self.size))
        num = len(batch_ends)
        shuffled = random_order(num, "order", "micro-batches", self.seed, epoch) if self.shuffle else np.arange(num)
        return BatchPlan(order, np.array(batch_ends, dtype=order.dtype), shuffled.astype(order.dtype))

    def shares(self, epoch: int, num_micro_batches: int) -> dict[str, float]:
        """Return the share of each corpus of a mixture in the seconds used since an epoch began, over all ranks."""
        if self.mixing is None or not num_micro_batches:
            return {}
        plan = self.plan(epoch)
        return self.mixing.shares(np.concatenate([plan[i] for i in range(num_micro_batches)]), self.durations)

    def epoch(self, epoch: int) -> Iterator[tuple[int, Sequence[Cut]]]:
        """Yield (seed of the micro-batch, cuts) in the global order of an epoch."""
        plan = self.plan(epoch)
        return (self._item(epoch, i, plan) for i in range(len(plan)))

    def updates(
        self, epoch: int, start: int, rank: int, world_size: int, accumulate: int
    ) -> Iterator[tuple[int, Sequence[Cut]]]:
        """Yield (seed, cuts) of the micro-batches of one rank in an epoch.

        Args:
            epoch: counted from 0.
            start: micro-batches of this rank to skip, processed before an interruption.
            rank: of this process.
            world_size: number of processes.
            accumulate: micro-batches of one process per update.
        """
        plan = self.plan(epoch)
        # a rank with one micro-batch more would wait for the gradients of the others forever
        num_whole = len(plan) // (world_size * accumulate) * world_size * accumulate
        return (self._item(epoch, i, plan) for i in range(rank + start * world_size, num_whole, world_size))

    def count_updates(self, epoch: int, micro_batches_per_update: int) -> int:
        """Return the number of updates of an epoch."""
        return len(self.plan(epoch)) // micro_batches_per_update

    def largest_per_bucket(self, text_lengths: np.ndarray) -> list[np.ndarray]:
        """Return the numbers (M,) of the cuts of each duration bucket's micro-batch with the most counted seconds.

        Its longest cut comes first, and then the one with the longest text in its bucket, in the place of another: the
        memory of a transducer grows with the product of both.

        Args:
            text_lengths: (N,) of all cuts, in tokens or frames.
        """
        bucket_of = np.searchsorted(self.duration_bins, self.durations, side="right")
        largest: dict[int, tuple[float, np.ndarray]] = {}
        for part in self.plan(0):
            longest_first = part[np.argsort(-self.durations[part], kind="stable")]
            counted = float(self.size.costs(self.durations[longest_first[0]])) * len(part)
            bucket = int(bucket_of[longest_first[0]])
            if counted > largest.get(bucket, (0.0, part))[0]:
                largest[bucket] = (counted, longest_first)
        batches = []
        for bucket, (_, part) in sorted(largest.items()):
            members = np.flatnonzero(bucket_of == bucket)
            longest_text = members[text_lengths[members].argmax()]
            others = part[1:][part[1:] != longest_text]
            first = [part[0]] if longest_text == part[0] else [part[0], longest_text]
            batches.append(np.array([*first, *others][: len(part)]))
        return batches

    def select(self, numbers: Iterable[int]) -> Sequence[Cut]:
        """Return the cuts of these numbers, in their order."""
        select = getattr(self.cuts, "select", None)
        return select(numbers) if select is not None else [self.cuts[int(i)] for i in numbers]

    def _item(self, epoch: int, index: int, plan: BatchPlan) -> tuple[int, Sequence[Cut]]:
        return seed_for("micro-batch", self.seed, epoch, index), self.select(plan[index])


def duration_bins(durations: np.ndarray, num_buckets: int) -> list[float]:
    """Return the durations in seconds that divide ``durations`` (N,) into buckets of about equal sums; may be empty."""
    ordered = np.sort(durations)
    share = np.cumsum(ordered) / ordered.sum()
    at = np.searchsorted(share, np.arange(1, num_buckets) / num_buckets)
    # many cuts of one duration give several equal edges, and buckets without cuts
    edges = np.unique(ordered[at])
    return [float(edge) for edge in edges if ordered[0] < edge < ordered[-1]]


def _packed(numbers: np.ndarray, costs: np.ndarray, size: BucketingConfig) -> Iterator[int]:
    """Yield the ends of the micro-batches of a bucket: as many cuts in a row as fit, all padded to the longest."""
    start, longest = 0, 0.0
    for end, cost in enumerate(costs[numbers].tolist()):
        longest = max(longest, cost)
        if longest * (end - start + 1) > size.max_duration_s and end > start:
            yield end
            start, longest = end, cost
    if len(numbers):
        yield len(numbers)
