"""What epochs of a mixture hear: shares by weight, every cut of a corpus equally often, nothing but seed and epoch."""

import numpy as np
import pytest
from lhotse import CutSet

from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler, Mixing
from tests.data.loading.test_sampling import cuts_of

SIZES = {"small": 7, "large": 53}
DURATIONS = np.concatenate([np.full(7, 2.0), np.linspace(1, 5, 53)])


def by_weight(**weights):
    return Mixing.by_weight(SIZES, DURATIONS, weights)


@pytest.mark.parametrize("weight", [3, 0.01, 1])
def test_over_the_epochs_seconds_are_shared_by_weight(weight):
    mixing = by_weight(small=weight, large=1)
    heard = np.concatenate([mixing.numbers(5, epoch) for epoch in range(20)])
    assert mixing.shares(heard, DURATIONS)["small"] == pytest.approx(weight / (weight + 1), abs=0.01)
    assert DURATIONS[heard].sum() == pytest.approx(20 * DURATIONS.sum(), rel=0.02)


def test_every_cut_of_a_corpus_is_heard_equally_often_up_to_one_time():
    mixing = by_weight(small=3, large=1)
    for num_epochs in (1, 2, 7):
        heard = np.concatenate([mixing.numbers(0, epoch) for epoch in range(num_epochs)])
        counts = np.bincount(heard, minlength=60)
        assert np.ptp(counts[:7]) <= 1
        assert np.ptp(counts[7:]) <= 1


def test_an_epoch_depends_on_seed_and_epoch_alone():
    first, again = by_weight(small=1, large=1), by_weight(small=1, large=1)
    first.numbers(3, 0)
    assert np.array_equal(first.numbers(3, 4), again.numbers(3, 4))
    assert not np.array_equal(first.numbers(3, 4), first.numbers(3, 5))
    assert not np.array_equal(first.numbers(3, 4), first.numbers(2, 4))


def test_the_order_of_ranks_is_that_of_one_process_and_shares_are_of_what_they_heard():
    cuts = CutSet.from_cuts(cuts_of(60))
    durations = np.array([cut.duration for cut in cuts])
    mixing = Mixing.by_weight(SIZES, durations, {"small": 5, "large": 1})
    order = DurationBucketSampler(cuts, BucketingConfig(10.0, num_buckets=4), seed=3, mixing=mixing)
    whole = [(seed, [cut.id for cut in batch]) for seed, batch in order.epoch(2)]
    ranks = [[(seed, [cut.id for cut in batch]) for seed, batch in order.updates(2, 0, rank, 2, 1)] for rank in (0, 1)]
    assert [item for pair in zip(*ranks, strict=True) for item in pair] == whole[: 2 * len(ranks[0])]
    assert order.shares(2, 0) == {}
    assert order.shares(2, len(whole))["small"] == pytest.approx(5 / 6, abs=0.1)
    assert sum(order.shares(2, 3).values()) == pytest.approx(1)
