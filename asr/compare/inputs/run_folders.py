"""Reads runs of this toolkit from their folders."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from asr.compare.inputs.run_files import DAMAGED, SUMMARY, RunFiles, read_curves, read_run
from asr.compare.inputs.run_warnings import warnings
from asr.compare.inputs.runs import Cost, Inputs, Run, SetErrors
from asr.compare.inputs.system_names import name_systems
from asr.errors import ConfigError
from asr.evaluation.formatting import count, shortlist
from asr.plain_data import at

MEASURED = (
    "seconds_per_update",
    "optimizer_step_seconds",
    "optimizer_step_sd",
    "optimizer_share",
    "optimizer_state_bytes",
)


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
        if run.config["decode_test"] is False:
            num_tuning += 1  # a trial of a sweep that chose its settings on dev
        elif run.summary:
            finished.append(run)
        else:
            failed += [run] * (folder in failed_folders)
            state = "failed" if folder in failed_folders else "not finished"
            problems.append(f"{folder} is left out: the run has {state}: {SUMMARY} does not exist")
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
    decoded = run.config["decode"]
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
        lr=at(run.config, "optimizer", "lr"),
        curves=read_curves(metrics) if metrics.exists() else {},
        cost=Cost(
            num_updates=run.settings["budget"],
            num_parameters=run.summary["num_parameters"],
            seconds=cost.get("training_seconds", training["seconds"]),
            # a killed process did not record its CPU time
            cpu_seconds=None if "resumed_after" in training else training["cpu_seconds"],
            **{name: cost.get(name) for name in MEASURED},
            peak_memory_mb=run.summary.get("peak_gpu_memory_mb", run.summary["peak_memory_mb"]),
        ),
        study=at(run.config, "sweep", "tuned", "study"),
        target_wer=at(run.config, "sweep", "target_wer"),
        wers_by_weights=wers_by_weights,
        unit=run.unit,
    )


def _of_one_unit(finished: list[RunFiles], failed: list[RunFiles]) -> tuple[list[RunFiles], list[RunFiles], list[str]]:
    """Return the runs that are scored in the unit of most finished ones, and a message if others are left out."""
    # units that are as common come in the order of their first runs
    (unit, _), *_ = [*Counter(run.unit for run in finished).most_common(1), ("word", 0)]
    others = [run.folder for run in (*finished, *failed) if run.unit != unit]
    message = (
        f"{shortlist(others)} left out: not scored by {unit} as most runs; compare runs of each unit on their own "
        "(runs=[FOLDER,FOLDER]), or train all with the same data.scoring_unit"
    )
    finished, failed = ([run for run in runs if run.unit == unit] for runs in (finished, failed))
    return finished, failed, [message] if others else []
