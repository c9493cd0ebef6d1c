"""Folders of runs: found, read, grouped into systems, and listed."""

from __future__ import annotations

import datetime
import fcntl
import glob
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from asr.run.folder import FAILED, FILES, UPDATE_FILE, has_begun, newest_update
from asr.run.options import SavedRun, has_effect
from asr.runs.files import (
    BUDGET,
    DAMAGED,
    SUMMARY,
    RunFiles,
    best_dev_wer,
    read_curves,
    read_options,
    read_run,
    run_settings,
)
from werdict.errors import ConfigError
from werdict.files import flatten, get_nested, is_within, read_yaml
from werdict.formatting import count, percent, shortened, shortlist
from werdict.runs import Cost, Inputs, Run, SetErrors

MEASURED = (
    "num_passes",
    "seconds_per_update",
    "optimizer_step_seconds",
    "optimizer_step_sd",
    "optimizer_share",
    "optimizer_state_bytes",
)
MAX_VALUE = 40  # characters
MAX_NAME = 200


def find_run_folders(patterns: Iterable[str]) -> tuple[list[Path], list[str]]:
    """Return the folders of runs that are named or matched, and the names of others.

    Raises:
        ConfigError: a pattern matches nothing, or there is no run.
    """
    matched: list[Path] = []
    for pattern in patterns:
        matching = [Path(pattern)] if Path(pattern).exists() else [Path(path) for path in glob.glob(pattern)]
        if not matching:
            raise ConfigError(f"runs: {pattern!r} is not a run folder and matches none")
        matched += matching
    folders = with_configs(matched, f"runs: {', '.join(patterns)}: no run folder among them")
    return folders, [path.name for path in matched if path.resolve() not in folders]


def with_configs(folders: Iterable[Path], complaint: str) -> list[Path]:
    """Return the folders in which a run was started, each once.

    Raises:
        ConfigError: there is none, with the complaint in front.
    """
    started = sorted({folder.resolve() for folder in folders if (folder / "config.yaml").is_file()})
    if not started:
        raise ConfigError(f"{complaint}; a run folder contains config.yaml")
    return started


def read_runs(folders: Sequence[Path], failed_folders: Collection[Path] = ()) -> Inputs:
    """Read finished runs; one that cannot be read, or is scored in another unit, is left out with a message.

    Args:
        folders: of runs.
        failed_folders: of runs that failed by themselves; others without a summary still run, or may be resumed.
    """
    finished: list[RunFiles] = []
    failed: list[RunFiles] = []
    problems, num_tuning = [], 0
    for folder in folders:
        try:
            run = read_run(folder)
        except (ValueError, OSError) as error:
            problems.append(f"{folder} is left out: {error}")
            continue
        if not run.options.decode_test:
            num_tuning += 1  # a trial of a sweep that chose its settings on dev
        elif run.summary:
            finished.append(run)
        else:
            failed += [run] * (folder in failed_folders)
            state = "failed" if folder in failed_folders else "not finished"
            problems.append(f"{folder} is left out: the run has {state}: {SUMMARY} does not exist")
    for folder in sorted(failed_folders):
        if not has_begun(folder):
            problems.append(f"{folder.name} is left out: the job failed before it trained; its log says why")
    finished, failed, left_out = _of_one_unit(finished, failed)
    names, ambiguous = name_systems([*finished, *failed])
    runs = []
    for run, name in zip(finished, names, strict=False):
        try:
            runs.append(_run(run, name, problems))
        except DAMAGED as error:
            problems.append(f"{run.folder} is left out: a file of it is damaged: {error!r}")
    lost = [(name, run.settings["seed"]) for name, run in zip(names[len(finished) :], failed, strict=True)]
    notes = dict.fromkeys(note for run in finished for note in run.summary["notes"])
    if num_tuning:
        reason = "without results on test sets (decode_test=false), such as tuning trials"
        notes[f"left out: {count(num_tuning, 'run')} {reason}"] = None
    return Inputs(runs, [*problems, *left_out, *ambiguous, *warnings(finished)], list(notes), lost)


