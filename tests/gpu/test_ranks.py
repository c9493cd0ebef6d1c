"""Processes that train together under the rules of CUDA's autocast end with equal weights."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy

import optim
from asr.data.loading.loader import Batch
from asr.models import devices
from asr.models.heads.transducer import TransducerCtcHead
from asr.run.trainer import build_trainer
from asr.training.module import TrainingModule
from tests.configs import composed
from tests.gpu.cuda_autocast import cuda_autocast
from tests.training import runs
from tests.training.runs import same
from tests.training.test_module import module_with_zipformer
from tests.training.test_nonfinite_guard import unread
from tests.training.tiny import TOKENIZER, batch_of

NOTHING_READ, NONFINITE = 1, 2  # updates of each epoch
# name of a run: (processes, run that it resumes, updates)
RUNS = {
    "two": (2, None, 3),
    "four": (4, None, 3),
    "two, then four": (4, "two", 6),
    "four, then two": (2, "four", 6),
}


class Uneven:
    """Batches of one to three utterances; in one update the last rank reads nothing, in one the first has a NaN."""

    def __getitem__(self, place: tuple[int, int, int]) -> Batch:
        number, rank, world_size = place
        if (number % runs.EPOCH, rank) == (NOTHING_READ, world_size - 1):
            return unread("lost")
        batch = batch_of(*(60, 44, 33)[: 1 + (number + rank) % 3], seed=world_size * number + rank)
        if (number % runs.EPOCH, rank) == (NONFINITE, 0):
            batch.features[0, 3] = float("nan")
        return batch

    def updates(self, epoch: int, start: int, rank: int, world_size: int, accumulate: int) -> list[tuple[int, ...]]:
        return [(runs.EPOCH * epoch + number, rank, world_size) for number in range(start, runs.EPOCH)]


class Gradients(Callback):
    """Counts the pieces of memory that the gradients of an update lie in."""

    def __init__(self) -> None:
        self.num_storages = 0

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.num_storages = len({p.grad.untyped_storage().data_ptr() for p in pl_module.parameters()})


def module() -> TrainingModule:
    made = module_with_zipformer()
    made.recognizer.head = TransducerCtcHead(12, TOKENIZER.vocab_size, 8, 8, ref_duration_s=0.01)
    made.optimizer_factory = optim.grouped(partial(optim.ScaledAdam, lr=0.01))
    return made


def train(rank: int, folder: Path, name: str, port: int) -> None:
    """Be one of the processes of a run."""
    world_size, _, max_steps = RUNS[name]
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    runs.tiny_module, runs.Made = module, Uneven  # type: ignore[attr-defined, misc]
    devices.on_accelerator = lambda x: True
    gradients = Gradients()
    with cuda_autocast():
        made = runs.run(
            folder / name,
            max_steps,
            [gradients],
            devices=world_size,
            strategy=DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True),
            plugins=[MixedPrecision("bf16-mixed", "cpu")],
            gradient_clip_val=1.0,
        )
    left = {
        "weights": dict(made.recognizer.named_parameters()),
        "skipped": made.guard.counts["skipped_updates"],
        "unreadable": made.unreadable.counts["total"],
        "storages": gradients.num_storages,
        "updates": made.trainer.global_step,
    }
    torch.save(left, folder / f"{name}.{rank}.pt")


ROOT = Path(__file__).parents[2]
GIVEN = {"_target_": "lightning.pytorch.strategies.DDPStrategy", "gradient_as_bucket_view": False}
Left = dict[str, Any]


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> dict[str, list[Left]]:
    """Return what every process of every run left; all runs are made here, because starting takes most of the time."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.gpu.test_ranks", str(folder)]
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


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for number, (name, (world_size, before, _)) in enumerate(RUNS.items()):
        if before is not None:
            shutil.copytree(folder / before, folder / name, symlinks=True)
        port = 20_000 + (os.getpid() + number) % 20_000
        # forked, because importing would take most of the time
        mp.start_processes(train, (folder, name, port), world_size, start_method="fork")
