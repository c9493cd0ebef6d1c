"""Variances over seeds that are estimated together."""

import itertools

import numpy as np
import pytest

from asr.evaluation.comparison.statistics.estimate import Estimate
from asr.evaluation.comparison.statistics.moderation import moderated


def estimates_of(wers: np.ndarray) -> list[Estimate]:
    """The paired estimates of all pairs of systems (R, K, S), without a part of the test set."""
    differences = [wers[:, a] - wers[:, b] for a, b in itertools.combinations(range(wers.shape[1]), 2)]
    num = wers.shape[-1]
    return [Estimate(d.mean(-1), d.var(-1, ddof=1) / num, 0 * d[:, 0], num, num - 1, 40) for d in differences]


def made(num_systems: int, num_seeds: int, num: int = 2000, noisy: float = 1.0) -> np.ndarray:
    wers = np.random.default_rng(0).normal(size=(num, num_systems, num_seeds))
    wers[:, 0] *= noisy
    return wers


def test_two_systems_keep_the_paired_t_test():
    wers = made(2, 4)
    (found,), (own,) = moderated(estimates_of(wers), wers), estimates_of(wers)
    assert found.seed_variance == pytest.approx(own.seed_variance)
    assert np.all(found.seed_freedom == 3)


def test_a_common_part_of_each_seed_changes_nothing():
    wers = made(5, 3)
    shifted = wers + 10 * np.random.default_rng(1).normal(size=(len(wers), 1, 3))
    for one, other in zip(moderated(estimates_of(wers), wers), moderated(estimates_of(shifted), shifted), strict=True):
        assert one.seed_variance == pytest.approx(other.seed_variance)


def test_alike_systems_share_their_degrees_of_freedom_and_different_ones_do_not():
    alike = moderated(estimates_of(made(8, 5)), made(8, 5))[0].seed_freedom
    different = moderated(estimates_of(made(8, 5, noisy=30.0)), made(8, 5, noisy=30.0))[0].seed_freedom
    assert alike.min() >= 4
    assert alike.max() == pytest.approx(4 + 0.8 * 6 * 4)
    assert np.median(alike) > 20
    assert np.median(different) < 8


@pytest.mark.parametrize(("num_systems", "num_seeds"), [(3, 2), (8, 3), (8, 10)])
def test_variances_are_right_on_average(num_systems, num_seeds):
    wers = made(num_systems, num_seeds)
    for found in moderated(estimates_of(wers), wers):
        assert found.seed_variance.mean() == pytest.approx(2 / num_seeds, rel=0.1)


def test_seeds_that_agree_to_the_word_have_variances():
    wers = np.zeros((1, 3, 2))
    for found in moderated(estimates_of(wers), wers):
        assert np.isfinite(found.seed_variance).all()
        assert np.isfinite(found.seed_freedom).all()