def _run(run: RunFiles, system: str, problems: list[str]) -> Run:
    """Return a finished run; what cannot be read is added to ``problems``."""
    sets: dict[str, SetErrors] = {}
    for name in run.summary["test"]:
        try:
            sets[name] = run.set_errors(name)
        except DAMAGED as error:
            problems.append(f"{run.folder}: {error}")
    metrics = run.folder / "metrics.csv"
    decoded, sweep = run.options.decode, run.options.sweep
    wers_by_weights = {}
    if len(decoded) > 1:
        wers_by_weights[decoded[0]] = {name: errors.wer for name, errors in sets.items()}
        for which, other in run.summary.get("other_weights", {}).items():
            wers_by_weights[which] = {name: other["test"][name]["wer"] for name in sets if name in other["test"]}
    cost, training = run.summary["cost"], run.summary["training"]
    return Run(
        folder=run.folder,
        system=system,
        seed=run.settings["seed"],
        sets=sets,
        lr=run.options.optimizer.lr,
        curves=read_curves(metrics) if metrics.exists() else {},
        cost=Cost(
            num_updates=run.settings["budget"],
            num_parameters=run.summary["num_parameters"],
            seconds=cost.get("training_seconds", training["seconds"]),
            # a killed process of an older version did not record its CPU time
            cpu_seconds=cost.get("cpu_seconds", None if "resumed_after" in training else training["cpu_seconds"]),
            **{name: cost.get(name) for name in MEASURED},
            peak_memory_mb=run.summary.get("peak_gpu_memory_mb", run.summary["peak_memory_mb"]),
        ),
        study=sweep.tuned.study if sweep.tuned else None,
        target_wer=sweep.target_wer,
        wers_by_weights=wers_by_weights,
        unit=run.options.data.scoring_unit,
    )


def _of_one_unit(finished: list[RunFiles], failed: list[RunFiles]) -> tuple[list[RunFiles], list[RunFiles], list[str]]:
    """Return the runs that are scored in the unit of most finished ones, and a message if others are left out."""
    # units that are as common come in the order of their first runs
    (unit, _), *_ = [*Counter(run.options.data.scoring_unit for run in finished).most_common(1), ("word", 0)]
    others = [run.folder for run in (*finished, *failed) if run.options.data.scoring_unit != unit]
    message = (
        f"{shortlist(others)} left out: not scored by {unit} as most runs; compare runs of each unit on their own "
        "(runs=[FOLDER,FOLDER]), or train all with the same data.scoring_unit"
    )
    finished, failed = ([run for run in runs if run.options.data.scoring_unit == unit] for runs in (finished, failed))
    return finished, failed, [message] if others else []


def name_systems(runs: Sequence[RunFiles]) -> tuple[list[str], list[str]]:
    """Return the name of each run's system, and messages on systems that would have the same name and are numbered."""
    overrides = [_overrides(run) for run in runs]
    shared = set.intersection(*(set(run_overrides.items()) for run_overrides in overrides)) if runs else set()
    groups: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        groups[json.dumps(run.settings["system"], sort_keys=True)].append(place)
    # a group has the name of its first run
    same: dict[str, list[list[int]]] = defaultdict(list)
    for group in groups.values():
        same[_name(overrides[group[0]], shared, runs[group[0]].options)].append(group)
    names, problems = [""] * len(runs), []
    for name, alike in same.items():
        for number, group in enumerate(alike, start=1):
            for place in group:
                names[place] = name if len(alike) == 1 else f"{name} #{number}"
        if len(alike) > 1:
            systems = [runs[group[0]].settings["system"] for group in alike]
            rows = {
                key: [str(system.get(key, "absent")) for system in systems] for key in sorted(set().union(*systems))
            }
            differing = (
                f"{key}: {' / '.join(shortened(value, MAX_VALUE) for value in values)}"
                for key, values in rows.items()
                if len(set(values)) > 1
            )
            problems.append(
                f"runs called {name} have different configs and are numbered #1 to #{len(alike)} "
                f"({shortlist(differing)})"
            )
    return names, problems


def concerns_system(key: str, run: RunFiles) -> bool:
    """Return whether an override of a key decides what system a run belongs to."""
    if not has_effect(key):  # also if the config lacks it, as after ~logger
        return False
    configured = [subkey for subkey in flatten(run.options.plain()) if is_within(subkey, (key,))]
    # the config does not hold the choice of a group by itself, such as recipe=digits/transformer_ctc
    return not configured or any(is_within(subkey, (key,)) for subkey in run.settings["system"])


