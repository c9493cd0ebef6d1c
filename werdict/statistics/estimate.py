"""Error rates of systems and their differences, with intervals over utterances, speakers and seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from werdict.runs import Texts

MIN_GOOD = 2  # words that both systems have right between two segments


def matched_pairs(first: Texts, second: Texts) -> float | None:
    """Compare two systems on segments in which at least one of them has errors.

    Returns:
        The two-sided p-value of a normal z; None for fewer than two segments, or if all differences are equal.

    Reference:
        Gillick and Cox 1989, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP;
        sclite's MAPSSWE, src/sclite/mtchprs.c of NIST's SCTK.
        Differs: the alignment has the fewest edits, where sclite's has the least cost of 4 for a substitution and 3 for
        others; insertions after the last word count for both systems, where sclite drops those of the second one.
    """
    edges = [_edges(first), _edges(second)]
    starts, ends = (np.concatenate([bounds[place] for bounds in edges]) for place in (0, 1))
    signs = np.repeat([1, -1], [len(bounds[0]) for bounds in edges])
    if not len(starts):
        return None
    order = np.lexsort((ends, starts))
    starts, ends, signs = starts[order], np.maximum.accumulate(ends[order]), signs[order]
    segments = np.concatenate([[0], np.cumsum(starts[1:] - ends[:-1] >= MIN_GOOD)])
    differences = np.bincount(segments, weights=signs)
    num, mean = len(differences), float(differences.mean())
    sd = float(differences.std(ddof=1)) if num > 1 else 0.0
    return None if sd == 0 else float(2 * special.ndtr(-abs(mean) / (sd / math.sqrt(num))))


def _edges(texts: Texts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each error starts and ends, in words of all references, with a gap between utterances."""
    starts, ends, offset = [], [], 0
    for edits in texts.edits:
        for edit in edits:
            place = offset + edit.src_pos
            starts.append(place)
            ends.append(place + (edit.tag != "insert"))
        offset += edits.src_len + MIN_GOOD
    return np.array(starts, np.int64), np.array(ends, np.int64)


Array = NDArray[np.float64]

