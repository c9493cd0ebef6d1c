"""Makes the folders that finished trainings leave, with errors and times of the test's choice."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from asr.run.options import SavedRun
from asr.runs.files import run_settings
from werdict.error_files import ERROR_COLUMNS

CLASSES = {"adamw": "optim.AdamW", "eve": "optim.Eve", "cain": "optim.Cain"}
NUM_UTTERANCES, NUM_SPEAKERS, NUM_WORDS = 24, 6, 10


def config_of(words: Sequence[str], **changes: Any) -> dict[str, Any]:
    typed = dict(word.split("=", 1) for word in words)
    optimizer = {"_target_": CLASSES[typed.get("optimizer", "adamw")], "_partial_": True}
    config = {
        "encoder": {"d_model": 48},
        "optimizer": {**optimizer, "lr": float(typed.get("optimizer.lr", 0.001))},
        "schedule": {"_target_": "optim.WarmupCosine", "max_steps": 100, "warmup_steps": 0.2},
        "trainer": {"max_steps": 100, "max_epochs": None, "devices": 1, "num_nodes": 1},
        "logger": {"metrics_csv": {"_target_": "asr.tracking.metrics_csv.MetricsCsv"}},
        "callbacks": {},
        "weights": "raw",
        "decode": ["best"],
        "decode_test": True,
        "sweep": {"name": typed.get("sweep.name")},
        "seed": int(typed.get("seed", 1)),
        "torch_threads": None,
        "run_dir": typed.get("run_dir"),
    }
    for key, value in changes.items():
        group, _, name = key.partition("__")
        config[group] = {**config[group], name: value} if name else value
    return config


def write_errors(path: Path, rate: float, seed: int, prefix: str = "utt", speakers: bool = True) -> None:
    """Errors at about ``rate`` per word, the same for the same arguments."""
    rng = np.random.default_rng([seed, round(1e6 * rate)])
    rows = [ERROR_COLUMNS]
    for index in range(NUM_UTTERANCES):
        speaker = f"speaker{index % NUM_SPEAKERS}" if speakers else ""
        rows.append((f"{prefix}{index:02d}", speaker, NUM_WORDS, rng.binomial(NUM_WORDS, rate), 0, 0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def write_metrics(path: Path, wers: Mapping[int, float], seconds_per_update: float | None = 0.5) -> None:
    """Write the metrics of a run that ends with the last validation; ``wers`` on dev by number of updates."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("step", "name", "value"))
        for update in range(1, max(wers) + 1):
            writer.writerow((update - 1, "train/loss", 5 / update))
            if seconds_per_update is not None:
                writer.writerow((update - 1, "train/elapsed_s", update * seconds_per_update))
            if update in wers:
                writer.writerow((update - 1, "val/wer", wers[update]))


def write_run(
    folder: Path,
    *words: str,
    rate: float = 0.3,
    sets: Sequence[str] = ("test",),
    data: str = "corpus/view",
    wers: Mapping[int, float] | None = None,
    config: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Path:
    """Write a finished run with what was typed; its seed is in the words."""
    composed = config_of(words, **(config or {}))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(composed))
    (folder / "overrides.yaml").write_text(yaml.safe_dump(list(words)))
    for name in sets:
        write_errors(folder / "decode" / f"{name}.errors.tsv", rate, composed["seed"])
    write_metrics(folder / "metrics.csv", wers or {50: 0.5, 100: rate})
    report = {
        **run_settings(SavedRun(**composed)),
        "test": {name: {"wer": rate} for name in sets},
        "notes": ["synthetic speech"],
        "num_parameters": 1000,
        "training": {"seconds": 60.0, "cpu_seconds": 70.0},
        "peak_memory_mb": 200.0,
        "data": data,
        "cost": {
            "training_seconds": 50.0,
            "seconds_per_update": 0.5,
            "optimizer_step_seconds": 0.05,
            "optimizer_step_sd": 0.01,
            "optimizer_share": 0.1,
            "optimizer_state_bytes": 8000,
        },
    }
    (folder / "report").mkdir()
    (folder / "report" / "summary.json").write_text(json.dumps({**report, **(summary or {})}))
    return folder


def write_sweep(folder: Path, rates: Mapping[str, float], seeds: Sequence[int] = (1, 2, 3), **options: Any) -> Path:
    """Write a run per optimizer and seed."""
    for optimizer, rate in rates.items():
        for seed in seeds:
            words = (f"optimizer={optimizer}", f"seed={seed}", "sweep.name=first")
            write_run(folder / f"optimizer={optimizer},seed={seed}", *words, rate=rate, **options)
    return folder
