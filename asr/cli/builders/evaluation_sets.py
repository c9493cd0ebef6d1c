"""What ``manifest=`` and ``name=`` say: the sets that a recognizer is to read, and the folder of the results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig

from asr.cli.builders.restore import Restored
from asr.cli.errors import ConfigError
from asr.console import PlainConsole
from asr.data.preparation.cuts import evaluation_cuts
from asr.run_folder import claim_run_folder, create_run_folder
from asr.safe_io import named_path
from asr.training.checkpoints import LoadedCheckpoint

NUM_LEFT_OUT = 20  # so many are named

console = PlainConsole()


def check_name(options: DictConfig) -> None:
    """Refuse a name of a set that is not there.

    Raises:
        ConfigError: there is no manifest.
    """
    if options.name is not None and options.manifest is None:
        raise ConfigError(f"name={options.name} names the set of a manifest; add manifest=PATH, or leave name out")


def evaluation_sets(
    manifest: object, name: object, restored: Restored, option: str = "manifest"
) -> tuple[dict[str, Any], list[str]]:
    """Return cuts by the name of their set, and notes on them.

    Args:
        manifest: as typed, one or a list; None: the run's own test sets.
        name: of its set; None: from its file.
        restored: that is to read them.
        option: that names the manifest, for messages.
    """
    if manifest is None:
        prepared = restored.prepared()
        return {test: prepared.cuts(test) for test in prepared.names("test")}, list(prepared.notes)
    given = list(manifest) if isinstance(manifest, ListConfig) else [manifest]
    if not given or (name is not None and len(given) > 1):
        raise ConfigError(f"{option}: name one manifest, or several without name=, given {given}")
    sets: dict[str, Any] = {}
    notes: list[str] = []
    for one in given:
        found, cuts, told = _read(named_path(one), name, restored, option)
        if found in sets:
            raise ConfigError(f"{option}: two manifests would be the set {found!r}; rename one of their files")
        sets[found] = cuts
        notes += [f"{found}: {note}" for note in told] if len(given) > 1 else told
    return sets, notes


def _read(path: Path, name: object, restored: Restored, option: str) -> tuple[str, Any, list[str]]:
    """Return the name of the set of a manifest, its cuts, and notes; what was left out is printed."""
    cuts, dropped, notes = evaluation_cuts(path, restored.text, restored.data_module.features, option)
    for item in dropped[:NUM_LEFT_OUT]:
        console.print_line(f"left out {item.item}: {item.reason}")
    if len(dropped) > NUM_LEFT_OUT:
        console.print(f"left out {len(dropped) - NUM_LEFT_OUT} more, {len(dropped)} in all")
    of_file = re.sub(r"[^\w.+-]+", "_", path.name.split(".")[0]).lstrip(".+-") or "set"
    return of_file if name is None else str(name), cuts, notes


def output_folder(options: DictConfig, checkpoint: LoadedCheckpoint, kind: str) -> Path:
    """Return the folder of the results: the one that is named, or a new one in that of the run, below ``kind``."""
    if options.output_dir is not None:
        return claim_run_folder(options.output_dir, "output_dir")
    run_dir = checkpoint.path.parent
    run_dir = run_dir.parent if run_dir.name == "checkpoints" else run_dir
    return create_run_folder(run_dir / kind, within=run_dir)