SMALLEST_P = 1e-12
FEW_UNITS = 12  # up to which a covariance of their errors between seeds is too uncertain to be used
BISECTIONS = 40  # of the interval of log p: p is right to 11 digits


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and units, with the two parts of its variance.

    Seeds and units are drawn from two populations and crossed: every seed is tested on every unit. So the mean is
    uncertain in two ways, and ``half_width`` adds them:

        h(α)² = t²(α, D) · seed_variance + t²(α, E - 1) · test_variance

    with t(α, ν) the two-sided quantile of Student's t, D = S - 1 or that of ``Contrasts``, and E the effective number
    of units. With one seed the first part is unknown and left out: then the interval says nothing about other seeds.

    The interval misses the true mean with a probability of at most α, if WERs are nearly normal and the two variance
    estimates independent. Proof: let w be the seeds' share of the true variance and q₁, q₂ the estimates divided by
    their true values. The mean lies within h(α) with the probability E G(w t₁² q₁ + (1 - w) t₂² q₂). G, the
    distribution function of χ² with one degree of freedom, is concave, so that this is at least
    w E G(t₁² q₁) + (1 - w) E G(t₂² q₂) = w (1 - α) + (1 - w) (1 - α).

    Attributes:
        mean: (R) a fraction; of a difference, negative in favor of the first system.
        seed_variance: (R) variance of the mean over other seeds; 0 for one seed.
        test_variance: (R) variance of the mean over other test sets.
        num_seeds: S.
        seed_freedom: (R) D, degrees of freedom of the first.
        effective_units: E, from 1 to U; see ``effective_number``.
        widest: half width above which an interval says nothing of a mean.
        own: the same estimate by the noise of its systems alone, if ``seed_variance`` is mixed with that of others.

    Reference:
        Obuchowski and Rockette 1995, Communications in Statistics - Simulation 24, 285-308, split the variance of a
        score in the same way for readers and cases of X-ray pictures; Hillis 2007, Statistics in Medicine 26, 596-619,
        gives their test degrees of freedom after Satterthwaite; both as in Chakraborty's RJafroc.
        Differs: Satterthwaite's degrees of freedom are too large if the seeds happen to agree. With 3 seeds this gave
        up to ten times the permitted false positives at the small α of eight systems; the sum of squares gives the
        permitted number or fewer (scripts/check_statistics).
    """

    mean: Array
    seed_variance: Array
    test_variance: Array
    num_seeds: int
    seed_freedom: Array | float
    effective_units: float
    widest: float = 1.0
    own: Estimate | None = None

    def half_width(self, alpha: float | Array) -> Array:
        """Return half the width (R) of the interval that misses the true mean with a probability of at most ``alpha``.

        ``alpha`` is one number, or (R). The width is infinite if it would be above ``widest``: a few unequal units say
        nothing of a mean.
        """
        tail = np.asarray(alpha) / 2
        squares = special.stdtrit(self.effective_units - 1, tail) ** 2 * self.test_variance
        if self.num_seeds > 1:
            squares = squares + special.stdtrit(self.seed_freedom, tail) ** 2 * self.seed_variance
        return np.where(squares <= self.widest**2, np.sqrt(squares), np.inf)

    def reversed(self) -> Estimate:
        """Return the estimate of the difference in the other direction."""
        return replace(self, mean=0 - self.mean, own=self.own and self.own.reversed())

    def p_value(self) -> Array:
        """Return the two-sided p-value of a true mean of 0: the α at which ``half_width`` ends at 0."""
        low, high = np.full(self.mean.shape, np.log(SMALLEST_P)), np.zeros(self.mean.shape)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            inside = self.half_width(np.exp(middle)) > np.abs(self.mean)
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return np.exp(high)

    def interval(self, alpha: float) -> tuple[Array, Array]:
        """Return both ends (R) of the interval of the mean."""
        return self.mean - self.half_width(alpha), self.mean + self.half_width(alpha)


def estimate(errors: NDArray[np.int64], words: NDArray[np.int64]) -> Estimate:
    """Estimate a mean WER, or from differences of errors a mean difference, with both parts of its variance.

    A WER is a ratio of sums over units. Without unit u, that of seed s moves by
    ``(errors[s, u] - WER[s] · words[u]) / (sum(words) - words[u])``. Products of these moves, summed over the units,
    estimate the variances of the WERs over other units, and their covariances (jackknife). The covariance between seeds
    is the part that more seeds cannot reduce; the variance between the WERs of the seeds contains all the rest.

    With many units of one size this equals a bootstrap over whole speakers, the same for all seeds and for both
    systems, but without its randomness. If sizes differ, the bootstrap's variance is too small: a long speaker pulls
    the WER towards its own. Utterances are not resampled within a speaker: their randomness is already part of the
    spread among speakers.

    Args:
        errors: (R, S, U) per seed and unit; of one system, or of one system minus those of another.
        words: (U,) in the references; of at least two units.

    Reference:
        Field and Welsh 2007, "Bootstrapping clustered data", Journal of the Royal Statistical Society B 69, 369-390:
        drawing whole clusters gives consistent variances where effects of the clusters are random. MacKinnon 2026,
        "When can we trust cluster-robust inference?", arXiv:2604.02000: leaving out one cluster at a time corrects them
        where few clusters have most of the weight.
    """
    num_seeds, num_units = errors.shape[-2:]
    total = words.sum()
    assert words.max() < total, "one unit has all words of the test set, which says nothing about others"
    rates = errors.sum(-1) / total
    moves = (errors - rates[..., None] * words) / (total - words)
    shrunk = (num_units - 1) / num_units
    each = shrunk * (moves**2).sum(-1).mean(-1)
    mean = shrunk * (moves.mean(-2) ** 2).sum(-1)
    if num_seeds == 1:
        seeds, test = np.zeros_like(mean), mean
    else:
        # WERs are rounded to whole words: seeds that agree may still differ by the variance of rounding, 1/12 word²
        spread = np.maximum(rates.var(-1, ddof=1), 1 / (12 * total**2))
        # mean² holds the variances of single seeds too; this leaves the covariance between seeds. With few speakers it
        # may be near 0 by chance, so that of few the whole stays: with a quarter, 20 seeds of eight systems on four
        # speakers had false alarms in 11 of 100 tables
        least = mean * min(1, FEW_UNITS / effective_number(words))
        seeds, test = spread / num_seeds, np.maximum((num_seeds * mean - each) / (num_seeds - 1), least)
    # systems that make the same errors on this test set may differ by a word on another
    test = np.maximum(test, 1 / total**2)
    return Estimate(rates.mean(-1), seeds, test, num_seeds, num_seeds - 1, effective_number(words))


def effective_number(words: NDArray[np.int64]) -> float:
    """Return how many units of one size would decide a WER as evenly as these, by their words (U,): U if all are equal.

    Reference:
        Kish 1992, "Weighting for unequal P_i", Journal of Official Statistics 8, 183-200, for the formula. Differs: it
        is used for degrees of freedom, which scripts/check_statistics justifies.
    """
    return float(words.sum() ** 2 / (words.astype(np.float64) ** 2).sum())
