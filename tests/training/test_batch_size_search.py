"""What fits into memory is measured on real updates, and a proposal never promises more than was seen to fit."""

import math

import numpy as np
import pytest
import torch
from lhotse import CutSet, MonoCut

from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.training import batch_size_search
from asr.training.batch_size_search import BatchSizeSearch, Bucket, Measured, memory_of, search_batch_size
from tests.training.tiny import batch_of, tiny_module, tiny_trainer

BASE, PER_FRAME = 1_000, 10


class Dataset:
    """Cuts of a hundred frames per second."""

    def __getitem__(self, item):
        _, cuts = item
        return batch_of(*(round(100 * cut.duration) for cut in cuts))


class FakeMemory:
    """Counts the frames of the micro-batch that was seen last, padding included."""

    name, available = "a fake", 100_000

    def __init__(self) -> None:
        self.frames, self.starts = 0, 0

    def now(self) -> int:
        return BASE

    def start(self) -> None:
        self.frames, self.starts = 0, self.starts + 1

    def peak(self) -> int:
        return BASE + PER_FRAME * self.frames


class Setup:
    """A tiny model, 40 cuts of 0.5 to 2 s, and a memory that holds ``most`` frames."""

    def __init__(self, monkeypatch, most: float = math.inf) -> None:
        self.memory, self.trainers, self.module = FakeMemory(), [], tiny_module()
        monkeypatch.setattr(batch_size_search, "memory_of", lambda *_: self.memory)

        def see(_, args) -> None:
            self.memory.frames = args[0].shape[0] * args[0].shape[1]
            if self.memory.frames > most:
                raise torch.OutOfMemoryError("CUDA out of memory")

        self.module.recognizer.normalize.register_forward_pre_hook(see)
        cuts = CutSet.from_cuts(MonoCut(f"c{i}", 0, 0.5 + i % 4 * 0.5, 0) for i in range(40))
        self.order = DurationBucketSampler(cuts, BucketingConfig(8.0, num_buckets=2), seed=1)

    def make_trainer(self, callbacks, num_updates):
        self.trainers.append(tiny_trainer(num_updates, callbacks))
        return self.trainers[-1]

    def run(self, **options) -> BatchSizeSearch:
        text_lengths = np.arange(len(self.order.durations))
        return search_batch_size(self.module, Dataset(), self.order, text_lengths, self.make_trainer, **options)


def test_the_largest_micro_batch_of_every_bucket_and_its_parts_are_measured(monkeypatch):
    setup = Setup(monkeypatch)
    found = setup.run()
    # 8 s each
    assert [(b.sizes[-1].num_cuts, b.sizes[-1].longest_s) for b in found.buckets] == [(8, 1.0), (4, 2.0)]
    for bucket in found.buckets:
        for size in bucket.sizes:
            frames = size.num_cuts * round(100 * size.longest_s)
            assert size.peak == BASE + PER_FRAME * frames
            assert size.counted_s == pytest.approx(frames / 100)
            assert size.seconds > 0
    assert [size.num_cuts for size in found.buckets[-1].sizes] == [1, 2, 4]
    # a warm-up, three sizes and the largest once more, each an update of its own
    assert [trainer.global_step for trainer in setup.trainers[1:]] == [5, 5]


def test_the_proposal_fills_nine_tenths_of_the_memory(monkeypatch):
    found = Setup(monkeypatch).run()
    # a second takes 1000 bytes
    assert found.proposed_s == (0.9 * 100_000 - BASE) // 1000
    assert Setup(monkeypatch).run(reserved=50_000).proposed_s == (0.9 * 100_000 - BASE - 50_000) // 1000


def test_what_does_not_fit_is_found_and_stays_below(monkeypatch):
    found = Setup(monkeypatch, most=500).run()
    assert [[size.peak is None for size in bucket.sizes] for bucket in found.buckets] == [
        [False, False, True],
        [False, False, True],
    ]
    # the fake says that there is room for more, and the error that there is not: half of 8 s did fit
    assert found.proposed_s == 4.0
    # nothing fits at all: half of the smallest that was tried
    assert Setup(monkeypatch, most=1).run().proposed_s == 1.0


def test_weights_and_random_numbers_are_as_before(monkeypatch):
    setup = Setup(monkeypatch)
    weights = [p.clone() for p in setup.module.parameters()]
    state = torch.get_rng_state()
    setup.run()
    assert all(map(torch.equal, weights, setup.module.parameters()))
    assert torch.equal(state, torch.get_rng_state())
    assert setup.module.guard.counts["skipped_updates"] == 0


def test_the_line_through_the_base_is_never_below_what_activations_take():
    # 10 bytes per second; small micro-batches are hidden below what the optimizer takes
    sizes = tuple(Measured(1, 1.0, x, max(150, 100 + 10 * x)) for x in (1.0, 2.0, 20.0))
    assert Bucket(100, sizes).bytes_per_second() >= 10
    assert Bucket(100, sizes).bytes_per_second() == pytest.approx(10, rel=0.05)
    assert Bucket(100, (Measured(1, 1.0, 5.0, 90),)).limit_s(1000) == math.inf
    # one that foresees the failure is believed
    assert Bucket(50, (Measured(1, 5.0, 5.0, 550), Measured(2, 5.0, 10.0, None))).limit_s(750) == 7.0


def test_the_tightest_bucket_decides_and_nothing_is_promised_where_nothing_fits():
    def search(*slopes: float, base: int = 0) -> BatchSizeSearch:
        buckets = tuple(Bucket(base, (Measured(1, 1.0, 10.0, base + int(10 * slope)),)) for slope in slopes)
        return BatchSizeSearch("fake", 1000, 0, buckets)

    assert search(1, 9, 3).proposed_s == 100
    # rounded down: to tenths where a second is much
    assert search(170).proposed_s == 5.2
    assert search(7).proposed_s == 128
    assert search(1, base=2000).proposed_s == 0
    assert search(0).proposed_s == math.inf


def test_memory_of_a_process_sees_what_is_held_for_a_moment():
    memory = memory_of(torch.device("cpu"))
    size = 200 * 2**20
    memory.start()
    before = memory.now()
    held = torch.ones(size, dtype=torch.uint8)
    del held
    assert size * 0.9 < memory.peak() - before < size * 1.3
    memory.start()
    assert memory.peak() - before < size / 2
    # processes share the memory of a machine
    assert memory_of(torch.device("cpu"), 4).available == pytest.approx(memory.available / 4, rel=0.2)
