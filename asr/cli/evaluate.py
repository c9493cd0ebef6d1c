"""``asr-evaluate``: a checkpoint and a set → WER."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from asr.cli.app import run_app
from asr.cli.restore import Restored, restore
from asr.data.manifests import evaluation_cuts
from asr.training.report import decoded_with, evaluate_set
from asr.training.run_folder import claim_run_folder, create_run_folder

console = Console(highlight=False)


def main() -> None:
    """Run ``asr-evaluate``."""
    run_app("evaluate", evaluate)


def evaluate(options: DictConfig) -> None:
    """Decode the sets, write hypotheses and error rates, and print them."""
    restored = restore(options)
    sets, notes = _sets(options, restored)
    output = _output_folder(options, restored.checkpoint.path)
    checkpoint = restored.checkpoint
    console.print(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}", soft_wrap=True)
    notes = [*notes, decoded_with(checkpoint)]
    for name, cuts in sets.items():
        evaluate_set(restored.recogniser, restored.decoder, restored.reading, cuts, name, notes, output)
    console.print(f"hypotheses and error rates: {output}", soft_wrap=True)


def _sets(options: DictConfig, restored: Restored) -> tuple[dict[str, Any], list[str]]:
    if options.manifest is None:
        prepared = restored.prepared()
        return {name: prepared.cuts(name) for name in prepared.names("test")}, list(prepared.notes)
    path = Path(options.manifest).expanduser()
    cuts, dropped = evaluation_cuts(path, restored.text, restored.reading.features)
    for item in dropped:
        console.print(f"left out {item.item}: {item.reason}", markup=False, soft_wrap=True)
    return {options.name or _set_name(path): cuts}, []


def _set_name(path: Path) -> str:
    return re.sub(r"[^\w.+-]+", "_", path.name.split(".")[0]).lstrip(".+-") or "set"


def _output_folder(options: DictConfig, checkpoint: Path) -> Path:
    if options.output_dir is not None:
        return claim_run_folder(options.output_dir, "output_dir")
    run_dir = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
    return create_run_folder(run_dir / "decode")


if __name__ == "__main__":
    main()
