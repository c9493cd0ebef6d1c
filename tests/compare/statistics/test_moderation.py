"""Variances over seeds that are estimated together."""

import itertools

import numpy as np
import pytest

from asr.compare.statistics.estimate import Estimate
from asr.compare.statistics.moderation import largest_block, moderated, pooled_variance
from asr.compare.statistics.multiple_testing import simultaneous


def estimates_of(wers: np.ndarray) -> list[Estimate]:
    """The paired estimates of all pairs of systems (R, K, S), without a part of the test set."""
    differences = [wers[:, a] - wers[:, b] for a, b in itertools.combinations(range(wers.shape[1]), 2)]
    num = wers.shape[-1]
    return [Estimate(d.mean(-1), d.var(-1, ddof=1) / num, 0 * d[:, 0], num, num - 1, 40) for d in differences]


def made(num_systems: int, num_seeds: int, num: int = 2000, noisy: float = 1.0) -> np.ndarray:
    wers = np.random.default_rng(0).normal(size=(num, num_systems, num_seeds))
    wers[:, 0] *= noisy
    return wers


def together(wers: np.ndarray) -> list[Estimate]:
    return moderated(estimates_of(wers), pooled_variance(wers))


def test_two_systems_keep_the_paired_t_test():
    wers = made(2, 4)
    (found,), (own,) = together(wers), estimates_of(wers)
    assert found.seed_variance == pytest.approx(own.seed_variance)
    assert np.all(found.seed_freedom == 3)


def test_a_common_part_of_each_seed_changes_nothing():
    wers = made(5, 3)
    shifted = wers + 10 * np.random.default_rng(1).normal(size=(len(wers), 1, 3))
    for one, other in zip(together(wers), together(shifted), strict=True):
        assert one.seed_variance == pytest.approx(other.seed_variance)


def test_alike_systems_share_their_degrees_of_freedom_and_different_ones_do_not():
    alike = together(made(8, 5))[0].seed_freedom
    different = together(made(8, 5, noisy=30.0))[0].seed_freedom
    assert alike.min() >= 4
    assert alike.max() == pytest.approx(4 + 0.4 * 6 * 4)
    assert np.median(alike) > 9
    assert np.median(different) < 8


@pytest.mark.parametrize(("num_systems", "num_seeds"), [(3, 2), (8, 3), (8, 10)])
def test_the_pooled_variance_is_right_on_average_and_no_variance_is_drawn_below_its_own(num_systems, num_seeds):
    wers = made(num_systems, num_seeds)
    assert 1.95 < pooled_variance(wers).value.mean() < 2.3  # of few seeds too large rather than too small
    for found, own in zip(together(wers), estimates_of(wers), strict=True):
        assert np.all(found.seed_variance >= own.seed_variance)
        assert 2 / num_seeds < found.seed_variance.mean() < 1.7 * 2 / num_seeds


def test_an_unstable_system_does_not_hide_what_distinguishes_the_others():
    wers = 0.01 * made(8, 5, num=500)
    wers[:, 7] *= 10
    wers[:, 0] -= 0.05
    first_two = simultaneous(together(wers), alpha=0.05).adjusted[:, 0]
    assert (first_two <= 0.05).mean() > 0.7


def test_systems_with_one_value_for_all_seeds_tell_nothing_of_the_others():
    wers = made(8, 5)
    wers += 3 * np.random.default_rng(1).normal(size=(len(wers), 1, 5))
    wers[:, 5:] = 1.0
    assert np.median(pooled_variance(wers).value) == pytest.approx(2, rel=0.15)
    wers[:, 1:] = 1.0
    assert np.all(pooled_variance(wers).prior == 0)


def test_a_pair_that_varies_much_more_than_others_keeps_the_paired_t_test():
    wers = made(8, 5, noisy=10.0)
    assert np.median(together(wers)[0].seed_freedom) == pytest.approx(4, abs=0.1)


def test_seeds_that_agree_to_the_word_have_variances():
    wers = np.zeros((1, 3, 2))
    for found in together(wers):
        assert np.isfinite(found.seed_variance).all()
        assert np.isfinite(found.seed_freedom).all()


@pytest.mark.parametrize(
    ("seeds", "systems", "common"),
    [
        ({"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 3]}, "abc", [1, 2, 3]),
        ({"a": [1, 2, 3], "b": [1, 2, 3, 4], "c": [1, 2, 3, 5], "d": [1]}, "abc", [1, 2, 3]),
        ({"a": [1, 2, 3, 4], "b": [1, 2, 3, 4], "c": [1, 2]}, "ab", [1, 2, 3, 4]),
        ({"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2]}, "abc", [1, 2]),  # as many degrees of freedom, more systems
        ({"a": [1, 2], "b": [3, 4], "c": [3, 4]}, "bc", [3, 4]),
        ({"a": [1, 2], "b": [2, 3]}, "", []),
        ({"a": [1, 2]}, "", []),
    ],
)
def test_the_systems_that_are_pooled_have_the_most_degrees_of_freedom(seeds, systems, common):
    assert largest_block(seeds) == (list(systems), common)
