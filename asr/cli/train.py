"""``asr-train``: from a recipe to a WER."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from asr.cli.app import run_app
from asr.cli.data import prepare_data
from asr.cli.errors import ConfigError
from asr.cli.instantiate import Configured, instantiate
from asr.cli.multirun import run_child
from asr.cli.parts import ALLOWED, build_recogniser, data_parts, part, plain, update_parts
from asr.data.prepared import PreparedData
from asr.data.reading import Reading
from asr.training.checkpoints import FORMAT
from asr.training.module import TrainingModule
from asr.training.report import report_training
from asr.training.resume import ResumableLoader
from asr.training.run_folder import (
    Stopwatch,
    claim_run_folder,
    create_run_folder,
    free_folder,
    num_threads,
    point_latest,
    usable_folder,
)
from asr.training.session import fit

MOST = 2**63 - 1  # what torch takes as a seed

console = Console()


def main() -> None:
    """Run ``asr-train``."""
    run_app("train", train)


def train(config: DictConfig) -> None:
    """Prepare what is missing, train, decode the test sets, and say where everything is."""
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        return run_child("asr.cli.train", job.overrides.task)
    rehearse(plain(config))
    prepared = prepare_data(plain(config))
    set_budget(config, prepared)
    resolved = plain(config)
    run_dir = _run_folder(resolved, job.runtime.choices["recipe"])
    OmegaConf.save(OmegaConf.create(resolved), run_dir / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(job.overrides.task)), run_dir / "overrides.yaml")
    _run(resolved, prepared, run_dir)


def rehearse(config: Mapping[str, Any]) -> None:
    """Build everything once with a small vocabulary, so that what cannot work fails before any work is done."""
    _check_whole(config.get("seed"), "seed", 0)
    num_threads(config.get("torch_threads"), 0)
    trainer = _trainer(config, loggers=[], callbacks=[])
    if trainer.world_size != 1:
        # ranks would each make a run folder of their own
        raise ConfigError(
            f"trainer.devices={config['trainer'].get('devices')!r} means {trainer.world_size} processes, but asr-train "
            "trains in one; choose trainer.devices=1"
        )
    for group in ("logger", "callbacks"):
        _attachment_factories(config, group)
    _check_folders(config)
    part(config, "data.prepare")
    features = data_parts(config).features
    zeros, ones = [0.0] * features.num_features, [1.0] * features.num_features
    recogniser = build_recogniser(config, 8, zeros, ones)
    parts = update_parts(config)
    optimizer = parts.optimizer_factory(recogniser.named_parameters())
    parts.schedule_factory(optimizer)


def _check_folders(config: Mapping[str, Any]) -> None:
    usable_folder(config["data"].get("dir"), "data.dir")
    if config["run_dir"] is None:
        usable_folder("runs", "run_dir")
    else:
        free_folder(config["run_dir"], "run_dir")


def _check_whole(value: Any, key: str, least: int, most: int = MOST) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        at_most = f" and at most {most}" if isinstance(value, int) and value > most else ""
        raise ConfigError(f"{key} must be a whole number of at least {least}{at_most}, given {value!r}")


def set_budget(config: DictConfig, prepared: PreparedData) -> None:
    """Turn ``trainer.max_epochs`` into ``trainer.max_steps``, counting updates on metadata.

    The budget of a run is its number of updates: schedules with a horizon read it from there.
    """
    epochs = config.trainer.get("max_epochs")
    if epochs in (None, -1):
        return
    reading, trainer = _reading(plain(config), prepared), config.trainer
    _, order = reading.training_data(prepared.cuts("train"), config.seed, None)
    per_update = trainer.accumulate_grad_batches * _world_size(plain(config))
    config.trainer.max_steps = sum(order.count_updates(epoch, per_update) for epoch in range(epochs))
    config.trainer.max_epochs = -1
    console.print(f"{epochs} epochs are {config.trainer.max_steps} updates")


def _world_size(config: Mapping[str, Any]) -> int:
    return _trainer(config, loggers=[], callbacks=[]).world_size


def _reading(config: Mapping[str, Any], prepared: PreparedData) -> Reading:
    parts = data_parts(config)
    return Reading(parts.features, prepared.tokenizer, parts.batch, parts.workers)


def _run_folder(config: Mapping[str, Any], recipe: str) -> Path:
    if config["run_dir"] is not None:
        return claim_run_folder(config["run_dir"])
    folder = create_run_folder(Path("runs") / recipe)
    point_latest(folder, Path("runs") / "latest")
    return folder


def _trainer(config: Mapping[str, Any], loggers: list[Any], callbacks: list[Any]) -> Trainer:
    node = dict(config["trainer"])
    for name in ("max_steps", "val_check_interval", "accumulate_grad_batches"):
        _check_whole(node.get(name), f"trainer.{name}", 1)
    if node.get("max_epochs") not in (None, -1):
        _check_whole(node["max_epochs"], "trainer.max_epochs", 1)
    node["max_epochs"] = -1
    try:
        trainer = instantiate(node, "trainer", ALLOWED["trainer"], logger=loggers, callbacks=callbacks)
    except MisconfigurationException as error:
        raise ConfigError(f"trainer: {error}") from error
    # a negative norm would turn every gradient round
    if trainer.gradient_clip_val is not None and not trainer.gradient_clip_val >= 0:
        raise ConfigError(f"trainer.gradient_clip_val must be at least 0, or null, given {trainer.gradient_clip_val}")
    return trainer


def _attachment_factories(config: Mapping[str, Any], group: str) -> list[Configured]:
    """Check the loggers or callbacks of a group; they are not made yet, because making them writes."""
    nodes = config.get(group)
    if not isinstance(nodes, Mapping):
        raise ConfigError(f"{group} is missing in the config" if nodes is None else f"{group}: given {nodes!r}")
    factories = []
    for name, node in nodes.items():
        if node is not None and not isinstance(node, Mapping):
            raise ConfigError(f"{group}.{name} must hold _target_ and options, or be null, given {node!r}")
        if node is not None:
            factories.append(instantiate({**node, "_partial_": True}, f"{group}.{name}", ALLOWED[group]))
    return factories


def _attachments(config: Mapping[str, Any], group: str, run_dir: Path) -> list[Any]:
    """Build the loggers or callbacks of a group; each is given what it asks for."""
    known = {"run_dir": run_dir, "config": config}
    return [factory.with_known(known) for factory in _attachment_factories(config, group)]


def _run(config: Mapping[str, Any], prepared: PreparedData, run_dir: Path) -> None:
    torch.set_num_threads(num_threads(config.get("torch_threads"), config["data"]["workers"]["num_workers"]))
    watch = Stopwatch()
    reading, module = _reading(config, prepared), _module(config, prepared)
    num_parameters = sum(p.numel() for p in module.recogniser.parameters())
    budget = config["trainer"]["max_steps"]
    console.print(f"{num_parameters:,} parameters, {budget} updates, run folder {run_dir}", soft_wrap=True)
    loggers = _attachments(config, "logger", run_dir)
    exit_code = 1
    try:
        trainer = _trainer(config, loggers, _attachments(config, "callbacks", run_dir))
        perturb = data_parts(config).perturb
        dataset, order = reading.training_data(prepared.cuts("train"), config["seed"], perturb)
        dev = [reading.evaluation_loader(prepared.cuts(name)) for name in module.dev_names]
        fit(trainer, module, ResumableLoader(dataset, order, reading.workers), dev)
        report_training(module, reading, prepared, run_dir, loggers, watch.read())
        exit_code = 0
    finally:
        _close(loggers, exit_code)


def _module(config: Mapping[str, Any], prepared: PreparedData) -> TrainingModule:
    updates = update_parts(config)
    data = {
        "fingerprint": prepared.fingerprint,
        "folder": str(prepared.folder),
        "notes": list(prepared.notes),
    }
    return TrainingModule(
        build_recogniser(config, prepared.tokenizer.vocab_size, prepared.mean, prepared.std),
        prepared.tokenizer,
        updates.decoder,
        updates.optimizer_factory,
        updates.schedule_factory,
        dev_names=prepared.names("dev"),
        extra_state={
            "format": FORMAT,
            "config": dict(config),
            "tokenizer": prepared.tokenizer.state(),
            "data": data,
        },
    )


def _close(loggers: list[Any], exit_code: int) -> None:
    """End the loggers that want to know how a run ended, and say how to upload what they kept."""
    for logger in loggers:
        upload = logger.close(exit_code) if hasattr(logger, "close") else None
        if upload:
            console.print(f"upload this run: {upload}", soft_wrap=True)


if __name__ == "__main__":
    main()
