"""Reads what a comparison needs from the folders of finished runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asr.compare.inputs.differences import changed_runs, different_data, different_files, unreadable_in
from asr.compare.inputs.naming import BUDGET, SEED, FreeKeys, Systems
from asr.compare.inputs.run_files import MAX_UTTERANCES, read_curves, read_errors
from asr.compare.inputs.runs import MAX_SETS, Cost, Curve, FinishedRun, Run, SetErrors, StartedRun
from asr.evaluation.formatting import count, shortened, shortlist
from asr.evaluation.report import check_set_name
from asr.evaluation.wer import RATE_NAMES, Unit
from asr.nested import at, flatten, number_at
from asr.plain_data import read_json, read_yaml

MAX_SENTENCES = 20  # notes of a run, and problems of its files
MAX_SENTENCE = 1000  # characters
MAX_DECODED = 10  # kinds of weights; there are three
SUMMARY = "report/summary.json"


@dataclass(frozen=True)
class ReadRuns:
    """What was found in run folders.

    Attributes:
        runs: that can be compared; all are scored in one unit.
        problems: messages on what cannot be compared.
        notes: that the runs carry, for example "synthetic speech".
        failed: system and seed of runs that failed by themselves.
    """

    runs: list[Run]
    problems: list[str]
    notes: list[str]
    failed: list[tuple[str, int]]


def read_runs(
    folders: Sequence[Path], free: FreeKeys = lambda config: (), failed_folders: Collection[Path] = ()
) -> ReadRuns:
    """Read finished runs; a folder that cannot be read, or is scored in another unit, is left out with a message.

    Args:
        folders: of runs.
        free: tells of each config which keys do not change the result.
        failed_folders: of runs that failed by themselves; others without a summary still run, or may be resumed.
    """
    read: list[FinishedRun] = []
    failed: list[StartedRun] = []
    problems, num_tuning = [], 0
    for folder in folders:
        try:
            start = _read_start(folder)
            if start.config.get("decode_test") is False:
                num_tuning += 1  # a trial of a sweep that chose its settings on dev
                continue
            if not (folder / SUMMARY).is_file():
                failed += [start] * (folder in failed_folders)
                state = "failed" if folder in failed_folders else "not finished"
                raise ValueError(f"the run has {state}: {SUMMARY} does not exist")
            files = _read(start)
        except (ValueError, OSError) as error:
            problems.append(shortened(f"{folder} is left out: {error}", MAX_SENTENCE))
            continue
        read.append(files)
        problems += [shortened(problem, MAX_SENTENCE) for problem in files.problems[:MAX_SENTENCES]]
    read, failed, left_out = _of_one_unit(read, failed)
    started = [*read, *failed]
    systems = Systems([start.typed for start in started], [start.config for start in started], free)
    runs = [_run(files, name) for files, name in zip(read, systems.names, strict=False)]
    lost = [(name, start.seed) for name, start in zip(systems.names[len(read) :], failed, strict=True)]
    written = [at(files.summary, "notes") for files in read]
    texts = (note for own in written if isinstance(own, list) for note in own[:MAX_SENTENCES] if isinstance(note, str))
    notes = dict.fromkeys(shortened(note, MAX_SENTENCE) for note in texts)
    if num_tuning:
        what = "without results on test sets (decode_test=false), as those are that choose settings"
        notes[f"left out: {count(num_tuning, 'run')} {what}"] = None
    differ = [*different_data(read), *different_files(read), *unreadable_in(read), *changed_runs(read, free)]
    return ReadRuns(runs, [*problems, *left_out, *systems.problems, *differ], list(notes), lost)


def _read_start(folder: Path) -> StartedRun:
    config, typed = read_yaml(folder / "config.yaml"), read_yaml(folder / "overrides.yaml") or []
    seed = at(config, SEED)
    if not isinstance(config, dict):
        raise ValueError("config.yaml is not a mapping")
    if not isinstance(typed, list) or not all(isinstance(word, str) for word in typed):
        raise ValueError("overrides.yaml is not a list of overrides")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be an integer in config.yaml, given {seed!r}")
    return StartedRun(folder, typed, config, seed, _unit(config, None))


def _read(start: StartedRun) -> FinishedRun:
    folder = start.folder
    summary = read_json(folder / SUMMARY)
    if not isinstance(summary, dict):
        raise ValueError(f"{SUMMARY} is not a mapping")
    unit = _unit(start.config, at(summary, "test"))
    text = at(start.config, "data", "text")
    options = sorted(flatten(text).items()) if isinstance(text, Mapping) else ()
    normalization = tuple(f"{key}={value}" for key, value in options)
    sets, problems = _read_sets(folder, at(summary, "test"), normalization, unit)
    curves: dict[str, Curve] = {}
    try:
        curves = read_curves(folder / "metrics.csv")
    except (ValueError, OSError) as error:
        problems.append(f"{folder}: no curves: {error}")
    scored = replace(start, unit=unit)
    return FinishedRun(**vars(scored), summary=summary, sets=sets, curves=curves, problems=problems)


def _unit(config: Any, tested: Any) -> Unit:
    """Return what the error rates of a run count: as its test sets say, else its config, else words as in older runs.

    Raises:
        ValueError: it is neither words nor characters, or not the same for all test sets.
    """
    named = [at(one, "unit") for one in tested.values()] if isinstance(tested, Mapping) else []
    units = [unit for unit in named if unit is not None] or [at(config, "data", "scoring_unit") or "word"]
    # a tuple, because what a stranger wrote may have no hash
    if units[0] not in tuple(RATE_NAMES) or any(unit != units[0] for unit in units):
        raise ValueError(f"its test sets must be scored all by word or all by character, given {shortlist(units)}")
    unit: Unit = units[0]
    return unit


def _read_sets(folder: Path, tested: Any, text: tuple[str, ...], unit: Unit) -> tuple[dict[str, SetErrors], list[str]]:
    """Read the errors on the sets that the summary names."""
    sets: dict[str, SetErrors] = {}
    problems = []
    if isinstance(tested, Mapping) and len(tested) > MAX_SETS:
        raise ValueError(f"{SUMMARY} names {len(tested)} test sets; at most {MAX_SETS} are compared")
    for name in tested if isinstance(tested, Mapping) else ():
        try:
            check_set_name(str(name))
            # many names may lead to one large file
            room = MAX_UTTERANCES - sum(len(errors.ids) for errors in sets.values())
            errors = read_errors(folder / "decode" / f"{name}.errors.tsv", room, unit)
            digest = at(tested, name, "references")
            sets[str(name)] = replace(errors, references=digest if isinstance(digest, str) else None, text=text)
        except (ValueError, OSError) as error:
            problems.append(f"{folder}: {error}")
    if not sets:
        problems.append(f"{folder}: no test set that could be compared")
    return sets, problems


def _run(files: FinishedRun, system: str) -> Run:
    return Run(
        folder=files.folder,
        system=system,
        seed=files.seed,
        lr=number_at(files.config, "optimizer", "lr"),
        sets=files.sets,
        curves=files.curves,
        cost=_cost(files),
        study=number_at(files.config, "sweep", "tuned", "study"),
        target_wer=number_at(files.config, "sweep", "target_wer"),
        wers_by_weights=_wers_by_weights(files),
        unit=files.unit,
    )


def _wers_by_weights(files: FinishedRun) -> dict[str, dict[str, float]]:
    """Return the WERs with all weights that the test sets were decoded with, if there are several."""
    decoded = files.config.get("decode")
    if not isinstance(decoded, list) or len(decoded) < 2:
        return {}
    found = {str(decoded[0]): {name: errors.wer for name, errors in files.sets.items()}}
    for which in map(str, decoded[1:MAX_DECODED]):
        wers = {name: number_at(files.summary, "other_weights", which, "test", name, "wer") for name in files.sets}
        found[which] = {name: wer for name, wer in wers.items() if wer is not None}
    return found


def _cost(files: FinishedRun) -> Cost:
    summary = files.summary
    num_updates = number_at(files.config, *BUDGET.split("."))
    logged = max((curve.updates[-1] for curve in files.curves.values()), default=0)
    seconds = number_at(summary, "cost", "training_seconds")
    # a killed process did not record its CPU time
    resumed = number_at(summary, "training", "resumed_after") is not None
    state_bytes = number_at(summary, "cost", "optimizer_state_bytes")
    gpu_mb = number_at(summary, "peak_gpu_memory_mb")
    mean_step = number_at(summary, "cost", "optimizer_step_seconds")
    return Cost(
        num_updates=logged if num_updates is None else int(num_updates),
        num_parameters=int(number_at(summary, "num_parameters") or 0),
        seconds=number_at(summary, "training", "seconds") if seconds is None else seconds,
        cpu_seconds=None if resumed else number_at(summary, "training", "cpu_seconds"),
        # earlier runs have medians
        seconds_per_update=None if mean_step is None else number_at(summary, "cost", "seconds_per_update"),
        optimizer_step_seconds=mean_step,
        optimizer_step_sd=number_at(summary, "cost", "optimizer_step_sd"),
        optimizer_share=None if mean_step is None else number_at(summary, "cost", "optimizer_share"),
        optimizer_state_bytes=None if state_bytes is None else int(state_bytes),
        peak_memory_mb=number_at(summary, "peak_memory_mb") if gpu_mb is None else gpu_mb,
    )


def _of_one_unit(
    read: list[FinishedRun], failed: list[StartedRun]
) -> tuple[list[FinishedRun], list[StartedRun], list[str]]:
    """Return the finished and the failed runs that are scored in one unit, and a message if others are left out.

    The unit of most finished runs decides; in a tie, that of the first run.
    """
    if not read:
        return read, failed, []
    # units that are as common come in the order of their first runs
    ((unit, _),) = Counter(files.unit for files in read).most_common(1)
    others = [start for start in (*read, *failed) if start.unit != unit]
    if not others:
        return read, failed, []
    other = others[0].unit
    message = (
        f"{shortlist(start.folder for start in others)} left out: scored by {other} ({RATE_NAMES[other]}), the runs "
        f"that are compared by {unit} ({RATE_NAMES[unit]}); compare runs of each unit on their own "
        "(runs=[FOLDER,FOLDER]), or train all with the same data.scoring_unit"
    )
    return [files for files in read if files.unit == unit], [one for one in failed if one.unit == unit], [message]
