"""A WER, or a difference of two, over seeds and speakers: how large, and how sure.

R batch (simulations), S seeds, U units of the test set: speakers, or utterances where speakers are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

SMALLEST_P = 1e-12
BISECTIONS = 60  # halve the interval of log p down to the precision of a float


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and units with the two parts of its variance.

    Seeds and units are drawn from two populations and crossed: every seed is tested on every unit. So the mean is
    uncertain in two ways, and ``half_width`` adds them:

        h(α)² = t²(α, S - 1) · seed_variance + t²(α, U - 1) · test_variance

    with t(α, ν) the two-sided quantile of Student's t. With one seed the first part is not known, and the second one
    alone remains: it says nothing about other seeds.

    Such an interval misses the true mean with a probability of at most α, if WERs are nearly normal and the two
    estimates independent: let w be the share of the seeds in the true variance and q₁, q₂ the estimates divided by
    their true values. The mean falls within h(α) with the probability E G(w t₁² q₁ + (1 - w) t₂² q₂), where G, the
    distribution function of χ² with one degree of freedom, is concave; so that it is at least
    w E G(t₁² q₁) + (1 - w) E G(t₂² q₂) = w (1 - α) + (1 - w) (1 - α).

    Attributes:
        mean: (R) a fraction; below 0 where a difference favours the first.
        seed_variance: (R) of the mean, because other seeds would give another one; 0 for one seed.
        test_variance: (R) of the mean, because another test set would give another one.
        num_seeds: S.
        num_units: U, at least 2.

    Reference:
        Obuchowski and Rockette 1995, Communications in Statistics - Simulation 24, 285-308, split the variance of a
        score in the same way for readers and cases of X-ray pictures; Hillis 2007, Statistics in Medicine 26, 596-619,
        gives their test degrees of freedom after Satterthwaite; both as in Chakraborty's RJafroc.
        Differs: Satterthwaite's degrees of freedom come out too large where the seeds happen to agree. With 3 seeds
        that gave up to ten times the false positives asked for at the small α of eight contestants; the sum of squares
        gives what was asked for, or less (scripts/check_statistics.py).
    """

    mean: Array
    seed_variance: Array
    test_variance: Array
    num_seeds: int
    num_units: int

    def half_width(self, alpha: float | Array) -> Array:
        """Half the width of the interval that misses the true mean with a probability of at most ``alpha``."""
        squares = stats.t.isf(np.asarray(alpha) / 2, self.num_units - 1) ** 2 * self.test_variance
        if self.num_seeds > 1:
            squares = squares + stats.t.isf(np.asarray(alpha) / 2, self.num_seeds - 1) ** 2 * self.seed_variance
        return np.sqrt(squares)

    def p_value(self) -> Array:
        """Probability of a mean at least this far from 0, if the true one is 0: where ``half_width`` ends at 0."""
        low, high = np.full(self.mean.shape, np.log(SMALLEST_P)), np.zeros(self.mean.shape)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            inside = self.half_width(np.exp(middle)) > np.abs(self.mean)
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return np.exp(high)

    def smallest_detectable(self, alpha: float) -> Array:
        """True difference whose p-value would be below ``alpha`` with a probability of about 80 %.

        Reference:
            Bloom 1995, "Minimum detectable effects", Evaluation Review 19, 547-556: standard error times the sum of the
            quantiles for the level and for the power. Differs: two parts of the variance, each with its quantiles.
        """
        return self.half_width(alpha) + self.half_width(2 * (1 - 0.8))


def estimate(errors: NDArray[np.int64], words: NDArray[np.int64]) -> Estimate:
    """Estimate a mean WER, or with differences of errors a mean difference, with both parts of its variance.

    Every WER is a ratio of sums over units, so that unit u moves the WER of seed s by about
    ``(errors[s, u] - WER[s] · words[u]) / sum(words)``. Products of these moves, summed over the units, are the
    variances of the WERs and their covariances under another choice of units; the covariance between seeds is what no
    further seed would remove. The variance between the WERs of the seeds holds all the rest.

    For many units this is the variance among test sets of speakers drawn with replacement, each with all utterances,
    the same for all seeds and for both contestants; without the chance of drawing. Utterances are not drawn again
    within a speaker, because their chance is part of the spread among speakers already.

    Neither part may be smaller than what counting allows: WERs of seeds are rounded to whole words, and trainings that
    make the very same errors on this test set may differ in one word of another.

    Args:
        errors: (R, S, U) per seed and unit; of one contestant, or those of one minus those of the other.
        words: (U,) in the references; at least one in all.

    Raises:
        ValueError: there are less than two units.

    Reference:
        Field and Welsh 2007, "Bootstrapping clustered data", Journal of the Royal Statistical Society B 69, 369-390:
        drawing whole clusters gives consistent variances where effects of the clusters are random.
    """
    num_seeds, num_units = errors.shape[-2:]
    if num_units < 2:
        raise ValueError("a test set of a single utterance says nothing about others; give one with more")
    total = words.sum()
    rates = errors.sum(-1) / total
    moves = (errors - rates[..., None] * words) / total
    inflate = num_units / (num_units - 1)
    each = inflate * (moves**2).sum(-1).mean(-1)
    mean = inflate * (moves.mean(-2) ** 2).sum(-1)
    if num_seeds == 1:
        seeds, test = np.zeros_like(mean), mean
    else:
        spread = np.maximum(rates.var(-1, ddof=1), 1 / (12 * total**2))
        seeds, test = spread / num_seeds, (num_seeds * mean - each) / (num_seeds - 1)
    return Estimate(rates.mean(-1), seeds, np.maximum(test, 1 / total**2), num_seeds, num_units)


def holm(p_values: Array, weights: Array | None = None) -> Array:
    """Adjust p-values (..., M) so that one below α among M true hypotheses has at most the probability α.

    Args:
        p_values: of a family of hypotheses.
        weights: (M,) above 0: shares of α, where some hypotheses matter more than others; None: the same for all.

    Reference:
        Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
        65-70: the hypotheses in the order of p / weight, each at its share of the weight that is left.
    """
    shares = np.broadcast_to(np.ones(p_values.shape[-1]) if weights is None else weights, p_values.shape)
    order = np.argsort(p_values / shares, axis=-1)
    ratios, sorted_shares = (np.take_along_axis(values, order, -1) for values in (p_values / shares, shares))
    left = np.cumsum(sorted_shares[..., ::-1], axis=-1)[..., ::-1]
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(ratios * left, axis=-1), 1), -1)
    return adjusted
