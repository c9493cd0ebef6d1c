"""The sums and averages themselves, against means computed from all weights at once."""

from __future__ import annotations

import pytest
import torch

from asr.training.checkpoints import RunningAverages
from tests.training.runs import same


def weights_of(update: int) -> dict[str, torch.Tensor]:
    """An endless walk: large numbers beside small ones, so that rounding would show."""
    generator = torch.Generator().manual_seed(update)
    noise = torch.randn(2, 3, generator=generator)
    return {"large": 1e4 + noise, "small": 1e-4 * noise + 1e-3 * update}


def averages_after(updates: int, decay: float | None = 0.9) -> RunningAverages:
    averages = RunningAverages(weights_of(0))
    for update in range(1, updates + 1):
        averages.add(update, weights_of(update), decay)
    return averages


def mean(updates) -> dict[str, torch.Tensor]:
    seen = [weights_of(update) for update in updates]
    return {name: torch.stack([one[name].double() for one in seen]).mean(0) for name in seen[0]}


@pytest.mark.parametrize(("a", "b"), [(0, 1), (150, 300), (299, 300)])
def test_two_checkpoints_give_the_mean_over_the_updates_in_between(a, b):
    found = averages_after(b).mean_after(averages_after(a))
    torch.testing.assert_close(found, mean(range(a + 1, b + 1)), rtol=1e-11, atol=0)


def test_the_older_mark_has_between_a_quarter_and_44_percent_of_all_updates_after_it():
    averages = RunningAverages(weights_of(0))
    for update in range(1, 500):
        averages.add(update, weights_of(0), None)
        if update > 50:
            assert 0.25 <= (update - averages.marks[0].update) / update <= 0.44
    assert len(averages.marks) == 2


def test_the_moving_average_is_the_recursion_with_its_lower_decay_at_the_beginning():
    expected = weights_of(1)["small"].double()
    decays = []
    for update in range(2, 101):
        decays.append(min(0.9, update / (update + 9)))
        expected = decays[-1] * expected + (1 - decays[-1]) * weights_of(update)["small"].double()
    torch.testing.assert_close(averages_after(100).ema["small"].double(), expected, rtol=1e-6, atol=0)
    assert decays[0] < 0.2
    assert decays[-1] == 0.9


def test_weights_that_stand_for_several_updates_move_the_moving_average_as_far():
    averages = RunningAverages({"w": torch.zeros(1)})
    averages.ema, averages.ema_updates = {"w": torch.zeros(1)}, 1000
    averages.add(10, {"w": torch.ones(1)}, 0.9, num_updates=10)
    torch.testing.assert_close(averages.ema["w"], torch.tensor([1 - 0.9**10]))
    assert averages.ema_updates == 1010


def test_without_a_decay_there_is_no_moving_average():
    averages = averages_after(3)
    averages.add(4, weights_of(4), None)
    assert averages.ema is None
    averages.add(5, weights_of(5), 0.9)
    assert same(averages.ema, weights_of(5))
