"""Which cuts an epoch hears, in which batches and order, also of a mixture."""

import itertools
import pickle

import numpy as np
import pytest
from lhotse import CutSet, MonoCut, SupervisionSegment

from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler, Mixing
from asr.data.manifests.lhotse_manifests import to_line
from asr.data.preparation.prepared import IndexedCutSet


def cuts_of(num: int) -> CutSet:
    return CutSet.from_cuts(
        MonoCut(f"cut{i}", 0, 1 + (i * 7 % 13) / 4, 0, [SupervisionSegment(f"s{i}", f"r{i}", 0, 1)]) for i in range(num)
    )


def ids(plan) -> list[list[str]]:
    return [[cut.id for cut in cuts] for _, cuts in plan]


@pytest.fixture
def order() -> DurationBucketSampler:
    return DurationBucketSampler(cuts_of(60), BucketingConfig(10.0, num_buckets=4), seed=3)


def test_order_depends_on_seed_and_epoch_alone(order):
    first = ids(order.epoch(0))
    ids(order.epoch(5))
    assert ids(order.epoch(0)) == first
    assert ids(DurationBucketSampler(order.cuts, order.size, seed=3).epoch(0)) == first
    assert ids(order.epoch(1)) != first
    assert ids(DurationBucketSampler(order.cuts, order.size, seed=4).epoch(0)) != first


def test_ranks_together_process_what_one_process_accumulates(order):
    ranks = [list(order.updates(2, 0, rank, world_size=2, accumulate=1)) for rank in range(2)]
    alone = list(order.updates(2, 0, 0, world_size=1, accumulate=2))
    assert len(ranks[0]) == len(ranks[1])
    together = list(itertools.chain.from_iterable(zip(*ranks, strict=True)))
    assert [seed for seed, _ in together] == [seed for seed, _ in alone]
    assert ids(together) == ids(alone)
    assert order.count_updates(2, 2) == len(ranks[0])


def test_a_resumed_epoch_continues_behind_what_was_processed(order):
    whole = ids(order.updates(1, 0, 1, world_size=2, accumulate=2))
    assert ids(order.updates(1, 3, 1, world_size=2, accumulate=2)) == whole[3:]


@pytest.mark.parametrize("num_buckets", [1, 4])
def test_every_cut_is_kept_where_nothing_fills_a_batch_and_where_one_overfills_it(num_buckets):
    long = CutSet.from_cuts(MonoCut(f"c{i}", 0, duration, 0) for i, duration in enumerate((1.0, 1.5, 40.0, 2.0, 3.0)))
    for size in (BucketingConfig(5.0, num_buckets), BucketingConfig(500.0, num_buckets)):
        for shuffle in (True, False):
            found = ids(DurationBucketSampler(long, size, shuffle=shuffle).epoch(0))
            assert sorted(itertools.chain.from_iterable(found)) == [f"c{i}" for i in range(5)]


@pytest.mark.parametrize("num_buckets", [1, 4])
def test_long_cuts_count_more_where_that_is_asked_for(num_buckets):
    same = CutSet.from_cuts(MonoCut(f"c{i}", 0, 10.0, 0) for i in range(12))
    plain = ids(DurationBucketSampler(same, BucketingConfig(40.0, num_buckets)).epoch(0))
    # 10 s count as 10 + 10² / 10 = 20 s
    quadratic = ids(DurationBucketSampler(same, BucketingConfig(40.0, num_buckets, quadratic_duration_s=10.0)).epoch(0))
    assert [max(map(len, plain)), max(map(len, quadratic))] == [4, 2]


def test_the_cuts_of_a_micro_batch_come_from_one_bucket(order):
    assert len(order.duration_bins) == 3
    for part in order.plan(0):
        assert len(set(np.searchsorted(order.duration_bins, order.durations[part], side="right"))) == 1


def test_padding_counts_as_audio():
    durations = (1.0, 1.5, 40.0, 2.0, 3.0, 2.5, 1.0)
    cuts = CutSet.from_cuts(MonoCut(f"c{i}", 0, duration, 0) for i, duration in enumerate(durations))
    for num_buckets in (1, 3):
        for shuffle in (True, False):
            order = DurationBucketSampler(cuts, BucketingConfig(5.0, num_buckets), shuffle=shuffle)
            for epoch in range(5):
                for _, batch in order.epoch(epoch):
                    longest = max(cut.duration for cut in batch)
                    assert longest * len(batch) <= 5.0 or len(batch) == 1


