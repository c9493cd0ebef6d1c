"""The optimizer's health reaches the loggers, and does not change the run."""

from __future__ import annotations

import csv
from functools import partial

import torch

from asr.tracking.metrics_csv import MetricsCsv
from asr.training.callbacks.measurements import OptimizerHealth
from optim import Eve, grouped
from optim.health import Health
from tests.training.tiny import batch_of, batches_loader, tiny_module, tiny_trainer

BATCHES = [batch_of(60, 40, seed=seed) for seed in range(8)]


def eve(named) -> torch.optim.Optimizer:
    return grouped(partial(Eve, lr=0.01), [{"pattern": "bias$", "weight_decay": 0.0}, {"pattern": ".*"}])(named)


def train(folder, every, batches=BATCHES, **options):
    folder.mkdir(exist_ok=True)
    module, fit_options = tiny_module(eve), {"ckpt_path": options.pop("ckpt_path", None)}
    accumulate = options.get("accumulate_grad_batches", 1)
    trainer = tiny_trainer(len(batches) // accumulate, [OptimizerHealth(Health, every)], **options)
    trainer.loggers = [MetricsCsv(folder)]
    trainer.fit(module, batches_loader(batches), weights_only=True, **fit_options)
    return module, trainer, rows_of(folder)


def rows_of(folder) -> dict[int, dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    if (folder / "metrics.csv").exists():
        with (folder / "metrics.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault(int(row["step"]), {})[row["name"]] = float(row["value"])
    return rows


def health(rows) -> dict[int, dict[str, float]]:
    found = {step: {k: v for k, v in row.items() if k.startswith("health/")} for step, row in rows.items()}
    return {step: row for step, row in found.items() if row}


def test_one_update_in_so_many_is_logged_beside_its_loss(tmp_path):
    # the loss is logged at every fourth update only: its own rhythm does not matter
    module, trainer, rows = train(tmp_path, 2, log_every_n_steps=4)
    assert list(health(rows)) == [1, 3, 5, 7]
    assert [step for step, row in rows.items() if "train/loss" in row] == [3, 7]
    for row in health(rows).values():
        for group in (0, 1):
            assert 0 < row[f"health/{group}/update_ratio"] < 1
            assert row[f"health/{group}/effective_lr"] > 0
        (largest,) = (name for name in row if name.startswith("health/1/largest/"))
        assert largest.removeprefix("health/1/largest/") in dict(module.recognizer.named_parameters())
    assert not trainer.optimizers[0]._optimizer_step_pre_hooks


def test_the_training_is_the_same_bit_for_bit(tmp_path):
    plain, plain_trainer, unmeasured = train(tmp_path / "plain", None)
    assert health(unmeasured) == {}
    measured, trainer, rows = train(tmp_path / "measured", 1)
    assert len(health(rows)) == 8
    for one, other in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(one, other)
    measured_state, plain_state = (one.optimizers[0].state_dict() for one in (trainer, plain_trainer))
    torch.testing.assert_close(measured_state["state"], plain_state["state"], rtol=0, atol=0)
    assert str(measured_state["param_groups"]) == str(plain_state["param_groups"])


def test_a_resumed_training_measures_the_same_updates(tmp_path):
    _, _, whole = train(tmp_path / "whole", 3)
    _, trainer, _ = train(tmp_path / "first", 3, BATCHES[:4])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert not any("Health" in name for name in checkpoint["callbacks"])
    _, _, rest = train(tmp_path / "rest", 3, BATCHES, ckpt_path=tmp_path / "last.ckpt")
    assert list(health(whole)) == [2, 5]
    assert list(health(rest)) == [5]
