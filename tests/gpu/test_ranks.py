"""Processes that train together under the rules of CUDA's autocast end with equal weights."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.run.trainer import build_trainer
from tests.configs import composed
from tests.gpu.ranks import RUNS
from tests.training.runs import same

ROOT = Path(__file__).parents[2]
GIVEN = {"_target_": "lightning.pytorch.strategies.DDPStrategy", "gradient_as_bucket_view": False}
Left = dict[str, Any]


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> dict[str, list[Left]]:
    """Return what every process of every run left; all runs are made here, because starting takes most of the time."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.gpu.ranks", str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {
        name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=True) for rank in range(world_size)]
        for name, (world_size, _, _) in RUNS.items()
    }


@pytest.mark.parametrize("name", RUNS)
def test_ranks_with_uneven_batches_have_equal_weights_and_counts(left, name):
    first, *others = left[name]
    assert all(same(first, other) for other in others)
    assert all(weight.isfinite().all() for weight in first["weights"].values())
    _, before, max_steps = RUNS[name]
    epochs = 1 if before is None else 2  # a resumed run continues with the next epoch
    assert (first["updates"], first["skipped"], first["unreadable"]) == (max_steps, epochs, epochs)
    if before is not None:
        assert not same(first["weights"], left[before][0]["weights"])


@pytest.mark.parametrize(("strategy", "is_view"), [("auto", True), ("ddp", True), (GIVEN, False)], ids=str)
def test_a_run_has_torchs_options_but_for_gradients_and_what_is_given(strategy, is_view):
    own = {"devices": 2, "strategy": strategy}
    trainer = build_trainer(composed("trainer=cpu").options.trainer, [], [], **own)
    assert trainer.strategy._ddp_kwargs == {"gradient_as_bucket_view": is_view}


def test_gradients_are_views_of_what_ranks_send_each_other(left):
    assert {rank["storages"] for ranks in left.values() for rank in ranks} == {1}
