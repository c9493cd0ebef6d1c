"""One override shows the optimizer's health, and its place in the config holds nothing else."""

from __future__ import annotations

import csv

import pytest
import torch

from asr.config.build import plain
from asr.config.dry_run import dry_run
from asr.errors import ConfigError
from tests.commands.conftest import TINY
from tests.commands.test_configs import composed
from tests.commands.wandb_file import read_wandb

SPEED = ("train/audio_s_per_s", "train/elapsed_s")


def rows_of(run_dir) -> list[tuple[str, str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [tuple(row) for row in csv.reader(file) if row[1] not in SPEED]


def test_one_override_logs_it_and_changes_nothing_else(trained):
    trained.run("train", *TINY, "run_dir=health", "callbacks.optimizer_health.every=5")
    run_dir = trained.folder / "health"
    health = [row for row in rows_of(run_dir) if row[1].startswith("health/")]
    assert {row[0] for row in health} == {"4", "9"}
    names = {row[1] for row in health}
    for group in (0, 1):
        assert {f"health/{group}/{name}" for name in ("update_ratio", "effective_lr", "param_rms")} <= names
    assert names <= read_wandb(run_dir).history
    assert [row for row in rows_of(run_dir) if row not in health] == rows_of(trained.run_dir)
    weights = [
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for folder in (run_dir, trained.run_dir)
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_an_interval_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="every"):
        dry_run(plain(composed("callbacks.optimizer_health.every=often")))