def test_the_largest_micro_batch_of_every_bucket_starts_with_its_longest_cut(order):
    text_lengths = np.random.default_rng(0).permutation(len(order.durations))
    largest = order.largest_per_bucket(text_lengths)
    assert len(largest) == len(order.duration_bins) + 1
    for part, low, high in zip(largest, [0, *order.duration_bins], [*order.duration_bins, 99], strict=True):
        assert low <= order.durations[part].min() <= order.durations[part].max() < high
        assert order.durations[part][0] == order.durations[part].max()
        members = np.flatnonzero((low <= order.durations) & (order.durations < high))
        assert text_lengths[part[:2]].max() == text_lengths[members].max()
        assert len(set(part.tolist())) == len(part)
        seconds = [order.durations[p].max() * len(p) for p in order.plan(0) if low <= order.durations[p[0]] < high]
        assert order.durations[part].max() * len(part) == max(seconds)
    assert [cut.id for cut in order.select(largest[0])] == [f"cut{i}" for i in largest[0]]


def test_an_order_that_was_drawn_once_stays():
    # Philox's raw numbers: a training that is resumed with another numpy must find the same order
    order = DurationBucketSampler(cuts_of(12), BucketingConfig(8.0, num_buckets=2), seed=1)
    assert [part.tolist() for part in order.plan(0)] == [[1, 6], [8, 10], [11, 3], [0, 4, 2], [7], [9, 5]]
    assert [seed for seed, _ in order.epoch(0)][:2] == [6276790605548128671, 5280777427722355430]


def test_cuts_on_disk_are_drawn_like_cuts_in_memory(tmp_path):
    IndexedCutSet.write(tmp_path / "cuts_train", ((to_line(cut).encode(), cut.duration) for cut in cuts_of(60)))
    table = IndexedCutSet(tmp_path / "cuts_train")
    assert (len(table), [table[i].id for i in (3, 4)]) == (60, ["cut3", "cut4"])
    assert list(table) == list(cuts_of(60))
    stored, listed = (DurationBucketSampler(cuts, BucketingConfig(10.0, 4), seed=3) for cuts in (table, cuts_of(60)))
    assert ids(stored.epoch(1)) == ids(listed.epoch(1))
    (_, cuts), *_ = stored.epoch(0)
    assert [cut.id for cut in cuts[1:]] == [cut.id for cut in cuts][1:]
    # neither cuts nor durations were read into memory
    assert stored.cuts is table
    assert stored.durations is table.durations
    again = pickle.loads(pickle.dumps(table))
    assert again[7] == table[7]


class Durations(list):
    """Cuts of which only the durations are known."""

    def __init__(self, durations: np.ndarray) -> None:
        super().__init__(range(len(durations)))
        self.durations = durations


def librispeech_like(num: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    usual = rng.random(num) < 0.72
    return np.round(np.clip(np.where(usual, rng.normal(14.6, 1.1, num), rng.uniform(1.3, 14, num)), 1.3, 35), 2)


def test_a_large_corpus_has_more_buckets_and_less_padding():
    durations = librispeech_like(20_000)
    padding = {}
    for num_buckets in (10, None):
        order = DurationBucketSampler(Durations(durations), BucketingConfig(200.0, num_buckets))
        padded = sum(durations[part].max() * len(part) for part in order.plan(0))
        padding[num_buckets] = 1 - durations.sum() / padded
        assert sorted(np.concatenate(order.plan(0)).tolist()) == list(range(len(durations)))
    assert padding[None] < 0.06 < padding[10]
    assert len(order.duration_bins) == 29
    smaller = DurationBucketSampler(Durations(durations[:-1]), BucketingConfig(200.0))
    assert len(smaller.duration_bins) == 9


def test_a_plan_is_a_sequence_of_a_few_bytes_for_each_cut():
    durations = librispeech_like(20_000)
    plan = DurationBucketSampler(Durations(durations), BucketingConfig(40.0)).plan(0)
    parts = list(plan)
    assert plan[-1].tolist() == parts[-1].tolist()
    assert plan.numbers.nbytes + plan.ends.nbytes + plan.order.nbytes < 12 * len(durations)


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
