"""The choice of an lr that the comparisons of optimizers share: its grid, its seeds, its processes."""

import math

import pytest


@pytest.fixture
def lr_search(script):
    return script("lr_search")


@pytest.fixture
def grid(lr_search):
    return lr_search.LrGrid(factors=(0.01, 0.1, 1.0, 10.0, 100.0, 1000.0), first=slice(1, 4))


@pytest.fixture
def search(grid, script):
    """Searches the lr of a row, and returns what was tried and the rounds that it took."""
    row = script("bench.peers").Spec

    def run(score_at, usual=0.3):
        def judge(tried):
            rounds.append([one.options["lr"] for one in tried])
            assert all(one.options["betas"] == (0.9, 0.99) for one in tried)
            return [score_at(one.options["lr"]) for one in tried]

        rounds = []
        rows = [row("own steps", "optim", "Adafactor"), row("A", "optim", "AdamW", {"lr": usual, "betas": (0.9, 0.99)})]
        return grid.search(rows, judge), rounds

    return run


@pytest.mark.parametrize(
    ("best", "rounds"),
    [
        (0.3, [[0.03, 0.3, 3.0]]),
        (30.0, [[0.03, 0.3, 3.0], [30.0], [300.0]]),
        (1000.0, [[0.03, 0.3, 3.0], [30.0], [300.0]]),
        (0.001, [[0.03, 0.3, 3.0], [0.003]]),
    ],
)
def test_the_grid_grows_until_the_best_lr_is_inside_or_no_other_is_left(search, best, rounds):
    scores, tried = search(lambda lr: abs(math.log(lr / best)))
    assert tried == rounds
    lrs = sorted(lr for one in rounds for lr in one)
    assert list(scores) == ["A"]
    assert list(scores["A"].items()) == [(lr, abs(math.log(lr / best))) for lr in lrs]


def test_the_grid_ends_where_everything_diverges(search):
    assert search(lambda lr: math.inf)[1] == [[0.03, 0.3, 3.0], [0.003]]


def test_of_equal_scores_the_smaller_lr_is_best(lr_search):
    assert lr_search.best_lr({0.3: (math.inf, 1.0), 0.2: (math.inf, 1.0), 0.1: (math.inf, 2.0)}) == 0.2
    assert lr_search.best_lr({0.1: (9.0, 2.0), 0.2: (8.0, 3.0)}) == 0.2
