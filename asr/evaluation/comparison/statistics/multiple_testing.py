"""Correction of p-values for the number of pairs that are tested on one test set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Pair = tuple[str, str]


def pair_weights(pairs: Sequence[Pair], baseline: str | None) -> Array:
    """Return each pair's share of the permitted false alarms.

    Pairs with the baseline are few and chosen in advance: together they get one half, or their equal share if that is
    more. The best system is known only after all pairs were tested, and the best of many looks better than it is.
    Therefore all other pairs share the rest, although the report shows only those with the best.
    """
    with_baseline = np.array([baseline in pair for pair in pairs])
    equal, number = 1 / len(pairs), int(with_baseline.sum())
    if number in (0, len(pairs)):
        return np.full(len(pairs), equal)
    share = max(0.5 / number, equal)
    return np.where(with_baseline, share, (1 - number * share) / (len(pairs) - number))


def holm(p_values: Array, weights: Array | None = None) -> Array:
    """Adjust p-values (..., M): with M true hypotheses, any falls below α with a probability of at most α.

    Args:
        p_values: one per hypothesis of a family.
        weights: (M,) shares of α, above 0, for hypotheses of different importance; None: equal shares.

    Reference:
        Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
        65-70: hypotheses in the order of p / weight, each tested at its share of the remaining weight.
    """
    shares = np.broadcast_to(np.ones(p_values.shape[-1]) if weights is None else weights, p_values.shape)
    order = np.argsort(p_values / shares, axis=-1)
    ratios, sorted_shares = (np.take_along_axis(values, order, -1) for values in (p_values / shares, shares))
    remaining = np.cumsum(sorted_shares[..., ::-1], axis=-1)[..., ::-1]
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(ratios * remaining, axis=-1), 1), -1)
    return adjusted
