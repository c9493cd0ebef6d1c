"""The averages in a run's checkpoints, against the weights after every update."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from asr.training.callbacks.checkpoints import CheckpointCallback, WeightAveraging
from asr.training.checkpoints import LoadedCheckpoint, choose_weights, duplicate, load_checkpoint, update_file
from tests.training.runs import run, same, state
from tests.training.tiny import batch_of, batches_loader, tiny_module, tiny_trainer


class Weights(pl.Callback):
    """Keeps the parameters after every update."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_batch_end(self, trainer, pl_module, *_):
        named = pl_module.recognizer.named_parameters()
        self.seen[trainer.global_step] = {name: p.detach().clone() for name, p in named}

    def mean(self, updates) -> dict[str, torch.Tensor]:
        first, *_ = self.seen.values()
        return {name: torch.stack([self.seen[u][name].double() for u in updates]).mean(0).float() for name in first}


def saving(folder: Path) -> CheckpointCallback:
    return CheckpointCallback(folder, keep_last=99, every_n_updates=1)


def loaded(folder: Path, update: int) -> LoadedCheckpoint:
    return load_checkpoint(update_file(folder / "checkpoints", update))


def assert_holds(checkpoint: LoadedCheckpoint, expected: dict[str, torch.Tensor], atol: float = 1e-12) -> None:
    """Compare to the last place of float32."""
    found = {name: checkpoint.weights[name] for name in expected}
    torch.testing.assert_close(found, expected, rtol=1.2e-7, atol=atol)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_of_any_span_is_the_mean_of_the_weights_after_its_updates(tmp_path, accumulate):
    weights = Weights()
    run(tmp_path, 12, [weights, WeightAveraging(), saving(tmp_path)], accumulate_grad_batches=accumulate)
    for a, b in [(0, 12), (0, 5), (3, 12), (4, 5), (11, 12)]:
        checkpoint = choose_weights(loaded(tmp_path, b), "average", a)
        assert_holds(checkpoint, weights.mean(range(a + 1, b + 1)))
        assert checkpoint.described == f"average of updates {a + 1} to {b}"
    alone = tmp_path / "elsewhere" / "any.ckpt"
    alone.parent.mkdir()
    duplicate(update_file(tmp_path / "checkpoints", 12), alone)
    newest = choose_weights(load_checkpoint(alone), "average")
    assert newest.described == "average of updates 9 to 12"
    largest = max(float(value.abs().max()) for value in weights.seen[12].values())
    assert_holds(newest, weights.mean(range(9, 13)), atol=2e-7 * largest)
    assert same(newest.weights, choose_weights(load_checkpoint(alone), "average", 8).weights)


def test_what_is_trained_stays_the_same_bit_for_bit(tmp_path):
    run(tmp_path / "averaged", 5, [WeightAveraging(), saving(tmp_path / "averaged")])
    run(tmp_path / "plain", 5)
    one, other = (state(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("averaged", "plain"))
    for key in ("state_dict", "optimizer_states"):
        assert same(one[key], other[key])
    assert "averages" in one
    assert "averages" not in other


@pytest.mark.parametrize("update", [1, 3, 4, 8])
def test_averages_are_resumed_bit_for_bit(tmp_path, update):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, 9, [WeightAveraging(ema_decay=0.5), saving(whole)])
    (killed / "checkpoints").mkdir(parents=True)
    duplicate(update_file(whole / "checkpoints", update), update_file(killed / "checkpoints", update))
    run(killed, 9, [WeightAveraging(ema_decay=0.5)])
    one, other = (state(folder / "checkpoints" / "last.ckpt") for folder in (whole, killed))
    assert one["averages"]["num_averaged"] == 9
    assert same(one["averages"], other["averages"])


def test_a_checkpoint_without_averages_begins_them(tmp_path, capsys):
    run(tmp_path, 4)
    capsys.readouterr()
    weights = Weights()
    run(tmp_path, 8, [weights, WeightAveraging(), saving(tmp_path)])
    assert "no averages of weights: they start after update 4" in capsys.readouterr().out
    assert_holds(choose_weights(loaded(tmp_path, 8), "average", 4), weights.mean(range(5, 9)))
    for since in (2, 3):
        with pytest.raises(ValueError, match=rf"average_since={since}: .*allowed: 4, 5, 6, 7, or null for 6"):
            choose_weights(loaded(tmp_path, 8), "average", since)


def test_an_update_that_is_skipped_counts_with_the_weights_that_it_left(tmp_path):
    bad = batch_of(60, 40, seed=9)
    bad.features[0, 3, 2] = math.nan
    batches = [batch_of(60, 40, seed=0), bad, batch_of(60, 40, seed=1)]
    weights, averaging = Weights(), WeightAveraging()
    tiny_trainer(3, [weights, averaging]).fit(tiny_module(), batches_loader(batches))
    assert same(weights.seen[1], weights.seen[2])
    averages = averaging.averages
    assert (averages.num_averaged, averages.update) == (3, 3)
    expected = {name: sum(weights.seen[update][name].double() for update in (1, 2, 3)) for name in weights.seen[1]}
    assert same(averages.sum, expected)


def test_one_update_in_so_many_is_averaged_by_its_number(tmp_path):
    weights = Weights()
    run(tmp_path, 7, [weights, WeightAveraging(every=3), saving(tmp_path)])
    assert_holds(choose_weights(loaded(tmp_path, 7), "average", 0), weights.mean([3, 6]))
    assert loaded(tmp_path, 7).averages.ema_updates == 6
    with pytest.raises(ValueError, match=r"callbacks\.averaging\.every"):
        choose_weights(loaded(tmp_path, 2), "average")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("averaged")
    run(folder, 4, [WeightAveraging(ema_decay=0.5), saving(folder)])
    return folder


def test_buffers_and_the_raw_weights_are_those_of_the_checkpoint(folder):
    checkpoint = loaded(folder, 4)
    averages = checkpoint.averages
    assert "normalize.mean" not in averages.sum
    for kind in ("raw", "average", "ema"):
        assert same(choose_weights(checkpoint, kind).weights["normalize.mean"], checkpoint.weights["normalize.mean"])
    assert choose_weights(checkpoint, "raw") is checkpoint
    chosen = choose_weights(checkpoint, "ema")
    assert chosen.described == "exponential moving average of update 4"
    assert same(chosen.weights["head.project.bias"], averages.ema["head.project.bias"])


def without_ema(checkpoint: LoadedCheckpoint) -> LoadedCheckpoint:
    checkpoint.averages.ema = None
    return checkpoint


@pytest.mark.parametrize(
    ("change", "kind", "since", "said"),
    [
        (lambda one: replace(one, averages=None), "average", None, r"callbacks\.averaging"),
        (without_ema, "ema", None, "ema_decay=null"),
        (lambda one: one, "mean", None, "weights must be one of raw, average, ema, given 'mean'"),
        (lambda one: one, "average", 4, "average_since=4: .*allowed: 0, 1, 2, 3, or null for 3"),
        (lambda one: one, "ema", 2, "average_since=2"),
    ],
)
def test_weights_that_a_checkpoint_does_not_have_are_refused_with_what_it_has(folder, change, kind, since, said):
    with pytest.raises(ValueError, match=said):
        choose_weights(change(loaded(folder, 4)), kind, since)
