import itertools

import pytest
from lhotse import CutSet, MonoCut, SupervisionSegment

from asr.data.sampling import BatchSize, MicroBatches, duration_bins


def cuts_of(num: int) -> CutSet:
    return CutSet.from_cuts(
        MonoCut(f"cut{i}", 0, 1 + (i * 7 % 13) / 4, 0, [SupervisionSegment(f"s{i}", f"r{i}", 0, 1)]) for i in range(num)
    )


def ids(plan) -> list[list[str]]:
    return [[cut.id for cut in cuts] for _, cuts in plan]


@pytest.fixture
def order() -> MicroBatches:
    return MicroBatches(cuts_of(60), BatchSize(10.0, num_buckets=4), seed=3)


def test_an_epoch_holds_every_cut_once_within_the_duration(order):
    batches = list(order.epoch(0))
    assert sorted(itertools.chain.from_iterable(ids(batches))) == sorted(cut.id for cut in order.cuts)
    assert all(sum(cut.duration for cut in cuts) <= 10.0 for _, cuts in batches)


def test_order_depends_on_seed_and_epoch_alone(order):
    first = ids(order.epoch(0))
    ids(order.epoch(5))
    assert ids(order.epoch(0)) == first
    assert ids(MicroBatches(order.cuts, order.size, seed=3).epoch(0)) == first
    assert ids(order.epoch(1)) != first
    assert ids(MicroBatches(order.cuts, order.size, seed=4).epoch(0)) != first


def test_every_micro_batch_has_a_seed_of_its_own(order):
    seeds = [seed for epoch in range(3) for seed, _ in order.epoch(epoch)]
    assert len(set(seeds)) == len(seeds)


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


def test_one_bucket_and_equal_durations_work():
    same = CutSet.from_cuts(MonoCut(f"c{i}", 0, 2.0, 0) for i in range(9))
    for num_buckets in (1, 10):
        assert sum(map(len, ids(MicroBatches(same, BatchSize(4.0, num_buckets)).epoch(0)))) == 9


def test_bins_divide_the_audio_evenly():
    cuts = cuts_of(200)
    first, second = duration_bins(cuts, 3)
    total = sum(cut.duration for cut in cuts)
    shares = [
        sum(c.duration for c in cuts if low <= c.duration < high) / total for low, high in ((0, first), (first, second))
    ]
    assert all(0.2 < share < 0.45 for share in shares)


def test_no_cuts_and_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="no cuts"):
        MicroBatches(CutSet.from_cuts([]), BatchSize(10.0))
    for options in ({"max_duration_s": 0}, {"max_duration_s": 1, "num_buckets": 0}):
        with pytest.raises(ValueError, match="must be positive"):
            BatchSize(**options)
