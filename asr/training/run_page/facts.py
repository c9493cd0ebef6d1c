"""What a run was, in a table that says enough to whom the page is sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr.evaluation.formatting import duration
from asr.evaluation.metrics_csv import read_metrics
from asr.plain_data import at
from asr.training.module import TrainingModule

RATE = "train/lr"


def run_facts(
    run_dir: Path,
    config: Mapping[str, Any],
    recipe: str,
    module: TrainingModule,
    splits: Mapping[str, Mapping[str, float]],
    minutes: float,
    provenance: Mapping[str, Any],
) -> dict[str, str]:
    """Return the rows of the table: name → text.

    Args:
        run_dir: folder of the run.
        config: of the run, resolved.
        recipe: its name.
        module: trained.
        splits: of the data: ``num_utterances`` and ``hours`` by name.
        minutes: of training.
        provenance: as `asr.training.report.provenance` returns it, with ``date``.
    """
    parts, trainer = module.recognizer, config["trainer"]
    sizes = [
        f"{name} {duration(3600 * of['hours'])}, {of['num_utterances']:,} utterances" for name, of in splits.items()
    ]
    batch_s = at(config, "data", "batch", "max_duration_s")
    versions = {"Python": provenance["python"], **provenance["versions"]}
    origin = getattr(parts.encoder, "origin", None)
    started = {}
    if origin:
        started["pretrained"] = f"{origin['model']} {origin['revision']}, licence {origin['license']}"
        adapters = f", {_choice(config['encoder']['lora'])}" * (config["encoder"]["train"] == "adapters")
        started["trained of it"] = f"{config['encoder']['train']}{adapters}"
    if at(config, "init", "path"):
        started["starts from"] = f"{config['init']['path']}, frozen: {', '.join(config['init']['freeze']) or 'nothing'}"
    return {
        "recipe": recipe,
        "corpus": f"{config['data']['corpus']}: {'; '.join(sizes)}",
        "encoder": _part(parts.encoder),
        **started,
        "head": _part(parts.head),
        "parameters": _parameters(parts),
        "optimizer": _choice(config["optimizer"]),
        "peak learning rate": _peak_rate(run_dir, config),
        "schedule": _choice(config["schedule"]),
        "seed": str(config["seed"]),
        "updates": f"{module.trainer.global_step:,} of {trainer['max_steps']:,}, each of {module.trainer.world_size} × "
        f"{trainer.get('accumulate_grad_batches') or 1} × {batch_s:g} s of audio at most",
        "precision and device": f"{trainer.get('precision')}, {module.trainer.world_size} × {_device(module.device)}",
        "time": f"{minutes:g} minutes, ended on {provenance['date']}",
        "commit": provenance["commit"] or "–",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _part(module: object) -> str:
    assert isinstance(module, nn.Module)
    return f"{type(module).__name__}, {_parameters(module)} parameters"


def _parameters(module: nn.Module) -> str:
    """Return the number of parameters and, if they are fewer, of those that were trained."""
    total = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return f"{total:,}" if trained == total else f"{trained:,} trained of {total:,}"


def _choice(node: Mapping[str, Any] | None) -> str:
    """Return the class of a config, and its options that are set."""
    if not node:
        return "none"
    options = [
        f"{key} {value}" for key, value in node.items() if key[0] != "_" and not (value is None or value is False)
    ]
    return ", ".join([*filter(None, [str(node.get("_target_", "")).rpartition(".")[2]]), *options])


def _peak_rate(run_dir: Path, config: Mapping[str, Any]) -> str:
    """Return the largest learning rate that was logged, or else the optimizer's option."""
    metrics = run_dir / "metrics.csv"
    curves = read_metrics(metrics, lambda name: name == RATE) if metrics.exists() else {}
    rate = max(curves[RATE][1]) if RATE in curves else at(config, "optimizer", "lr")
    return "the optimizer's own" if rate is None else f"{rate:.3g}"


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
