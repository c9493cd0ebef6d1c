"""``asr-evaluate``: a checkpoint and a set → WER."""

from __future__ import annotations

from omegaconf import DictConfig

from asr.cli.app import run_app
from asr.cli.builders.evaluation_sets import check_name, evaluation_sets, output_folder
from asr.cli.builders.restore import restore
from asr.console import PlainConsole
from asr.errors import RunFailed
from asr.inference.evaluate import evaluate_sets

console = PlainConsole()


def main() -> None:
    """Run ``asr-evaluate``."""
    run_app("evaluate", run)


def run(options: DictConfig) -> None:
    """Decode the sets, write hypotheses and error rates, and print them."""
    check_name(options)
    restored = restore(options)
    sets, notes = evaluation_sets(options, restored)
    checkpoint = restored.checkpoint
    output = output_folder(options, checkpoint, "decode")
    console.print(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}", soft_wrap=True)
    notes = [*notes, checkpoint.decoding_note(), *restored.notes]
    _, failures = evaluate_sets(restored.recognizer, restored.decoder, restored.data_module, sets, notes, output)
    console.print(f"hypotheses and error rates: {output}", soft_wrap=True)
    if failures:
        raise RunFailed(failures[0])


if __name__ == "__main__":
    main()
