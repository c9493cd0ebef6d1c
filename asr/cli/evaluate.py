"""``asr-evaluate``: a checkpoint and a set → WER."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig

from asr.cli.app import run_app
from asr.cli.builders.restore import Restored, restore
from asr.cli.errors import ConfigError
from asr.console import PlainConsole
from asr.data.preparation.cuts import evaluation_cuts
from asr.errors import RunFailed
from asr.inference.evaluate import evaluate_sets
from asr.run_folder import claim_run_folder, create_run_folder
from asr.safe_io import named_path

NUM_LEFT_OUT = 20  # so many are named

console = PlainConsole()


def main() -> None:
    """Run ``asr-evaluate``."""
    run_app("evaluate", run)


def run(options: DictConfig) -> None:
    """Decode the sets, write hypotheses and error rates, and print them."""
    if options.name is not None and options.manifest is None:
        raise ConfigError(f"name={options.name} names the set of a manifest; add manifest=PATH, or leave name out")
    restored = restore(options)
    sets, notes = _sets(options, restored)
    checkpoint = restored.checkpoint
    if options.output_dir is not None:
        output = claim_run_folder(options.output_dir, "output_dir")
    else:
        run_dir = checkpoint.path.parent
        run_dir = run_dir.parent if run_dir.name == "checkpoints" else run_dir
        output = create_run_folder(run_dir / "decode", within=run_dir)
    console.print(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}", soft_wrap=True)
    notes = [*notes, checkpoint.decoding_note(), *restored.notes]
    _, failures = evaluate_sets(restored.recognizer, restored.decoder, restored.data_module, sets, notes, output)
    console.print(f"hypotheses and error rates: {output}", soft_wrap=True)
    if failures:
        raise RunFailed(failures[0])


def _sets(options: DictConfig, restored: Restored) -> tuple[dict[str, Any], list[str]]:
    if options.manifest is None:
        prepared = restored.prepared()
        return {name: prepared.cuts(name) for name in prepared.names("test")}, list(prepared.notes)
    path = named_path(options.manifest)
    cuts, dropped, notes = evaluation_cuts(path, restored.text, restored.data_module.features)
    for item in dropped[:NUM_LEFT_OUT]:
        console.print(f"left out {item.item}: {item.reason}", soft_wrap=True)
    if len(dropped) > NUM_LEFT_OUT:
        console.print(f"left out {len(dropped) - NUM_LEFT_OUT} more, {len(dropped)} in all")
    of_file = re.sub(r"[^\w.+-]+", "_", path.name.split(".")[0]).lstrip(".+-") or "set"
    return {of_file if options.name is None else str(options.name): cuts}, notes


if __name__ == "__main__":
    main()