def _overrides(run: RunFiles) -> dict[str, str]:
    """Return the last override of each key that concerns the system, the optimizer first."""
    different = {}
    for word in run.overrides:
        key, _, value = word.lstrip("+~").partition("=")
        if concerns_system(key, run):
            different[key] = value
    return dict(sorted(different.items(), key=lambda item: (item[0] != "optimizer", item[0])))


def _name(overrides: Mapping[str, str], shared: set[tuple[str, str]], options: SavedRun) -> str:
    """Return the name that a tuning sweep has given, or the optimizer and the overrides that others do not share."""
    unshared = {key: value for key, value in overrides.items() if (key, value) not in shared}
    if (tuned := options.sweep.tuned) and tuned.system:
        # the name says what its sweep has chosen, not what else the sweeps of others were given
        chosen = ("optimizer", "schedule", *tuned.keys)
        differing = [f"{key}={value}" for key, value in unshared.items() if not is_within(key, chosen)]
        return shortened(" ".join([tuned.system, *differing]), MAX_NAME)
    optimizer = unshared.pop("optimizer", None)
    # a learning rate says nothing without its optimizer
    if optimizer is None and (not unshared or any(key.startswith("optimizer.") for key in unshared)):
        optimizer = overrides.get("optimizer") or str(options.optimizer.target).rpartition(".")[2]
    differing = [f"{key.removeprefix('optimizer.')}={value}" for key, value in unshared.items()]
    return shortened(" ".join([optimizer, *differing] if optimizer else differing), MAX_NAME)


def warnings(runs: Sequence[RunFiles]) -> list[str]:
    """Return messages on data and options that differ between runs, or changed during one."""
    folders, messages = defaultdict(list), list[str]()
    for run in runs:
        # systems may have tokenizers of their own
        folders[run.summary["data"].partition("/")[0]].append(run.folder)
    if len(folders) > 1:
        parts = "; ".join(f"{data}: {shortlist(affected)}" for data, affected in folders.items())
        messages.append(
            f"the runs were trained on different data; they are compared on the test sets that they share ({parts})"
        )
    unreadable = {run.folder: run.summary["training"].get("num_unreadable") for run in runs}
    if affected := [f"{folder}: {number}" for folder, number in unreadable.items() if number]:
        messages.append(
            "utterances could not be read in training or validation, and were left out; other runs may have used them "
            f"({shortlist(affected)})"
        )
    changes: dict[Path, list[str]] = {}
    for run in runs:
        try:
            changes |= {run.folder: changed} if (changed := _changes(run)) else {}
        except DAMAGED as error:
            messages.append(f"{run.folder}: a file on its former options is damaged: {error!r}")
    return messages + [
        f"{folder} was resumed with other options than it was begun with, and is compared by the last "
        f"({shortlist(changed)})"
        for folder, changed in changes.items()
    ]


def _changes(run: RunFiles) -> list[str]:
    """Return what has changed: between the config and its backups, and what the user has accepted."""
    changed: dict[str, str] = {}
    current = _flat(run.options)
    for path in sorted(run.folder.glob("config.backup*.yaml")):
        before = _flat(read_options(path))
        for key in sorted(current.keys() | before.keys()):
            old, new = before.get(key, "absent"), current.get(key, "absent")
            if old != new:
                changed.setdefault(key, f"{key}: {old} / {new}")
    for path in sorted(run.folder.glob("accepted*.yaml")):
        for change in read_yaml(path):
            if concerns_system(key := change["key"], run):
                changed.setdefault(key, f"{key}: {change['before']} / {change['now']}")
    return list(changed.values())


def _flat(options: SavedRun) -> dict[str, Any]:
    """Return seed, budget and system of a run by key."""
    settings = run_settings(options)
    return {"seed": settings["seed"], BUDGET: settings["budget"], **settings["system"]}


BEST = "best.ckpt"
MB = 1e6  # bytes
MAX_SYSTEM = 40  # characters
COLUMNS = ("started", "recipe", "system", "seed", "updates", "WER dev %", "WER test %", "status", "MB", "run")


