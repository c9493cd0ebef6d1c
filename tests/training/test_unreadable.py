"""Micro-batches of which nothing could be read change nothing, and are counted through interruptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from asr.data.loading.loader import Batch
from tests.training.runs import same
from tests.training.tiny import Metrics, batch_of, batches_loader, tiny_module, tiny_trainer, trained
from werdict.errors import RunFailed


def unread(*names: str) -> Batch:
    none = torch.empty(0, 0)
    numbers = torch.tensor([], dtype=torch.int64)
    skipped = tuple((name, "missing audio") for name in names)
    return Batch(none, numbers, none, numbers, (), (), (), 0.0, 7, skipped)


def test_an_empty_micro_batch_adds_nothing_to_its_update():
    good = batch_of(60, 40, seed=1)
    alone, _, _ = trained([good])
    for batches in ([unread("a"), good], [good, unread("a")]):
        module, _, seen = trained(batches, accumulate=2)
        for name, value in alone.recognizer.state_dict().items():
            # lightning divides by the micro-batches, which is undone
            torch.testing.assert_close(module.recognizer.state_dict()[name], value, rtol=1e-6, atol=1e-7)
        assert seen[-1]["train/unreadable"] == 1
        assert seen[-1]["train/utterances"] == 2


def test_an_empty_update_moves_neither_weights_nor_optimizer(capsys):
    goods = [batch_of(60, 40, seed=seed) for seed in (1, 2)]
    _, trainer, _ = trained(goods)
    module, other, seen = trained([goods[0], unread("a", "b"), goods[1]])
    before, after = trainer.optimizers[0].state_dict()["state"], other.optimizers[0].state_dict()["state"]
    assert same(before, after)
    assert module.guard.counts["skipped_updates"] == 1
    assert module.unreadable.counts == {"total": 2, "epoch": 0, "in_epoch": 2, "learned": 1}
    assert "skipped update 1: none of its utterances could be read (1 consecutive, 1 total)" in capsys.readouterr().out
    assert seen[-1]["train/unreadable"] == 2


def test_a_training_in_which_nothing_can_be_read_fails():
    with pytest.raises(RunFailed, match="nothing was learned; the first: a: missing audio"):
        trained([unread("a"), unread("b")])


def test_some_unread_utterances_of_a_batch_are_counted_and_named_once(capsys):
    batch = replace(batch_of(60, 40), skipped=(("a", "cut short"),))
    _, _, seen = trained([batch, batch])
    assert [row["train/unreadable"] for row in seen] == [1, 2]
    assert capsys.readouterr().out.count("left out a: cut short (1 so far)") == 1


def test_counts_go_on_in_a_resumed_run(tmp_path):
    batch = replace(batch_of(60, 40), skipped=(("a", "cut short"),))
    _, trainer, _ = trained([batch, batch])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    module, metrics = tiny_module(), Metrics()
    module.unreadable.max_per_epoch = 3
    loader, path = batches_loader([batch] * 8), tmp_path / "last.ckpt"
    trainer = tiny_trainer(6, [metrics])
    with pytest.raises(RunFailed, match=r"4 utterances .* the 3 that data\.max_unreadable allows; .*a: cut short"):
        trainer.fit(module, loader, ckpt_path=path, weights_only=True)
    assert metrics.seen[0]["train/unreadable"] == 3


@pytest.mark.slow
def test_a_rank_that_can_read_nothing_leaves_the_update_to_the_others(ranks):
    """Both ranks end with the same weights and counts, in an update that one of them reads and one that none does."""
    one, other = (rank.left["with_unread_batches"] for rank in ranks)
    assert one["counts"] == other["counts"] == {"total": 5, "epoch": 0, "in_epoch": 5, "learned": 1}
    assert one["guard"] == other["guard"] == {"skipped_updates": 1, "consecutive_skips": 0, "too_short": 0}
    assert same(one["weights"], other["weights"])
    assert "left out only-1" in ranks[1].said
    assert "left out only-1" not in ranks[0].said
