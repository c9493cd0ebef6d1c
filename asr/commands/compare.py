"""``asr-compare``: compares finished runs, or results of any toolkit, with intervals and significance."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from asr.commands.output_file import texts
from asr.compare.compare import compare
from asr.compare.inputs.results import read_results
from asr.compare.inputs.run_folders import find_run_folders, read_runs, with_configs
from asr.compare.inputs.runs import Inputs
from asr.compare.inputs.runs_of_rows import runs_of_rows
from asr.compare.inputs.speakers import named_speakers, with_speakers
from asr.compare.inputs.tuning import read_tuning
from asr.compare.report.headline import MOST_SEEDS
from asr.compare.report.html_and_json import write_errors, write_json, write_report_files
from asr.compare.report.terminal import tables
from asr.compare.result import Comparison
from asr.config.command_line import override_key
from asr.config.instantiate import check_values
from asr.console import PlainConsole
from asr.errors import ConfigError, did_you_mean
from asr.evaluation.formatting import count, shortlist
from asr.plain_data import at, read_yaml
from asr.run_folder import claim_run_folder, create_run_folder, free_folder, usable_folder
from asr.safe_io import named_path
from asr.sweeps.jobs import RECORDS, check_sweep_name, records

RUNS = Path("runs")

console = PlainConsole()


def run(options: DictConfig) -> None:
    """Compare runs or results, print what is found and write it to a new folder."""
    config = cast(dict[str, Any], OmegaConf.to_container(options, resolve=True))
    config["columns"] = {name: column for name, column in config["columns"].items() if column is not None}
    is_results = config["results"] is not None or config["pattern"] is not None
    sweep, folders = (None, []) if is_results else _run_folders(config)
    # before the work, so that its result can be written after it
    if config["out"] is not None:
        free_folder(config["out"], "out")
    else:
        usable_folder((sweep or RUNS) / "comparison", "out")
    speaker_of = named_speakers(config["speakers"], config["speaker_pattern"])
    tunings = read_tuning(sweep) if sweep else []
    inputs = _results(config) if is_results else read_runs(folders, _failed(folders))
    if speaker_of is not None:
        inputs = replace(inputs, runs=with_speakers(inputs.runs, speaker_of))
    comparison = compare(
        inputs,
        title=sweep.name if sweep else count(len(inputs.runs), "run"),
        baseline=config["baseline"],
        pairs=config["pairs"],
        scale=config["scale"],
        looks=config["looks"] or _planned_looks(folders),
        target_wer=config["target_wer"],
        minutes=config["minutes"],
        level=config["level"],
        tunings=tunings,
    )
    _print(comparison)
    for command in next_commands(comparison, sweep) if sweep else ():
        console.print_line(command)
    output = _output_folder(config["out"], sweep)
    report, *plots = write_report_files(comparison, output)
    files = [write_json(comparison, output), write_errors(comparison, output), report, *plots]
    console.print_line(f"report: {report}")
    _track(config.get("logger"), comparison, files, output, sweep)
    console.print_line(f"comparison: {output}")


def _run_folders(config: Mapping[str, Any]) -> tuple[Path | None, list[Path]]:
    """Return the folder of the sweep, if one is named, and the folders of runs."""
    if (config["sweep"] is None) == (config["runs"] is None):
        raise ConfigError(
            "give what to compare: sweep=NAME; or the folders of runs: asr-compare runs/a runs/b; or results=FILES of "
            "any toolkit"
        )
    if config["sweep"] is not None:
        folder = _sweep_folder(str(config["sweep"]))
        if not any(folder.glob("*/config.yaml")) and (jobs := records(folder)):
            raise ConfigError(
                f"sweep: {str(folder)!r} contains no run: none of its {count(len(jobs), 'job')} has left a folder; see "
                f"{folder / RECORDS}"
            )
        return folder, with_configs(folder.iterdir(), f"sweep: {str(folder)!r} contains no run")
    patterns = texts(config["runs"])
    folders, others = find_run_folders(patterns)
    # a shell expands runs/first/* to what else lies there too
    if len(patterns) > 1 and others:
        console.print_line(f"left out, because these are no run folders: {shortlist(others)}")
    return None, folders


def _planned_looks(folders: Iterable[Path]) -> list[int]:
    """Return the looks that the sweep of the runs has planned, if all have the same ones."""
    looks = {tuple(at(read_yaml(folder / "config.yaml"), "sweep", "looks") or ()) for folder in folders}
    return list(looks.pop()) if len(looks) == 1 else []


def _results(config: Mapping[str, Any]) -> Inputs:
    """Read the results of any toolkit."""
    if clash := [key for key in ("sweep", "runs") if config[key] is not None]:
        several = [*texts(config["results"] or []), *texts(config["runs"] or [])]
        how = f"; several files are a list: results='[{','.join(several)}]'" if clash[0] == "runs" else ""
        raise ConfigError(f"results= and {clash[0]}= cannot be given together; give one of them{how}")
    options = {key: config[key] for key in ("pattern", "format", "references", "columns", "id_pattern")}
    scoring = {"normalize": config["scoring"]["normalize"], **{key: config[key] for key in ("unit", "by", "allow")}}
    training_texts = config["training_texts"]
    files = config["results"]
    rows = read_results([*map(str, files)] if isinstance(files, list) else files and str(files), **options)
    return runs_of_rows(rows, **scoring, training_texts=None if training_texts is None else named_path(training_texts))


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
        own = [word for word in words[system] if override_key(word).partition(".")[0] not in ("seed", "sweep")]
        seeds = f"seed=range({have + 1},{(num or 0) + 1})"
        commands.append(shlex.join(["asr-train", "-m", f"sweep.name={sweep.name}", *own, seeds]))
    return ["to decide what is open:", *commands]


def _print(comparison: Comparison) -> None:
    for table in tables(comparison):
        console.print(table, "")
    for kind, sentences in (("note", comparison.notes), ("problem", comparison.problems)):
        for sentence in sentences:
            console.print_line(f"{kind}: {sentence}")


def _track(
    logger: Mapping[str, Any] | None, comparison: Comparison, files: list[Path], output: Path, sweep: Path | None
) -> None:
    """Send the comparison to wandb if the user asked for it, or if there is an API key and ``logger`` is not set."""
    node = {} if logger is None else logger.get("wandb")
    if node is None:
        return
    try:  # here, because comparing needs no wandb
        from asr.tracking.wandb_access import has_api_key, is_switched_off
        from asr.tracking.wandb_comparison import log_comparison
    except ImportError:
        if logger is None:
            return
        raise
    if logger is None and (is_switched_off() or not has_api_key()):
        return
    options = {key: node[key] for key in ("project", "entity", "tags", "mode") if key in node}
    options["group"] = node.get("group") or (sweep.name if sweep else None)
    upload = log_comparison(comparison, files, output, **check_values(log_comparison, options, "logger.wandb"))
    if upload:
        console.print_line(f"upload this comparison: {upload}")