@dataclass(frozen=True)
class ListedRun:
    """A row of the list; what a run does not have yet is None.

    Attributes:
        started: local time, ISO 8601.
        updates: of its newest checkpoint, or all if it has finished.
        wer_dev: the lowest, as a fraction, and ``wer_test`` that of each test set.
        status: ``running``, ``interrupted``, ``failed`` or ``finished``.
        other_checkpoints_mb: of its size, what checkpoints take that the best one does not need.
    """

    run: str
    started: str
    recipe: str
    system: str
    seed: int
    updates: int
    max_updates: int
    wer_dev: float | None
    wer_test: dict[str, float]
    status: str
    size_mb: float
    other_checkpoints_mb: float


def list_runs(folders: Iterable[Path], default_recipe: str) -> tuple[list[ListedRun], list[str]]:
    """Return the runs at and below folders, and which could not be read, and why.

    Args:
        folders: that are searched.
        default_recipe: of runs whose overrides name none.
    """
    runs, problems = [], []
    for path in dict.fromkeys(path for folder in folders for path in run_folders(folder)):
        try:
            runs.append(read_run(path))
        except (ValueError, OSError) as error:
            problems.append(f"{path} is left out: {error}")
    rows = []
    for run, system in zip(runs, name_systems(runs)[0], strict=True):
        try:
            rows.append(_row(run, system, default_recipe))
        except DAMAGED as error:
            problems.append(f"{run.folder} is left out: a file of it is damaged: {error!r}")
    return rows, problems


def run_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs at and below a folder, without following links."""
    for place, names, files in os.walk(folder):
        names.sort()
        if {*FILES} <= {*files}:
            names.clear()  # wandb keeps a config.yaml of its own in there
            yield Path(place)


def _row(run: RunFiles, system: str, default_recipe: str) -> ListedRun:
    recipes = [word.partition("=")[2] for word in run.overrides if word.startswith("recipe=")]
    sizes, others = _sizes(run.folder)
    wer = best_dev_wer(run.folder)
    max_updates = int(run.settings["budget"])
    return ListedRun(
        run=str(run.folder),
        started=datetime.datetime.fromtimestamp((run.folder / FILES[0]).stat().st_mtime).isoformat(" ", "minutes"),
        recipe=recipes[-1] if recipes else default_recipe,
        system=system,
        seed=run.settings["seed"],
        updates=newest_update(run.folder / "checkpoints") or (max_updates if run.summary else 0),
        max_updates=max_updates,
        wer_dev=wer if math.isfinite(wer) else None,
        wer_test={name: errors["wer"] for name, errors in (get_nested(run.summary, "test") or {}).items()},
        status=_status(run),
        size_mb=round(sizes / MB, 1),
        other_checkpoints_mb=round(others / MB, 1),
    )


def _status(run: RunFiles) -> str:
    if _is_locked(run.folder / ".lock"):
        return "running"
    if run.summary:
        return "finished"
    return "failed" if (run.folder / FAILED).exists() else "interrupted"


def _is_locked(path: Path) -> bool:
    """Return whether another process trains in a run's folder."""
    try:
        with path.open() as file:
            # shared, and released at once: a run that starts just now asks for an exclusive lock
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a copy without the file, or a disk that locks nothing
    return False


def _sizes(folder: Path) -> tuple[int, int]:
    """Return the bytes of all files, and of the checkpoints that best.ckpt does not need; links count once."""
    names: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for place, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(place, name))
            names[status.st_ino, status.st_size].add(name)
    others = [
        size for (_, size), alike in names.items() if any(map(UPDATE_FILE.fullmatch, alike)) and BEST not in alike
    ]
    return sum(size for _, size in names), sum(others)


def sort_key(row: ListedRun, option: str) -> tuple[bool, Any]:
    """Return what rows are sorted by: a column, those without a value last."""
    value = getattr(row, option)
    if isinstance(value, dict):  # the mean of the test sets
        value = sum(value.values()) / len(value) if value else None
    return value is None, 0 if value is None else value


def lines_of(rows: Iterable[ListedRun]) -> list[str]:
    """Return the list as text in columns, one line for each run, which no terminal folds into several."""
    table = [
        COLUMNS,
        *(
            (
                row.started,
                row.recipe,
                shortened(row.system, MAX_SYSTEM),
                str(row.seed),
                f"{row.updates}/{row.max_updates}",
                percent(row.wer_dev),
                " / ".join(map(percent, row.wer_test.values())) or percent(None),
                row.status,
                f"{row.size_mb:.0f}",
                row.run,
            )
            for row in rows
        ),
    ]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(set_cell_size, cells, widths)).rstrip() for cells in table]
