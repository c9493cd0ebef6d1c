"""Which cuts of several corpora an epoch uses, if it does not use each of them once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asr.data.seeding import random_order


@dataclass(frozen=True)
class Mixing:
    """How often an epoch passes over each corpus, whose cuts stand together in the training set.

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
