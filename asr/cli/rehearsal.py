"""What cannot work fails here, before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from asr.cli.errors import ConfigError
from asr.cli.instantiate import Configured, instantiate
from asr.cli.parts import ALLOWED, build_recogniser, data_parts, part, update_parts
from asr.training.processes import is_started_as_rank
from asr.training.run_folder import free_folder, num_threads, usable_folder
from asr.training.weights import check_kind

MOST = 2**63 - 1  # what torch takes as a seed
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def rehearse(config: Mapping[str, Any], resumed: bool = False) -> Trainer:
    """Build everything once with a small vocabulary; return the trainer, which has not started anything."""
    _check_whole(config.get("seed"), "seed", 0)
    if not isinstance(config.get("decode_test"), bool):
        raise ConfigError(f"decode_test must be true or false, given {config.get('decode_test')!r}")
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
    _check_weights(config)
    _check_folders(config, resumed)
    part(config, "data.prepare")
    features = data_parts(config).features
    zeros, ones = [0.0] * features.num_features, [1.0] * features.num_features
    recogniser = build_recogniser(config, 8, zeros, ones)
    parts = update_parts(config)
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


def _check_whole(value: Any, key: str, least: int, most: int = MOST) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        at_most = f" and at most {most}" if isinstance(value, int) and value > most else ""
        raise ConfigError(f"{key} must be a whole number of at least {least}{at_most}, given {value!r}")


def build_trainer(config: Mapping[str, Any], loggers: list[Any], callbacks: list[Any]) -> Trainer:
    """Build Lightning's trainer; validations are counted in updates, so that none falls into the middle of one."""
    node = dict(config["trainer"])
    for name in ("max_steps", "val_check_interval", "accumulate_grad_batches"):
        _check_whole(node.get(name), f"trainer.{name}", 1)
    if node.get("max_epochs") not in (None, -1):
        _check_whole(node["max_epochs"], "trainer.max_epochs", 1)
    node["max_epochs"] = -1
    node["val_check_interval"] *= node["accumulate_grad_batches"]
    trainer: Trainer = instantiate(node, "trainer", ALLOWED["trainer"], logger=loggers, callbacks=callbacks)
    # a negative norm would turn every gradient round
    if trainer.gradient_clip_val is not None and not trainer.gradient_clip_val >= 0:
        raise ConfigError(f"trainer.gradient_clip_val must be at least 0, or null, given {trainer.gradient_clip_val}")
    if trainer.precision not in PRECISIONS:
        raise ConfigError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, given {node['precision']!r}")
    return trainer


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
            key = f"{group}.{name}"
            factories.append(instantiate({**node, "_partial_": True}, key, ALLOWED.get(key, ALLOWED[group])))
    return factories


def attachments(config: Mapping[str, Any], group: str, run_dir: Path) -> list[Any]:
    """Build the loggers or callbacks of a group; each is given what it asks for."""
    known = {"run_dir": run_dir, "config": config}
    return [factory.with_known(known) for factory in attachment_factories(config, group)]
