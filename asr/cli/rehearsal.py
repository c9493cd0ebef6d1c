"""What cannot work fails here, before any work is done."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator

from asr.cli.bounds import MAX_CPU_S, bounded
from asr.cli.errors import ConfigError
from asr.cli.instantiate import Configured, instantiate
from asr.cli.model_size import no_more_than_this_machine_holds, refuse_huge_numbers
from asr.cli.parts import data_parts, outline_recogniser, part, update_parts
from asr.training.processes import is_started_as_rank
from asr.training.run_folder import free_folder, num_threads, usable_folder
from asr.training.weights import check_kind

MOST_UPDATES = 2**63 - 1  # that Lightning and torch count
MOST_MICRO_BATCHES = 10_000  # of an update
MOST_EPOCHS = 10_000  # each is planned to count its updates
ACCELERATORS = ("cpu", "gpu", "cuda", "auto")
# others share out the weights, or start processes in which a run cannot be resumed
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true")
BACKENDS = (None, "gloo", "nccl")
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
GIVEN = {"run_dir", "config"}  # what the program itself hands to loggers and callbacks
# options of Lightning's Trainer that would break what this program promises, and what to use instead
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


def rehearse(config: Mapping[str, Any], resumed: bool = False) -> Trainer:
    """Build everything once with a small vocabulary; return the trainer, which has not started anything."""
    num_threads(config.get("torch_threads"), 0)
    trainer = build_trainer(config, loggers=[], callbacks=[])
    if trainer.world_size > trainer.num_devices and not is_started_as_rank(trainer):
        raise ConfigError(
            f"trainer.num_nodes={trainer.num_nodes}: on several machines start one process per device with torchrun or "
            "srun, as the README shows"
        )
    # not made yet, because making a logger writes
    attachment_factories(config, "logger")
    attachments(config, "callbacks", Path("runs"))
    if config["callbacks"].get("checkpoints") is None:
        raise ConfigError("callbacks.checkpoints must not be null: without it a run can be neither decoded nor resumed")
    _check_weights(config)
    _check_folders(config, resumed)
    part(config, "data.prepare")
    features = data_parts(config).features
    refuse_huge_numbers(config)
    with no_more_than_this_machine_holds():
        recogniser = outline_recogniser(config, 8, features.num_features)
    parts = update_parts(config)
    with bounded(f"parameter_rules: a pattern takes longer than {MAX_CPU_S} s on the names of parameters; simplify it"):
        optimizer = parts.optimizer_factory(recogniser.named_parameters())
    parts.schedule_factory(optimizer)
    return trainer


def _check_weights(config: Mapping[str, Any]) -> None:
    """Refuse weights to decode with that the checkpoints will not have."""
    kind = config["weights"]
    check_kind(kind)
    averaging = config["callbacks"].get("averaging")
    if kind != "raw" and averaging is None:
        raise ConfigError(f"weights={kind}: with callbacks.averaging=null there are raw weights alone")
    if kind == "ema" and averaging["ema_decay"] is None:
        raise ConfigError("weights=ema: with callbacks.averaging.ema_decay=null there is none; allowed: raw, average")


def _check_folders(config: Mapping[str, Any], resumed: bool) -> None:
    usable_folder(config["data"].get("dir"), "data.dir")
    if config["run_dir"] is None:
        usable_folder("runs", "run_dir")
    elif not resumed:
        free_folder(config["run_dir"], "run_dir")


def _check_count(value: Any, key: str, most: int = MOST_UPDATES) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        at_most = f" and at most {most}" if isinstance(value, int) and value > most else ""
        raise ConfigError(f"{key} must be a whole number of at least 1{at_most}, given {value!r}")


def build_trainer(config: Mapping[str, Any], loggers: list[Any], callbacks: list[Any], **own: Any) -> Trainer:
    """Build Lightning's trainer; validations are counted in updates, so that none falls into the middle of one.

    Args:
        config: of the run.
        loggers: built.
        callbacks: built.
        own: options in the place of configured ones.

    Raises:
        ConfigError: an option is refused.
    """
    for name in REFUSED.keys() & config["trainer"].keys():
        raise ConfigError(f"trainer.{name} cannot be given: {REFUSED[name]}")
    node = {**config["trainer"], **own}
    for name in ("max_steps", "val_check_interval", "log_every_n_steps"):
        _check_count(node.get(name), f"trainer.{name}")
    _check_count(node.get("accumulate_grad_batches"), "trainer.accumulate_grad_batches", MOST_MICRO_BATCHES)
    if node.get("max_epochs") not in (None, -1):
        _check_count(node["max_epochs"], "trainer.max_epochs", MOST_EPOCHS)
    if node.get("check_val_every_n_epoch") is not None:
        raise ConfigError("trainer.check_val_every_n_epoch must be null: validations are counted in updates")
    node["max_epochs"] = -1
    node["val_check_interval"] *= node["accumulate_grad_batches"]
    if node.get("accelerator") not in ACCELERATORS:
        raise ConfigError(
            f"trainer.accelerator must be one of {', '.join(ACCELERATORS)}, given {node.get('accelerator')!r}"
        )
    _check_strategy(node.get("strategy", "auto"))
    # Lightning takes 16 for 16-mixed, and other names for other precisions
    if node.get("precision") not in PRECISIONS:
        raise ConfigError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, given {node.get('precision')!r}")
    trainer: Trainer = instantiate(node, "trainer", logger=loggers, callbacks=callbacks)
    # a negative norm would turn every gradient round
    if trainer.gradient_clip_val is not None and not trainer.gradient_clip_val >= 0:
        raise ConfigError(f"trainer.gradient_clip_val must be at least 0, or null, given {trainer.gradient_clip_val}")
    _check_processes(trainer)
    return trainer


def _check_strategy(given: Any) -> None:
    if not isinstance(given, Mapping):
        if given not in STRATEGIES:
            raise ConfigError(f"trainer.strategy must be one of {', '.join(STRATEGIES)}, given {given!r}")
        return
    if given.get("process_group_backend") not in BACKENDS:
        raise ConfigError(
            "trainer.strategy.process_group_backend must be gloo, nccl, or null, given "
            f"{given['process_group_backend']!r}"
        )
    if given.get("start_method", "popen") != "popen":
        raise ConfigError(
            f"trainer.strategy.start_method must be 'popen', given {given['start_method']!r}: forked processes "
            "cannot be resumed"
        )


def _check_processes(trainer: Trainer) -> None:
    """Refuse more processes than a CPU has cores: they would hardly advance, and fill the memory."""
    most = max(2, len(os.sched_getaffinity(0)))
    if isinstance(trainer.accelerator, CPUAccelerator) and trainer.num_devices > most:
        raise ConfigError(
            f"trainer.devices={trainer.num_devices}: on this CPU at most {most} processes train together; "
            "choose fewer, or trainer=ddp on a machine with GPUs"
        )


def attachment_factories(config: Mapping[str, Any], group: str) -> list[Configured]:
    """Check the keys and types of the loggers or callbacks of a group."""
    nodes = config.get(group)
    if not isinstance(nodes, Mapping):
        raise ConfigError(f"{group} is missing in the config" if nodes is None else f"{group}: given {nodes!r}")
    factories = []
    for name, node in nodes.items():
        if node is not None and not isinstance(node, Mapping):
            raise ConfigError(f"{group}.{name} must hold _target_ and options, or be null, given {node!r}")
        if node is not None:
            for reserved in GIVEN & node.keys():
                raise ConfigError(
                    f"{group}.{name}.{reserved} cannot be given: it follows from the run's own {reserved}"
                )
            factories.append(instantiate({**node, "_partial_": True}, f"{group}.{name}"))
    return factories


def attachments(config: Mapping[str, Any], group: str, run_dir: Path) -> list[Any]:
    """Build the loggers or callbacks of a group; each is given what it asks for."""
    known = {"run_dir": run_dir, "config": config}
    assert known.keys() == GIVEN
    return [factory.with_known(known) for factory in attachment_factories(config, group)]
