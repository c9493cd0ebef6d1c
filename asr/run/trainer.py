"""Builds Lightning's trainer, and refuses options that would break what a run promises."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn

from asr.processes import TORCHRUN
from asr.run.instantiate import instantiate
from asr.run.options import Trainer as TrainerOptions
from asr.training.callbacks.checkpoints import DurableCheckpointIO
from asr.training.cuda_graphs import CompiledEncoder, CudaGraphs, GraphedDDPStrategy
from asr.training.fsdp import FsdpStrategy
from asr.training.lightning_internals import set_ddp_options
from werdict.errors import ConfigError

OURS = ("step_in_backward", "compile", "cuda_graphs", "replicate", "shard", "peer_timeout_s", "async_checkpoints")
SLURM_VARIABLES = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_NAME", "SLURM_PROCID")
# options of Lightning's Trainer that a run cannot have, and what to use instead
REFUSED = {
    "capture": "it is called trainer.cuda_graphs now",
    "barebones": "it leaves out logging and checkpoints",
    "default_root_dir": "a run is written to run_dir",
    "enable_checkpointing": "callbacks.checkpoints writes them",
    "limit_train_batches": "epochs are always complete; the budget of a run is trainer.max_steps",
    "fast_dev_run": "for a short run give trainer.max_steps=10 trainer.val_check_interval=10",
    "max_time": "the budget of a run is trainer.max_steps",
    "min_epochs": "the budget of a run is trainer.max_steps",
    "min_steps": "the budget of a run is trainer.max_steps",
    "model_registry": "logger chooses where a run is tracked",
    "overfit_batches": "to use less data, give data.source=PATH of a small table",
    "profiler": "it would write outside the run's folder; callbacks.cost times updates",
    "reload_dataloaders_every_n_epochs": "each epoch already has its own order",
}


def build_trainer(options: TrainerOptions, loggers: list[Any], callbacks: list[Any], **overrides: Any) -> Trainer:
    """Build Lightning's trainer, with validations counted in updates: none may interrupt an update.

    Args:
        options: of the run.
        loggers: of the run.
        callbacks: of the run.
        overrides: options that replace configured ones.

    Raises:
        ConfigError: an option is refused.
    """
    for name in REFUSED.keys() & options.plain().keys():
        raise ConfigError(f"trainer.{name} cannot be given: {REFUSED[name]}")
    if options.strategy != "fsdp" and (options.replicate, options.shard) != (1, None):
        raise ConfigError(
            f"trainer.replicate={options.replicate} trainer.shard={options.shard} are for trainer=fsdp, which divides "
            "the model"
        )
    replaced = {**size_by_torchrun(options), **overrides}
    node = {name: value for name, value in {**options.plain(), **replaced}.items() if name not in OURS}
    options = options.model_copy(update=replaced)
    if options.strategy == "fsdp":
        _refuse_beside_fsdp(options)
        node["strategy"] = FsdpStrategy(options.replicate, options.shard, options.peer_timeout_s)
        on_gpu = options.accelerator != "cpu" and torch.cuda.is_available()
        node["precision"] = node.get("precision") or ("bf16-mixed" if on_gpu else "32-true")
    elif options.strategy == "ddp" and options.cuda_graphs is not False:
        node["strategy"] = GraphedDDPStrategy(wraps=options.cuda_graphs is None)
    node["max_epochs"] = -1
    node["val_check_interval"] *= options.accumulate_grad_batches
    trainer = _instantiate(node, loggers, [*callbacks, *([CompiledEncoder()] if options.compile else [])])
    trainer.strategy.checkpoint_io = DurableCheckpointIO(bool(options.async_checkpoints))
    if isinstance(trainer.strategy, DDPStrategy):
        set_ddp_options(trainer.strategy, options.peer_timeout_s)
    if isinstance(trainer.strategy, FsdpStrategy):
        trainer.strategy.check_sizes(trainer.world_size)
    if options.step_in_backward:
        check_in_backward(trainer)
    _add_cuda_graphs(trainer, options)
    return trainer


def _add_cuda_graphs(trainer: Trainer, options: TrainerOptions) -> None:
    """Replay passes from CUDA graphs where that is asked for, or left open and known to work.

    Raises:
        ConfigError: it is asked for, and cannot work.
    """
    wanted, is_known = options.cuda_graphs, type(trainer.strategy) in (SingleDeviceStrategy, GraphedDDPStrategy)
    if isinstance(trainer.accelerator, CUDAAccelerator) and is_known and not options.step_in_backward:
        # nobody has run it on several GPUs; a look for the first NaN reads from the device; what is asked to be exact
        # is computed in one way throughout
        is_plain = (
            trainer.world_size == 1 and not getattr(options, "detect_anomaly", False) and not options.deterministic
        )
        if not (is_plain if wanted is None else wanted):
            return
        graphs = CudaGraphs(any_encoder=bool(wanted), updates=wanted == "updates")
        trainer.callbacks.append(graphs)  # type: ignore[attr-defined]
        # graphs of many shapes leave gaps that no other shape fits into; read when the first tensor is on a GPU
        if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    elif wanted:
        raise ConfigError(
            f"trainer.cuda_graphs={str(wanted).lower()} needs trainer=gpu, ddp or slurm (trainer.strategy=ddp) "
            "and trainer.step_in_backward=false: a graph computes all gradients of the encoder at once"
        )


def size_by_torchrun(options: TrainerOptions) -> dict[str, int]:
    """Return devices and machines that torchrun has started processes on, which may be fewer than before; else nothing.

    Raises:
        ConfigError: it has started other numbers of processes on its machines.
    """
    if TORCHRUN not in os.environ:
        return {}
    names = {"devices": "LOCAL_WORLD_SIZE", "num_nodes": "GROUP_WORLD_SIZE", "world": "WORLD_SIZE"}
    size = {name: int(os.environ[variable]) for name, variable in names.items()}
    if size["devices"] * size["num_nodes"] != size.pop("world"):
        raise ConfigError("torchrun: --nproc-per-node must be the same on all machines")
    if options.replicate == options.num_nodes > 1:  # of FSDP: a whole model on each machine
        size["replicate"] = size["num_nodes"]
    if isinstance(options.devices, list) and len(options.devices) == size["devices"]:
        del size["devices"]
    return size


def _refuse_beside_fsdp(options: TrainerOptions) -> None:
    """Refuse what needs whole parameters or gradients in one process.

    Raises:
        ConfigError: names the option.
    """
    impossible = (
        ("cuda_graphs", options.cuda_graphs, "a graph cannot gather parameters", "false"),
        ("step_in_backward", options.step_in_backward, "gradients are reduced layer by layer", "false"),
        ("compile", options.compile, "layers are gathered by hooks, which compiled ones leave out", "false"),
        ("deterministic", options.deterministic, "the order of reductions may differ between starts", "false"),
        ("precision", options.precision == "16-mixed", "a gradient scaler needs whole gradients", "bf16-mixed"),
    )
    for name, value, reason, instead in impossible:
        if value:
            raise ConfigError(
                f"trainer.{name}={options.plain()[name]} cannot work with trainer.strategy=fsdp: {reason}; "
                f"give trainer.{name}={instead}, or train with trainer=ddp"
            )


def captures_encoder(trainer: Trainer, encoder: nn.Module) -> bool:
    """Return whether passes of an encoder will be replayed from CUDA graphs."""
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    return any(isinstance(callback, CudaGraphs) and callback.captures(encoder) for callback in callbacks)


def _instantiate(node: Mapping[str, Any], loggers: list[Any], callbacks: list[Any]) -> Trainer:
    try:
        trainer: Trainer = instantiate(node, "trainer", logger=loggers, callbacks=callbacks)
    except ConfigError as error:
        slurm = [f"{name}={os.environ[name]}" for name in SLURM_VARIABLES if name in os.environ]
        if not slurm:
            raise
        # Lightning (2.6) tells which options of a batch script it wants, also where nobody has written one
        raise ConfigError(
            f"{error}; {' '.join(slurm)}: these variables say that SLURM has started several processes; unset them, or "
            "start one process per device with srun --ntasks-per-node=N (-n is not enough) and trainer=slurm "
            "trainer.devices=N, as the documentation's page on clusters shows"
        ) from error
    return trainer


def check_in_backward(trainer: Trainer) -> None:
    """Refuse what has to see all gradients of an update: with ``step_in_backward`` each is freed after its step.

    Raises:
        ConfigError: names the option.
    """
    impossible = (
        (trainer.gradient_clip_val, "clips the norm of all gradients", "gradient_clip_val=null"),
        (trainer.accumulate_grad_batches > 1, "sums the gradients of micro-batches", "accumulate_grad_batches=1"),
        (
            getattr(trainer.precision_plugin, "scaler", None),
            "leaves out updates whose scaled gradients overflow",
            "precision=bf16-mixed or precision=32-true",
        ),
        (trainer.world_size > 1, "averages gradients over the processes", "devices=1 trainer.num_nodes=1"),
    )
    for value, effect, instead in impossible:
        if value:
            raise ConfigError(
                f"trainer.step_in_backward=true cannot work in a run that {effect}: parameters step before all "
                f"gradients are known; add trainer.{instead}"
            )
