"""The largest size that fits is found by doubling and bisection, on real updates of the largest micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lhotse import CutSet, MonoCut

from asr.commands.find_batch_size import BatchSizeSearch, bisect, search_batch_size
from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from tests.training.tiny import batch_of, tiny_module, tiny_trainer

LEAST, MOST = 2.0, 1000.0
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("start", [0.5, 40.0, 5000.0])
@pytest.mark.parametrize("limit", [2.0, 39.9, 41.0, 640.0, 999.9])
def test_the_largest_size_that_fits_is_found_within_a_few_percent(start, limit):
    tried = []

    def fits(size: float) -> bool:
        tried.append(size)
        return size <= limit

    found = bisect(fits, start, LEAST, MOST)
    assert limit / 1.05 <= found <= limit
    assert found in tried
    assert all(LEAST <= size <= MOST for size in tried)
    assert len(tried) == len(set(tried)) <= 16


@pytest.mark.parametrize(("limit", "expected"), [(1.9, 0.0), (MOST, MOST), (math.inf, MOST)])
def test_what_never_fits_is_0_and_what_always_fits_is_all_data(limit, expected):
    for start in (0.5, 40.0, 5000.0):
        assert bisect(lambda size: size <= limit, start, LEAST, MOST) == expected


def test_nine_tenths_are_proposed_and_nothing_where_nothing_fits():
    def conclusions(largest_s: float, now_s: float = 40.0) -> str:
        return " ".join(BatchSizeSearch({100.0: None}, largest_s, 10.0, 500.0).conclusions(now_s))

    assert "data.batch.max_duration_s=111 (now 40)" in conclusions(124.0)
    assert "data.batch.max_duration_s=9.8 (now 40)" in conclusions(10.9)  # tenths where a second is much
    assert "data.limits.max_duration_s" in conclusions(10.9)
    assert "data.limits.max_duration_s" not in conclusions(124.0)
    assert ("learning rate" in conclusions(124.0), "learning rate" in conclusions(124.0, 111.0)) == (True, False)
    assert ("all data" in conclusions(500.0), "all data" in conclusions(499.0)) == (True, False)
    assert "data.batch.max_duration_s" not in conclusions(0.0)
    assert "data.limits.max_duration_s" in conclusions(0.0)


class Dataset:
    """Cuts of a hundred frames per second."""

    unreadable = ()

    def __getitem__(self, item):
        _, cuts = item
        return replace(batch_of(*(round(100 * cut.duration) for cut in cuts)), skipped=self.unreadable)


class Setup:
    """A tiny model, 40 cuts of 0.5 to 2 s, and a GPU that holds ``most`` frames. A CPU may stand for it."""

    def __init__(self, monkeypatch, device: str, most: float = math.inf) -> None:
        self.device, self.trainers, self.module, self.shapes = device, [], tiny_module(), []
        if device == "cpu":
            for name in ("reset_peak_memory_stats", "synchronize", "max_memory_allocated"):
                monkeypatch.setattr(torch.cuda, name, lambda _: 2**20)

        def see(_, args) -> None:
            self.shapes.append(tuple(args[0].shape[:2]))
            if math.prod(self.shapes[-1]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")

        self.module.recognizer.normalize.register_forward_pre_hook(see)
        cuts = CutSet.from_cuts(MonoCut(f"c{i}", 0, 0.5 + i % 4 * 0.5, 0) for i in range(40))
        self.order, self.dataset = DurationBucketSampler(cuts, BucketingConfig(8.0, num_buckets=2), seed=1), Dataset()

    def make_trainer(self, num_updates):
        self.trainers.append(tiny_trainer(num_updates, accelerator=self.device))
        return self.trainers[-1]

    def run(self, **options) -> BatchSizeSearch:
        text_lengths = np.arange(len(self.order.durations))
        return search_batch_size(self.module, self.dataset, self.order, text_lengths, self.make_trainer, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_each_size_is_tried_on_its_largest_micro_batches_twice(monkeypatch, device):
    setup = Setup(monkeypatch, device)
    weights, state = [p.clone() for p in setup.module.parameters()], torch.get_rng_state()
    found = setup.run()
    # cuts of up to 1 s and of up to 2 s; 20 of 2 s are all data
    assert (found.longest_s, found.all_s, found.largest_s) == (2.0, 40.0, 40.0)
    assert list(found.trials) == [8.0, 16.0, 32.0, 40.0]
    assert all(found.trials.values())
    assert setup.shapes[:4] == 2 * [(4, 200), (8, 100)]
    assert [trainer.global_step for trainer in setup.trainers] == [4, 4, 4, 4]
    assert all(map(torch.equal, weights, setup.module.parameters()))
    assert torch.equal(state, torch.get_rng_state())
    assert setup.module.guard.counts["skipped_updates"] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_found(monkeypatch, device):
    found = Setup(monkeypatch, device, most=2400).run()
    assert 24.0 / 1.05 <= found.largest_s < 26.0  # whole utterances of 2 s
    assert all((peak is None) == (size >= 26.0) for size, peak in found.trials.items())
    assert Setup(monkeypatch, device, most=1).run().largest_s == 0.0


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_run_needs_in_addition_is_held_meanwhile(monkeypatch, device):
    assert Setup(monkeypatch, device).run(reserved=2**62).largest_s == 0.0


def test_what_is_not_about_memory_ends_the_search(monkeypatch):
    setup = Setup(monkeypatch, "cpu")
    setup.dataset.unreadable = (("c7", "no such file"),)
    with pytest.raises(ValueError, match="c7"):
        setup.run()
    setup.dataset.unreadable = ()
    setup.module.recognizer.normalize.register_forward_pre_hook(lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        setup.run()
