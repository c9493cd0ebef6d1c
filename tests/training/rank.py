"""One of two processes that train together; it saves what each run left in a file of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import optim
from asr.data.loading.loader import Batch
from asr.training import checkpoints, sharded_checkpoints
from asr.training.callbacks.checkpoints import (
    CheckpointCallback,
    DurableCheckpointIO,
    Preempted,
    Preemption,
    WeightAveraging,
)
from asr.training.checkpoints import newest_good_checkpoint
from asr.training.cuda_graphs import CudaGraphs, GraphedDDPStrategy
from asr.training.fsdp import FsdpStrategy, local_part
from asr.training.module import TrainingModule
from tests.gpu.recorded_graphs import recorded_graphs
from tests.training import runs
from tests.training.heads import module_with, share_of
from tests.training.test_checkpoint_callback import Signalled
from tests.training.test_module import module_with_zapformer, module_with_zipformer
from tests.training.test_nonfinite_guard import unread
from tests.training.tiny import Unsized, batch_of, batches_loader, sgd, tiny_module, tiny_trainer

RANK = int(os.environ["RANK"])


DIVIDED: dict[str, Callable[[], TrainingModule]] = {
    "owners": partial(tiny_module, partial(optim.Muon, lr=0.01)),
    "weights for evaluation": partial(tiny_module, partial(optim.ScheduleFreeAdamW, lr=0.01)),
    "zipformer": module_with_zipformer,
    "zapformer": module_with_zapformer,
    "two views": partial(module_with, "transducer and two views", 0.0),
}


def both() -> dict[str, Any]:
    return {"devices": 2, "strategy": DDPStrategy(process_group_backend="gloo"), "use_distributed_sampler": False}


def train(module: TrainingModule, batches: Sequence[Batch], callbacks: Sequence[pl.Callback] = ()) -> None:
    trainer = tiny_trainer(len(batches), callbacks, **both())
    trainer.fit(module, train_dataloaders=batches_loader(batches))


def with_a_bad_batch(folder: Path) -> dict[str, Any]:
    """Give the second process alone a batch that is not finite."""
    batches = [batch_of(60, 40, seed=10 * RANK + seed) for seed in range(3)]
    batches[1] = replace(batches[1], ids=("bad", "second") if RANK else ("good", "second"))
    if RANK:
        batches[1].features[0, 3, 2] = float("nan")
    module, averaging = tiny_module(), WeightAveraging()
    train(module, batches, [averaging])
    assert averaging.averages is not None
    return {
        "counts": module.guard.state_dict(),
        "weights": module.recognizer.state_dict(),
        "averages": averaging.averages.state_dict(),
    }


def with_unread_batches(folder: Path) -> dict[str, Any]:
    """Let the second process read nothing in one update, and both in another."""
    batches = [batch_of(60, 40, seed=10 * RANK + seed) for seed in range(4)]
    if RANK:
        batches[1] = unread("only-1")
    batches[2] = unread("both", "both again")
    module = tiny_module()
    train(module, batches)
    return {
        "counts": module.unreadable.state_dict(),
        "guard": module.guard.state_dict(),
        "weights": module.recognizer.state_dict(),
    }


def with_one_sgd_update(folder: Path) -> list[torch.Tensor]:
    """Make one update in double precision, each process with a batch of another size."""
    module = tiny_module(partial(sgd, lr=1.0)).double()
    train(module, [replace(batch, features=batch.features.double()) for batch in share_of(RANK)[:1]])
    return [p.detach() for p in module.recognizer.parameters()]


def with_two_views_of_two_layers(folder: Path) -> dict[str, Any]:
    module = module_with("two views of two layers", dropout=0.2)
    train(module, share_of(RANK))
    return module.recognizer.state_dict()


def with_a_zipformer(folder: Path) -> dict[str, Any]:
    """Train without a break, and in two parts, as after a kill."""
    runs.tiny_module = module_with_zipformer  # type: ignore[attr-defined]

    def weights_after(name: str, max_steps: int) -> dict[str, Any]:
        return runs.run(folder / name, max_steps, accumulate_grad_batches=2, **both()).state_dict()

    whole = weights_after("whole", 6)
    weights_after("parts", 3)
    torch.manual_seed(99)
    return {"whole": whole, "resumed": weights_after("parts", 6)}


def with_captured_passes(folder: Path) -> dict[str, Any]:
    """Train a Zipformer with graphs that are replayed, and with DistributedDataParallel."""
    runs.tiny_module = module_with_zipformer  # type: ignore[attr-defined]
    accumulated = {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    with recorded_graphs() as graphs:
        at_once = {**both(), "strategy": GraphedDDPStrategy(wraps=False, process_group_backend="gloo")}
        captured = runs.run(folder / "captured", 6, [CudaGraphs(any_encoder=True)], **accumulated, **at_once)
        assert captured.trainer.model is captured
        assert graphs.num_replays > 0
        wrapped = runs.run(folder / "wrapped", 6, **accumulated, **both())
    return {"captured": captured.state_dict(), "wrapped": wrapped.state_dict()}


def divided() -> dict[str, Any]:
    strategy = FsdpStrategy()
    strategy.check_sizes(2)
    return {**both(), "strategy": strategy}


def in_background() -> dict[str, Any]:
    return {"plugins": [DurableCheckpointIO(in_background=True)]}


def with_divided_models(folder: Path) -> dict[str, Any]:
    """Train models that are divided over the processes, in two parts, and whole ones; return their last checkpoints."""
    left: dict[str, Any] = {}
    for name, make in DIVIDED.items():
        runs.tiny_module = make  # type: ignore[attr-defined]
        options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
        for max_steps, given in ((6, both()), (3, divided()), (6, divided() | in_background())):
            kind = "whole" if isinstance(given["strategy"], DDPStrategy) else "divided"
            module = runs.run(folder / name / kind, max_steps, [WeightAveraging()], **options, **given)
        held = sum(local_part(parameter).numel() for parameter in module.parameters())
        share = held / sum(parameter.numel() for parameter in module.parameters())
        states = {kind: newest_good_checkpoint(folder / name / kind) for kind in ("whole", "divided")}
        left[name] = {"share": share, **{kind: state and state.state for kind, state in states.items()}}
    return left


def with_unread_batches_of_a_divided_model(folder: Path) -> dict[str, Any]:
    """Let the second process read nothing in one update, where a whole model has a batch of nothing too."""
    batches = [batch_of(60, 40, seed=10 * RANK + seed) for seed in range(3)]
    batches[1 if RANK else 2] = unread("only here")
    modules = {"whole": tiny_module(), "divided": tiny_module()}
    for module, options in zip(modules.values(), (both(), divided()), strict=True):
        tiny_trainer(3, **options).fit(module, train_dataloaders=batches_loader(batches))
    return {name: whole_weights(module.recognizer) for name, module in modules.items()}


def with_a_signal_while_a_checkpoint_is_written(folder: Path) -> list[str]:
    """Return what is on the disk when a process leaves after a signal; the first one writes in the background."""
    write, run_dir = checkpoints.write, folder / "signalled"
    checkpoints.write = lambda state, path: (time.sleep(1), write(state, path))  # type: ignore[assignment, func-returns-value]
    callbacks = [Signalled("on_train_batch_start", 2), CheckpointCallback(run_dir), Preemption()]
    try:
        runs.run(run_dir, 9, callbacks, **both(), **in_background())
    except Preempted:
        return runs.names(run_dir)
    finally:
        checkpoints.write = write
    raise AssertionError("it has not left")


def with_a_checkpoint_written_twice(folder: Path) -> list[str]:
    """Write a checkpoint of an update that has one, as after a validation that was interrupted."""
    path, write = folder / "update-000001.ckpt", checkpoints.write
    stager, group = DurableCheckpointIO(in_background=True).stager(), dist.new_group(backend="gloo")
    for number in range(2):
        weight, numbers = torch.full((2,), float(number)), [number]
        state = {"a": {"b": weight}, "number": numbers}
        # the file of the first is still whole when all parts of the second are written
        complete = sharded_checkpoints.save(state, path, write if number == 0 else print, stager, group)
        assert path.exists() == bool(number)
        weight.fill_(7.0)  # training goes on
        numbers[0] = 7
        complete()
    dist.barrier()
    content = checkpoints.read_complete(path)
    assert content["number"] == [0]
    assert content["a"]["b"].tolist() == [0.0, 0.0]
    return sorted(part.name for part in folder.glob("*.parts"))


def whole_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))


def with_one_development_batch(folder: Path) -> dict[str, float]:
    """Validate after each of two updates, with a development set of which the second process gets nothing."""
    module, trainer = tiny_module(), tiny_trainer(2, (), **both(), val_check_interval=1)
    assert list(module.buffers()), "DDP would have nothing to send before a validation"
    module.dev_names = ["dev"]
    train = batches_loader([batch_of(60, 40, seed=seed) for seed in (RANK, 2 + RANK)])
    trainer.fit(module, train, Unsized([batch_of(50, seed=1)] if RANK == 0 else []))
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    trainings = (
        with_a_bad_batch,
        with_unread_batches,
        with_one_sgd_update,
        with_two_views_of_two_layers,
        with_one_development_batch,
        with_a_zipformer,
        with_captured_passes,
        with_divided_models,
        with_unread_batches_of_a_divided_model,
        with_a_checkpoint_written_twice,
        with_a_signal_while_a_checkpoint_is_written,
    )
    torch.save({training.__name__: training(folder) for training in trainings}, folder / f"{RANK}.pt")
