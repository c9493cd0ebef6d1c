"""``asr-evaluate``: a checkpoint and a set → WER."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from asr.cli.app import run_app
from asr.cli.errors import ConfigError
from asr.cli.restore import Restored, restore
from asr.console import PlainConsole
from asr.data.preparation.cuts import evaluation_cuts
from asr.safe_io import named_path
from asr.training.report import NothingRead, decoded_with, evaluate_set
from asr.training.run_folder import claim_run_folder, create_run_folder

NUM_LEFT_OUT = 20  # are named

console = PlainConsole()


def main() -> None:
    """Run ``asr-evaluate``."""
    run_app("evaluate", evaluate)


def evaluate(options: DictConfig) -> None:
    """Decode the sets, write hypotheses and error rates, and print them."""
    if options.name is not None and options.manifest is None:
        raise ConfigError(f"name={options.name} names the set of a manifest; add manifest=PATH, or leave name out")
    restored = restore(options)
    sets, notes = _sets(options, restored)
    output = _output_folder(options, restored.checkpoint.path)
    checkpoint = restored.checkpoint
    console.print(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}", soft_wrap=True)
    notes = [*notes, decoded_with(checkpoint)]
    failed: list[NothingRead] = []
    for name, cuts in sets.items():
        try:
            evaluate_set(restored.recogniser, restored.decoder, restored.reading, cuts, name, notes, output)
        except NothingRead as error:
            failed.append(error)
    console.print(f"hypotheses and error rates: {output}", soft_wrap=True)
    if failed:
        raise failed[0]


def _sets(options: DictConfig, restored: Restored) -> tuple[dict[str, Any], list[str]]:
    if options.manifest is None:
        prepared = restored.prepared()
        return {name: prepared.cuts(name) for name in prepared.names("test")}, list(prepared.notes)
    path = named_path(options.manifest)
    cuts, dropped = evaluation_cuts(path, restored.text, restored.reading.features)
    for item in dropped[:NUM_LEFT_OUT]:
        console.print(f"left out {item.item}: {item.reason}", soft_wrap=True)
    if len(dropped) > NUM_LEFT_OUT:
        console.print(f"left out {len(dropped) - NUM_LEFT_OUT} more, {len(dropped)} in all")
    return {_set_name(path) if options.name is None else str(options.name): cuts}, []


def _set_name(path: Path) -> str:
    return re.sub(r"[^\w.+-]+", "_", path.name.split(".")[0]).lstrip(".+-") or "set"


def _output_folder(options: DictConfig, checkpoint: Path) -> Path:
    if options.output_dir is not None:
        return claim_run_folder(options.output_dir, "output_dir")
    run_dir = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
    return create_run_folder(run_dir / "decode", within=run_dir)


if __name__ == "__main__":
    main()
