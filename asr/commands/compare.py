"""``asr-compare``: compares finished runs, or results of any toolkit, with intervals and significance."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr.run.command_line import override_key
from asr.run.folder import claim_run_folder, create_run_folder, free_folder, usable_folder
from asr.run.instantiate import check_values
from asr.run.options import Compare, texts
from asr.runs.folders import find_run_folders, read_runs, with_configs
from asr.sweeps.jobs import RECORDS, check_sweep_name, records
from werdict.comparison import compare
from werdict.console import PlainConsole, json_result
from werdict.errors import ConfigError, did_you_mean
from werdict.files import get_nested, named_path, read_json, read_yaml
from werdict.formatting import count, shortlist
from werdict.report.headline import MOST_SEEDS
from werdict.report.pages import JSON_FILE, tables, write_errors, write_json, write_report_files
from werdict.result import Comparison
from werdict.results import named_speakers, read_results, runs_of_rows, with_speakers
from werdict.runs import Inputs, read_tuning

RUNS = Path("runs")

console = PlainConsole()


def run(options: Compare) -> None:
    """Compare runs or results, print what is found and write it to a new folder."""
    with json_result(options.output_format) as result:
        folder = _compare(options)
        result |= {"folder": str(folder), **read_json(folder / JSON_FILE)}


def _compare(options: Compare) -> Path:
    """Return the folder of the comparison."""
    is_results = options.results is not None or options.pattern is not None
    sweep, folders = (None, []) if is_results else _run_folders(options)
    # before the work, so that its result can be written after it
    if options.out is not None:
        free_folder(options.out, "out")
    else:
        usable_folder((sweep or RUNS) / "comparison", "out")
    speaker_of = named_speakers(options.speakers, options.speaker_pattern)
    tunings = read_tuning(sweep) if sweep else []
    inputs = _results(options) if is_results else read_runs(folders, _failed(folders))
    if speaker_of is not None:
        inputs = replace(inputs, runs=with_speakers(inputs.runs, speaker_of))
    comparison = compare(
        inputs,
        title=sweep.name if sweep else count(len(inputs.runs), "run"),
        baseline=options.baseline,
        pairs=options.pairs,
        scale=options.scale,
        looks=options.looks or _planned_looks(folders),
        target_wer=options.target_wer,
        minutes=options.minutes,
        level=options.level,
        tunings=tunings,
    )
    _print(comparison)
    for command in next_commands(comparison, sweep) if sweep else ():
        console.print_line(command)
    output = _output_folder(options.out, sweep)
    report, *plots = write_report_files(comparison, output)
    files = [write_json(comparison, output), write_errors(comparison, output), report, *plots]
    console.print_line(f"report: {report}")
    _track(options.logger, comparison, files, output, sweep)
    console.print_line(f"comparison: {output}")
    return output


def _run_folders(options: Compare) -> tuple[Path | None, list[Path]]:
    """Return the folder of the sweep, if one is named, and the folders of runs."""
    if (options.sweep is None) == (options.runs is None):
        raise ConfigError(
            "give what to compare: sweep=NAME; or the folders of runs: asr-compare runs/a runs/b; or results=FILES of "
            "any toolkit"
        )
    if options.sweep is not None:
        folder = _sweep_folder(str(options.sweep))
        if not any(folder.glob("*/config.yaml")) and (jobs := records(folder)):
            raise ConfigError(
                f"sweep: {str(folder)!r} contains no run: none of its {count(len(jobs), 'job')} has left a folder; see "
                f"{folder / RECORDS}"
            )
        return folder, with_configs(folder.iterdir(), f"sweep: {str(folder)!r} contains no run")
    patterns = texts(options.runs)
    folders, others = find_run_folders(patterns)
    # a shell expands runs/first/* to what else lies there too
    if len(patterns) > 1 and others:
        console.print_line(f"left out, because these are no run folders: {shortlist(others)}")
    return None, folders


def _planned_looks(folders: Iterable[Path]) -> list[int]:
    """Return the looks that the sweep of the runs has planned, if all have the same ones."""
    looks = {tuple(get_nested(read_yaml(folder / "config.yaml"), "sweep", "looks") or ()) for folder in folders}
    return list(looks.pop()) if len(looks) == 1 else []


def _results(options: Compare) -> Inputs:
    """Read the results of any toolkit."""
    if clash := [key for key, value in (("sweep", options.sweep), ("runs", options.runs)) if value is not None]:
        several = [*texts(options.results or []), *texts(options.runs or [])]
        how = f"; several files are a list: results='[{','.join(several)}]'" if clash[0] == "runs" else ""
        raise ConfigError(f"results= and {clash[0]}= cannot be given together; give one of them{how}")
    files = options.results
    rows = read_results(
        [*map(str, files)] if isinstance(files, list) else files and str(files),
        pattern=options.pattern,
        format=options.format,
        references=None if options.references is None else str(options.references),
        columns={name: column for name, column in options.columns.items() if column is not None},
        id_pattern=options.id_pattern,
    )
    texts_file = None if options.training_texts is None else named_path(options.training_texts)
    return runs_of_rows(
        rows,
        normalize=options.scoring.normalize,
        unit=options.unit,
        by=options.by,
        allow=options.allow,
        training_texts=texts_file,
    )


def _failed(folders: Iterable[Path]) -> set[Path]:
    """Return the folders of runs that failed by themselves, as the records of their sweeps say."""
    sweeps = sorted({folder.parent for folder in folders})
    return {
        sweep / record.name for sweep in sweeps for record in records(sweep) if record.failed and not record.was_ended
    }


def _sweep_folder(name: str) -> Path:
    check_sweep_name(name, "sweep")  # reports are written into its folder
    if (RUNS / name).is_dir():
        return (RUNS / name).resolve()
    sweeps = sorted({path.parent.parent.name for path in RUNS.glob("*/*/config.yaml")})
    raise ConfigError(
        f"sweep: no folder {str(RUNS / name)!r}.{did_you_mean(name, sweeps)} Known: {', '.join(sweeps) or 'none'}."
    )


def _output_folder(out: Any, sweep: Path | None) -> Path:
    """Create a new folder; an earlier comparison stays as it is."""
    if out is not None:
        return claim_run_folder(out, "out")
    if sweep is None:
        return create_run_folder(RUNS / "comparison")
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    folders = (sweep / f"comparison{ending}" for ending in endings)
    folder = next(folder for folder in folders if not folder.exists())
    folder.mkdir()
    return folder


def next_commands(comparison: Comparison, sweep: Path) -> list[str]:
    """Return the commands that train what would probably decide open questions on the first test set."""
    jobs = {(sweep / job.name).resolve(): job.overrides for job in records(sweep)}
    words = {run.system: jobs[run.folder] for run in comparison.runs if run.folder in jobs}
    needed = {
        row.system: row.to_baseline.seeds_needed
        for row in comparison.sets[0].rows
        if row.to_baseline is not None and (row.to_baseline.seeds_needed or MOST_SEEDS + 1) <= MOST_SEEDS
    }
    if not needed or comparison.looks or not {*needed, comparison.sets[0].baseline} <= words.keys():
        return []
    have = max(len(row.seeds) for row in comparison.sets[0].rows)
    commands = []
    for system, num in {**needed, comparison.sets[0].baseline: max(filter(None, needed.values()))}.items():
        overrides = [word for word in words[system] if override_key(word).partition(".")[0] not in ("seed", "sweep")]
        seeds = f"seed=range({have + 1},{(num or 0) + 1})"
        commands.append(shlex.join(["asr-train", "-m", f"sweep.name={sweep.name}", *overrides, seeds]))
    return ["to decide what is open:", *commands]


def _print(comparison: Comparison) -> None:
    for table in tables(comparison):
        console.print(table, "")
    for kind, sentences in (("note", comparison.notes), ("problem", comparison.problems)):
        for sentence in sentences:
            console.print_line(f"{kind}: {sentence}")


def _track(
    logger: Mapping[str, Mapping[str, Any] | None] | None,
    comparison: Comparison,
    files: list[Path],
    output: Path,
    sweep: Path | None,
) -> None:
    """Send the comparison to wandb if the user asked for it, or if there is an API key and ``logger`` is not set."""
    node = {} if logger is None else logger.get("wandb")
    if node is None:
        return
    try:  # here, because comparing needs no wandb
        from asr.tracking.wandb_logger import has_api_key, is_switched_off, log_comparison
    except ImportError:
        if logger is None:
            return
        raise
    if logger is None and (is_switched_off() or not has_api_key()):
        return
    options: dict[str, Any] = {key: node[key] for key in ("project", "entity", "tags", "mode") if key in node}
    options["group"] = node.get("group") or (sweep.name if sweep else None)
    upload = log_comparison(comparison, files, output, **check_values(log_comparison, options, "logger.wandb"))
    if upload:
        console.print_line(f"upload this comparison: {upload}")
