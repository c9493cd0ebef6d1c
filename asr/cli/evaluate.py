"""``asr-evaluate``: a checkpoint and a set → WER."""

from __future__ import annotations

from omegaconf import DictConfig
from rich.console import Console

from asr.cli.app import run_app
from asr.cli.restore import restore
from asr.training.report import evaluate_set

console = Console()


def main() -> None:
    """Run ``asr-evaluate``."""
    run_app("evaluate", evaluate)


def evaluate(options: DictConfig) -> None:
    """Decode the sets, write hypotheses and error rates, and print them."""
    restored = restore(options)
    sets, notes = _sets(options, restored)
    output = _output_folder(options, restored.checkpoint.path)
    console.print(f"checkpoint {restored.checkpoint.path}, update {restored.checkpoint.update}", soft_wrap=True)
    for name, cuts in sets.items():
        evaluate_set(restored.recogniser, restored.decoder, restored.reading, cuts, name, notes, output)
    console.print(f"hypotheses and error rates: {output}", soft_wrap=True)
