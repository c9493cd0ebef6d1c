"""Writes a comparison to files: a page with plots for people; JSON, and a table of errors, for programs."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asr.compare.plots.draw_plots import Plots, draw_plots
from asr.compare.report.pages import render
from asr.compare.report.sections import run_table, set_sections, what_verdicts_are_about
from asr.compare.report.speed import cost_tables
from asr.compare.report.terms import explanations
from asr.compare.report.utterances import errors_of
from asr.compare.result import Comparison
from asr.compare.statistics.counts import count_errors
from asr.evaluation.error_stats import check_set_name
from asr.evaluation.formatting import count


def write_report_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``report.html`` and, below ``plots``, its plots as PNG and SVG; return the files, the report first.

    Raises:
        ValueError: the name of a test set cannot be part of a file name.
    """
    for test_set in comparison.sets:
        check_set_name(test_set.name)
    plots = draw_plots(comparison)
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    report, files = folder / "report.html", []
    for plot in plots.all:
        png, svg = (folder / "plots" / f"{plot.name}.{ending}" for ending in ("png", "svg"))
        png.write_bytes(plot.png)
        svg.write_text(plot.svg, encoding="utf-8")
        files += [png, svg]
    report.write_text(page(comparison, plots), encoding="utf-8")
    return [report, *files]


def page(comparison: Comparison, plots: Plots | None = None) -> str:
    """Return the page, with plots that are drawn if they are not given."""
    plots = plots or draw_plots(comparison)
    nouns = {"system": len(comparison.systems), "run": len(comparison.runs), "test set": len(comparison.sets)}
    return render(
        "report.html.jinja",
        comparison=comparison,
        size=", ".join(count(amount, noun) for noun, amount in nouns.items()),
        sections=set_sections(comparison),
        about=what_verdicts_are_about(comparison),
        plots=plots,
        styles=plots.styles,
        errors_by_set={test_set.name: errors_of(comparison, test_set) for test_set in comparison.sets},
        costs=cost_tables(comparison),
        runs=run_table(comparison),
        explanations=explanations(comparison.level, comparison.rate_name),
    )


def write_json(comparison: Comparison, folder: Path) -> Path:
    """Write ``comparison.json``; return its path."""
    path = folder / "comparison.json"
    path.write_text(json_text(comparison), encoding="utf-8")
    return path


def write_errors(comparison: Comparison, folder: Path) -> Path:
    """Write ``errors.tsv``, the errors of each run by speaker, which can be judged again; return its path.

    Those by utterance stand in for them where verdicts are not about speakers, see ``count_errors``.
    """
    path = folder / "errors.tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(("system", "seed", "set", "id", "speaker", "words", "errors"))
        for test_set in comparison.sets:
            name, seeds = test_set.name, {row.system: row.seeds for row in test_set.rows}
            runs = [run for run in comparison.runs if name in run.sets and run.seed in seeds.get(run.system, ())]
            counts = count_errors(runs, name)
            speakers = counts.names if counts.unit == "speaker" else [""] * len(counts.names)
            for row in test_set.rows:
                for seed in row.seeds:
                    # one that failed has all words wrong
                    errors = counts.errors.get(row.system, {}).get(seed, counts.words)
                    run = row.system, seed if comparison.has_seeds else "", name
                    units = zip(counts.names, speakers, counts.words, errors, strict=True)
                    writer.writerows((*run, *unit) for unit in units)
    return path


def json_text(comparison: Comparison) -> str:
    """Return the result as JSON, without curves and errors per utterance; unknown values are null."""
    runs = [
        {
            "folder": str(run.folder),
            "system": run.system,
            "seed": run.seed if comparison.has_seeds else None,
            "lr": run.lr,
            "wer": {name: errors.wer for name, errors in run.sets.items()},
            "learned": {name: errors.has_learned for name, errors in run.sets.items()},
            "wer_by_weights": run.wers_by_weights,
            "cost": asdict(run.cost),
        }
        for run in comparison.runs
    ]
    data = {
        "title": comparison.title,
        "unit": comparison.unit,
        "level": comparison.level,
        "scale": comparison.scale,
        "looks": list(comparison.looks),
        "target": comparison.target and asdict(comparison.target),
        "times_to_target": [asdict(times) for times in comparison.times],
        "equal_time": comparison.equal_time and asdict(comparison.equal_time),
        "sets": [asdict(test_set) for test_set in comparison.sets],
        "runs": runs,
        "problems": comparison.problems,
        "notes": comparison.notes,
    }
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False)


def _finite(node: Any) -> Any:
    """Return nested data with None for numbers that JSON does not have."""
    if isinstance(node, dict):
        return {key: _finite(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_finite(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
