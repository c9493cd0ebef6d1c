"""Builds Lightning's trainer, and refuses options that would break what a run promises."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import DictConfig

from asr.config.instantiate import instantiate
from asr.console import PlainConsole
from asr.data.loading.data_module import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.errors import ConfigError
from asr.subprocesses import is_first_process
from asr.training.compiled_encoder import CompiledEncoder

ACCELERATORS = ("cpu", "gpu", "cuda", "auto")
# other strategies shard the weights, or start processes in which a run cannot be resumed
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true")
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
SLURM_VARIABLES = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_NAME", "SLURM_PROCID")
# options of Lightning's Trainer that a run cannot have, and what to use instead
REFUSED = {
    "barebones": "it leaves out logging and checkpoints",
    "default_root_dir": "a run is written to run_dir",
    "enable_checkpointing": "callbacks.checkpoints writes them",
    "limit_train_batches": "epochs are whole; the budget of a run is trainer.max_steps",
    "fast_dev_run": "for a short run give trainer.max_steps=10 trainer.val_check_interval=10",
    "max_time": "the budget of a run is trainer.max_steps",
    "min_epochs": "the budget of a run is trainer.max_steps",
    "min_steps": "the budget of a run is trainer.max_steps",
    "model_registry": "logger chooses where a run is tracked",
    "overfit_batches": "for few data give data.source=PATH of a small table",
    "profiler": "it would write outside the run's folder; callbacks.cost times updates",
    "reload_dataloaders_every_n_epochs": "every epoch has its own order already",
}


def build_trainer(config: Mapping[str, Any], loggers: list[Any], callbacks: list[Any], **own: Any) -> Trainer:
    """Build Lightning's trainer, with validations counted in updates: none may interrupt an update.

    Args:
        config: of the run.
        loggers: of the run.
        callbacks: of the run.
        own: options that replace configured ones.

    Raises:
        ConfigError: an option is refused.
    """
    for name in REFUSED.keys() & config["trainer"].keys():
        raise ConfigError(f"trainer.{name} cannot be given: {REFUSED[name]}")
    node = {**config["trainer"], **own}
    _check_options(node)
    in_backward, peer_timeout_s = node.pop("step_in_backward", False), node.pop("peer_timeout_s", None)
    if node.pop("compile", False):
        callbacks = [*callbacks, CompiledEncoder()]
    node["max_epochs"] = -1
    node["val_check_interval"] *= node["accumulate_grad_batches"]
    trainer = _instantiate(node, loggers, callbacks)
    # clipping to a negative norm would reverse every gradient
    if trainer.gradient_clip_val is not None and not trainer.gradient_clip_val >= 0:
        raise ConfigError(f"trainer.gradient_clip_val must be at least 0, or null, given {trainer.gradient_clip_val}")
    if isinstance(trainer.strategy, DDPStrategy):
        _set_ddp_options(trainer.strategy, peer_timeout_s)
    if in_backward:
        check_in_backward(trainer)
    return trainer


def _set_ddp_options(strategy: DDPStrategy, peer_timeout_s: int | None) -> None:
    """Set what Lightning (2.6) leaves at torch's defaults where it constructs the strategy itself, for "auto" too.

    Two defaults are needed. Buffers are broadcast: all ranks continue with the first one's state of whitening, which is
    what a checkpoint holds. The graph is not static: what a Zipformer draws changes it, and a rank that reads nothing.
    """
    if peer_timeout_s is not None:
        strategy._timeout = timedelta(seconds=peer_timeout_s)
    # a copy of all gradients less
    strategy._ddp_kwargs.setdefault("gradient_as_bucket_view", True)


def _check_options(node: Mapping[str, Any]) -> None:
    """Refuse values that Lightning would take, and a run could not keep its promises with."""
    for name in ("max_steps", "val_check_interval", "log_every_n_steps", "accumulate_grad_batches"):
        _check_count(node.get(name), f"trainer.{name}")
    if node.get("max_epochs") not in (None, -1):
        _check_count(node["max_epochs"], "trainer.max_epochs")
    if node.get("check_val_every_n_epoch") is not None:
        raise ConfigError("trainer.check_val_every_n_epoch must be null: validations are counted in updates")
    for name in ("step_in_backward", "compile"):
        if not isinstance(node.get(name, False), bool):
            raise ConfigError(f"trainer.{name} must be true or false, given {node[name]!r}")
    if node.get("peer_timeout_s") is not None:
        _check_count(node["peer_timeout_s"], "trainer.peer_timeout_s")
    if node.get("accelerator") not in ACCELERATORS:
        raise ConfigError(
            f"trainer.accelerator must be one of {', '.join(ACCELERATORS)}, given {node.get('accelerator')!r}"
        )
    strategy = node.get("strategy", "auto")
    if not isinstance(strategy, Mapping) and strategy not in STRATEGIES:
        raise ConfigError(f"trainer.strategy must be one of {', '.join(STRATEGIES)}, given {strategy!r}")
    if node.get("num_nodes") is None:
        raise ConfigError("trainer.num_nodes must be given, the number of machines: trainer.num_nodes=…")
    # Lightning accepts 16 for 16-mixed, and more precisions, which are not tested here
    if node.get("precision") not in PRECISIONS:
        raise ConfigError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, given {node.get('precision')!r}")
    limit = node.get("limit_val_batches")
    if isinstance(limit, float) and limit != 1:
        raise ConfigError(f"trainer.limit_val_batches must be a whole number of batches, given {limit}")
    devices = node.get("devices", "auto")
    is_count = isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1
    if node["accelerator"] == "cpu" and devices != "auto" and not is_count:
        raise ConfigError(f"trainer.devices must be a whole number of at least 1 on a CPU, or auto, given {devices!r}")


def _instantiate(node: Mapping[str, Any], loggers: list[Any], callbacks: list[Any]) -> Trainer:
    try:
        trainer: Trainer = instantiate(node, "trainer", logger=loggers, callbacks=callbacks)
    except ConfigError as error:
        slurm = [f"{name}={os.environ[name]}" for name in SLURM_VARIABLES if name in os.environ]
        if "No supported gpu backend" in str(error):
            raise ConfigError(
                f"trainer.accelerator={node['accelerator']}: torch finds no GPU here; choose trainer=cpu"
            ) from error
        # Lightning (2.6) tells which options of a batch script it wants, also where nobody has written one
        if not slurm or "slurm" not in str(error).lower():
            raise
        lacking = "the trainer does not know of others"
        if "SLURM_NTASKS_PER_NODE" not in os.environ:
            lacking = "srun was not given --ntasks-per-node=N, for which -n (--ntasks) does not do"
        raise ConfigError(
            f"{' '.join(slurm)}: by these variables SLURM has started several processes, but {lacking}; unset them, or "
            "start one process per device with srun --ntasks-per-node=N and trainer=slurm trainer.devices=N, as the "
            "README shows"
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
    for given, what, instead in impossible:
        if given:
            raise ConfigError(
                f"trainer.step_in_backward=true cannot work in a run that {what}: parameters step before all "
                f"gradients are known; add trainer.{instead}"
            )


def _check_count(value: Any, key: str) -> None:
    if type(value) is not int or value < 1:
        by_epochs = value is None and key == "trainer.max_steps"
        instead = "; leave it out where trainer.max_epochs says how long" if by_epochs else ""
        raise ConfigError(f"{key} must be a whole number of at least 1, given {value!r}{instead}")


def set_budget(config: DictConfig, prepared: PreparedData, data_module: DataModule, world_size: int) -> None:
    """Replace ``trainer.max_epochs`` by ``trainer.max_steps``, with updates counted from metadata.

    The budget of a run is its number of updates: schedules take their length from there.

    Raises:
        ConfigError: an epoch has too little audio for an update.
    """
    _, sampler = data_module.training_data(prepared.cuts("train"), config.seed, None)
    per_update = config.trainer.accumulate_grad_batches * world_size
    num_batches = sampler.count_updates(0, 1)
    if num_batches < per_update:  # it would wait for the first update forever
        raise ConfigError(
            f"trainer.accumulate_grad_batches={config.trainer.accumulate_grad_batches} in each of {world_size} "
            f"processes are {per_update} micro-batches for an update, and an epoch has {num_batches}; lower it, "
            f"trainer.devices, or data.batch.max_duration_s={config.data.batch.max_duration_s}"
        )
    epochs = config.trainer.get("max_epochs")
    if epochs in (None, -1):
        return
    config.trainer.max_steps = sum(sampler.count_updates(epoch, per_update) for epoch in range(epochs))
    config.trainer.max_epochs = -1
    PlainConsole(quiet=not is_first_process()).print(f"{epochs} epochs are {config.trainer.max_steps} updates")
