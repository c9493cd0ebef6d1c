"""Options of several commands: ``output=`` and ``output_dir=``, never overwritten, and lists."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.data.preparation.cuts import evaluation_cuts
from asr.run.folder import claim_run_folder, create_run_folder, usable_folder
from asr.run.options import MAX_NAME_BYTES, Sets
from asr.run.restore import Restored, prepared_data
from asr.training.checkpoints import LoadedCheckpoint
from werdict.console import PlainConsole
from werdict.errors import ConfigError
from werdict.files import locked_folder, named_path
from werdict.formatting import shortlist


def new_file(output: object, kind: str = "file") -> Path:
    """Return the file, or the folder, to write, after checks that it can be created.

    Args:
        output: as the user names it.
        kind: ``file`` or ``folder``.

    Raises:
        ValueError: it exists, or cannot be created.
        OSError: its name is impossible.
    """
    path = named_path(output)
    if os.path.lexists(path):
        raise ConfigError(f"output: {str(path)!r} exists; name another {kind}, or remove it")
    with contextlib.suppress(FileNotFoundError):
        path.lstat()  # fails if the name is too long, or below a file
    usable_folder(path.parent, "output")
    return path


@contextlib.contextmanager
def lock_output_dir(folder: Path, is_new: bool) -> Iterator[None]:
    """Let no other process write to ``output_dir``, which is created; a new one that stays empty is removed at the end.

    Raises:
        ConfigError: another process writes its results to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_folder(folder, wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"output_dir: another process writes its results to {folder}; name another folder, or wait for it"
            ) from None
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()


NUM_LEFT_OUT = 20  # number of dropped items that are named
OTHER_DATA = "give the data to decode: manifest=PATH"

console = PlainConsole()


def check_name(options: Sets) -> None:
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
        manifest: as given, one or a list; None: the run's own test sets.
        name: of its set; None: from its file.
        restored: that is to read them.
        option: that names the manifest, for messages.
    """
    if manifest is None:
        prepared = prepared_data(restored.checkpoint, OTHER_DATA)
        if not (tests := prepared.names("test")):
            raise ConfigError(f"the data of this run in {prepared.folder} has no test set; {OTHER_DATA}")
        return {test: prepared.cuts(test) for test in tests}, list(prepared.notes)
    manifests = list(manifest) if isinstance(manifest, list) else [manifest]
    if not manifests or (name is not None and len(manifests) > 1):
        raise ConfigError(f"{option}: give one manifest, or several without name=; given {manifests}")
    paths: dict[str, Path] = {}
    for path in map(named_path, manifests):
        set_name = _set_name(path, name, option)
        if set_name in paths:
            raise ConfigError(f"{option}: two manifests would both be the set {set_name!r}; rename one of the files")
        paths[set_name] = path
    sets: dict[str, Any] = {}
    notes: list[str] = []
    for set_name, path in paths.items():
        sets[set_name], of_set = _read(path, restored, option)
        notes += [f"{set_name}: {note}" for note in of_set] if len(manifests) > 1 else of_set
    return sets, notes


def _set_name(path: Path, name: object, option: str) -> str:
    """Return the name of the set of a manifest: the one that is given, or that of the file without its endings."""
    of_file = re.sub(r"[^\w.+-]+", "_", path.name.split(".")[0]).lstrip(".+-") or "set"
    set_name = of_file if name is None else str(name)
    if len(set_name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{option}: result files are named after {shortlist([path])}, whose name has more than {MAX_NAME_BYTES} "
            "bytes; give name=NAME, or rename it"
        )
    return set_name


def _read(path: Path, restored: Restored, option: str) -> tuple[Any, list[str]]:
    """Return the cuts of a manifest, and notes; what was left out is printed."""
    cuts, dropped, notes = evaluation_cuts(
        path, restored.text, restored.loaders.features, option, restored.options.data.columns
    )
    for item in dropped[:NUM_LEFT_OUT]:
        console.print_line(f"left out {item.item}: {item.reason}")
    if len(dropped) > NUM_LEFT_OUT:
        console.print(f"left out {len(dropped) - NUM_LEFT_OUT} more, {len(dropped)} in all")
    if not any(cut.supervisions[0].text for cut in cuts):
        raise ConfigError(f"{option}: the transcripts of {shortlist([path])} contain no words; give other data")
    return cuts, notes


@contextlib.contextmanager
def results_folder(output_dir: object, checkpoint: LoadedCheckpoint, kind: str) -> Iterator[Path]:
    """Yield the folder of the results: the one that is named, or a new one in that of the run, below ``kind``.

    Raises:
        ConfigError: another process writes results to it.
        ValueError: it cannot be used, or is not empty.
    """
    if output_dir is None:
        run_dir = checkpoint.run_dir or checkpoint.path.parent
        folder = create_run_folder(run_dir / kind)
    else:
        folder = claim_run_folder(output_dir, "output_dir")
    # an error before there were results leaves it empty
    with lock_output_dir(folder, is_new=output_dir is None):
        yield folder
