"""What is not finite, or could not be read, changes nothing, and is counted."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from asr.data.loading.loader import Batch
from optim import Eve
from tests.training.runs import same
from tests.training.tiny import Metrics, adamw, batch_of, batches_loader, tiny_module, tiny_trainer, trained
from werdict.errors import Diverged, RunFailed


def bad_batch(value: float = float("nan"), seed: int = 9) -> Batch:
    batch = batch_of(60, 40, seed=seed)
    batch.features[0, 3, 2] = value
    return batch


def too_short_batch() -> Batch:
    # three equal tokens need five frames; eleven input frames leave two
    batch = batch_of(60, 52, 11)
    batch.tokens[2], batch.num_tokens[2] = 2, 3
    return batch


class MovesOnZero(torch.optim.SGD):
    """Counts its steps, and takes a missing gradient for zero, which momentum still moves."""

    def __init__(self, named) -> None:
        super().__init__([p for _, p in named], lr=0.01, momentum=0.9)
        self.num_steps = 0

    def step(self, closure=None):
        loss = torch.enable_grad()(closure)()
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        self.num_steps += 1
        super().step()
        return loss


def eve(named) -> torch.optim.Optimizer:
    return Eve(list(named), lr=0.01)


def decides_on_device(named) -> torch.optim.Optimizer:
    return Eve(list(named), lr=0.01, capturable=True)


@pytest.mark.parametrize("optimizer", [adamw, eve, decides_on_device, MovesOnZero])
def test_a_skipped_update_leaves_weights_and_optimizer_as_they_were(optimizer):
    good = [batch_of(60, 40, seed=seed) for seed in range(3)]
    clean, clean_trainer, _ = trained(good, tiny_module(optimizer))
    skipped, trainer, seen = trained([good[0], bad_batch(), bad_batch(float("inf")), *good[1:]], tiny_module(optimizer))
    for one, other in zip(clean.recognizer.parameters(), skipped.recognizer.parameters(), strict=True):
        assert torch.equal(one, other)
    before, after = (t.optimizers[0].state_dict() for t in (clean_trainer, trainer))
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)
    assert skipped.guard.counts == {"skipped_updates": 2, "consecutive_skips": 0, "too_short": 0}
    # eve counts its steps in the groups
    assert [str(group.get("shared_state")) for group in after["param_groups"]] == [
        str(group.get("shared_state")) for group in before["param_groups"]
    ]
    # where the device decides, the host looks at logged updates, of which this is none
    counted = [0] * 5 if optimizer is decides_on_device else [0, 1, 2, 2, 2]
    assert [row["train/skipped_updates"] for row in seen] == counted
    # skipped updates are updates of the budget, and the schedule advances
    assert trainer.global_step == 5
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 5


def test_a_gradient_scaler_is_told_of_the_skip():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    batches = [batch_of(60, 40), bad_batch(), bad_batch(), batch_of(60, 40, seed=1)]
    module, _, seen = trained(batches, plugins=[MixedPrecision("16-mixed", "cpu", scaler)], gradient_clip_val=1.0)
    assert [row["train/skipped_updates"] for row in seen] == [0, 1, 2, 2]
    assert scaler.get_scale() == 2.0
    assert all(p.isfinite().all() for p in module.parameters())


def test_where_the_device_decides_a_run_ends_after_the_same_number_of_updates_though_none_is_logged():
    with pytest.raises(Diverged, match=r"50 updates in a row"):
        trained([bad_batch()] * 60, module := tiny_module(decides_on_device), log_every_n_steps=1000)
    assert module.trainer.global_step == 50


def test_a_module_may_be_trained_again_with_an_optimizer_that_decides_elsewhere():
    module, trainer, _ = trained([bad_batch()], tiny_module(decides_on_device))
    assert trainer.optimizers[0].found_inf is None
    module.optimizer_factory = adamw
    trained([batch_of(60, 40), bad_batch()], module)
    assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("optimizer", [adamw, decides_on_device])
def test_a_skipped_update_names_its_utterances(capsys, optimizer):
    bad = bad_batch()
    bad = Batch(**{**vars(bad), "ids": ("noisy", "fine")})
    trained([batch_of(60, 40), bad, batch_of(60, 40)], tiny_module(optimizer))
    said = capsys.readouterr().out
    assert "skipped update 1: the loss is not finite for noisy (nan) (1 consecutive, 1 total)" in said
    assert "utterances of rank 0: noisy, fine" in said
    assert "cut0" not in said


def test_a_gradient_may_be_bad_though_the_loss_is_not(capsys):
    module = tiny_module()
    module.recognizer.head.project.bias.register_hook(lambda gradient: gradient * float("inf"))
    before = copy.deepcopy(module.recognizer.state_dict())
    _, _, seen = trained([batch_of(60, 40)], module)
    assert same(before, module.recognizer.state_dict())
    assert seen[0]["train/skipped_updates"] == 1
    assert "skipped update 0: gradients are not finite (1 consecutive, 1 total)" in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", [adamw, decides_on_device])
def test_many_skipped_updates_in_a_row_end_the_run_also_a_resumed_one(tmp_path, optimizer):
    _, trainer, _ = trained([bad_batch(), bad_batch(), batch_of(60, 40), bad_batch()], tiny_module(optimizer))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed, metrics = tiny_module(optimizer), Metrics()
    batches = [bad_batch()] * 60
    with pytest.raises(Diverged, match=r"50 updates in a row.*update 52.*optimizer\.lr"):
        tiny_trainer(64, [metrics]).fit(
            resumed, batches_loader(batches), ckpt_path=tmp_path / "last.ckpt", weights_only=True
        )
    # update 3 was the first of the row
    assert resumed.guard.counts == {"skipped_updates": 52, "consecutive_skips": 50, "too_short": 0}


def test_an_utterance_too_short_for_its_transcript_is_counted_and_named_once(capsys):
    _, _, seen = trained([batch_of(60, 52), too_short_batch(), too_short_batch()])
    assert [row["train/too_short"] for row in seen] == [0, 1, 2]
    said = capsys.readouterr().out
    assert said.count("cut2 is too short for its transcript") == 1
    assert "cut0" not in said


@pytest.mark.slow
def test_a_rank_with_a_bad_batch_makes_all_ranks_skip(ranks):
    """Rank 1 alone sees a bad batch; afterwards both ranks have the same weights, counts and averages."""
    one, other = (rank.left["with_a_bad_batch"] for rank in ranks)
    assert one["counts"] == other["counts"] == {"skipped_updates": 1, "consecutive_skips": 0, "too_short": 0}
    assert same(one, other)
    assert all(value.isfinite().all() for value in one["weights"].values())
    assert one["averages"]["num_averaged"] == 3
    assert "rank 0: good" in ranks[0].said
    assert "rank 1: bad" in ranks[1].said


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
