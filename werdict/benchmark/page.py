"""The page of the benchmark: for each task and ruleset what is sure, and the verdicts and the cost of each entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from werdict.benchmark.entries import (
    BASELINE,
    COMPARISON,
    LEVEL,
    TASKS,
    VERSION,
    Verdicts,
    benchmark_verdicts,
    comparison_text,
    status,
)
from werdict.files import write_whole
from werdict.formatting import UNKNOWN, count, interval, number, points, ratio, shortlist
from werdict.plots import Plot, line_styles, plot_differences
from werdict.report.headline import headline, times_sentence
from werdict.report.pages import render
from werdict.report.sections import SYSTEM, Cell, Column, Table, contrast_cell, mean_cell, verdict_cell
from werdict.result import Contrast

COSTS = "costs.json"
TEXTS = ("known.md",)  # written by people
NAMES = {"as_shipped": "as shipped", "tuned": "tuned"}
SURE = f"{100 * LEVEL:g} %"
COLUMNS = (
    "May be best: the outcomes by which no other entry is significantly better. By each of them, the best is among the "
    f"entries named with {SURE} confidence.",
    f"Verdicts and intervals: compared with {BASELINE}. By each outcome, those of a table hold together at {SURE}. A "
    "ratio below 1 is better; an interval that ends at 1.00 belongs to a significant difference.",
    "WER: mean and standard deviation over the seeds; a run that failed counts as 100 %. Ratios and the order of rows "
    "are those of geometric means.",
    "80 of 100 find: the ratio of errors that 80 of 100 such comparisons would find, if seeds vary as these did.",
    "Learned: runs whose hypotheses depend on the audio, and the interval of their share in %.",
    "Updates to the target: geometric mean over all seeds. One that missed the target counts as if it had reached it "
    "at the end, and ≥ says so.",
    "Cost of a step: time of the optimizer's step on one CPU thread, all measured in one run. On a GPU it is another.",
)


def write_pages(root: Path, pages: Path) -> list[Path]:
    """Recompute all verdicts; write ``comparison.json`` of each task and ruleset, ``index.md``, one HTML and pictures.

    Args:
        root: of a version, ``benchmark/v1``.
        pages: folder of the pages.
    """
    costs = json.loads((root / COSTS).read_text(encoding="utf-8")) if (root / COSTS).exists() else {}
    written: list[Path] = []
    sections: list[dict[str, Any]] = []
    pages.mkdir(parents=True, exist_ok=True)
    all_verdicts = sorted(
        benchmark_verdicts(root), key=lambda verdicts: (TASKS.index(verdicts.folder.parent.name), verdicts.folder.name)
    )
    for verdicts in all_verdicts:
        write_whole(verdicts.folder / COMPARISON, comparison_text(verdicts))
        task, ruleset = verdicts.folder.parent.name, verdicts.folder.name
        styles, scale = line_styles(verdicts.comparison.systems, BASELINE), verdicts.comparison.scale
        plot = plot_differences(verdicts.errors, styles, LEVEL, scale)
        picture = pages / f"{task}_{ruleset}.svg"
        if plot is not None:
            write_whole(picture, plot.svg)
            written.append(picture)
        sections.append(
            {
                "title": f"{task}, {NAMES[ruleset]}",
                "sentences": [*_sentences(verdicts)],
                "table": _table(verdicts, costs),
                "plot": plot,
                "picture": picture.name,
            }
        )
    texts = [(root / name).read_text(encoding="utf-8") for name in TEXTS if (root / name).exists()]
    summary = [f"{section['title']}: {section['sentences'][0]}" for section in sections]
    index, page = pages / "index.md", pages / "benchmark.html"
    write_whole(index, markdown(sections, summary, texts))
    shown: dict[str, Any] = {"sections": sections, "summary": summary, "columns": COLUMNS, "version": VERSION}
    write_whole(page, render("benchmark.html.jinja", styles={}, **shown))
    return [*written, index, page, *(verdicts.folder / COMPARISON for verdicts in all_verdicts)]


def _sentences(verdicts: Verdicts) -> Iterator[str]:
    """Yield what is sure by each outcome: which entries may be best, and which differ from the baseline."""
    errors, times = verdicts.errors, verdicts.times
    yield from headline(errors, LEVEL, verdicts.comparison.scale)
    budget = f"all have {number(times.budget)} updates"
    yield f"{times_sentence(times)} The target is a loss of {verdicts.target:.3g} on dev; {budget}."
    differ = [
        f"{one.system} {ratio(one.value)} {interval(one.low, one.high, ratio)}"
        for one in (row.contrast for row in times.rows)
        if one is not None and one.verdict in ("better", "worse")
    ]
    yield f"Updates ÷ {BASELINE}’s: {shortlist(differ) or 'no entry differs significantly'}."
    speakers = f" by {count(errors.num_speakers, 'speaker')}" if errors.num_speakers else ""
    yield f"Test: {count(errors.num_utterances, 'utterance')}{speakers}."
    yield from dict.fromkeys(verdicts.comparison.problems)


def _table(verdicts: Verdicts, costs: Mapping[str, Any]) -> Table:
    by_time = {row.system: row for row in verdicts.times.rows}
    entries = {entry.about["name"]: entry for entry in verdicts.entries}
    rows = []
    for row in verdicts.errors.rows:
        time, cost, entry = by_time.get(row.system), costs.get(row.system, {}), entries[row.system]
        best = {"WER": row.may_be_best, "updates": time is not None and time.may_be_best}
        learned, contrast = row.reliability, row.to_baseline
        least = "" if time is None or time.num_reached == time.num_runs else "≥ "
        rows.append(
            [
                Cell(row.system),
                Cell(", ".join(name for name, is_in in best.items() if is_in) or UNKNOWN),
                mean_cell(row.wer_mean, row.wer_sd),
                *_contrast(contrast),
                Cell(UNKNOWN if contrast is None or contrast.points is None else points(contrast.points)),
                Cell(UNKNOWN if contrast is None or contrast.detectable is None else ratio(contrast.detectable)),
                Cell(f"{learned.num_learned} of {learned.num_runs}", interval(learned.low, learned.high)),
                Cell(UNKNOWN if time is None else f"{least}{number(time.mean)}"),
                *_contrast(None if time is None else time.contrast),
                Cell(ratio(cost["ratio"]) if cost else UNKNOWN),
                Cell(number(entry.runs[0].cost.state_bytes_per_parameter if entry.runs else None)),
                Cell(status(entry)),
            ]
        )
    columns = (
        *(SYSTEM, Column("may be best", is_text=True), Column("WER %"), Column(f"errors ÷ {BASELINE}’s [{SURE}]")),
        *(Column("verdict on WER", is_text=True), Column("points of WER"), Column("80 of 100 find")),
        *(Column(f"learned [{SURE}]"), Column("updates to target"), Column(f"updates ÷ {BASELINE}’s [{SURE}]")),
        *(Column("verdict on updates", is_text=True), Column(f"cost of a step ÷ {BASELINE}’s")),
        *(Column("state bytes per parameter"), Column("status", is_text=True)),
    )
    return Table(f"{verdicts.folder.parent.name}, {NAMES[verdicts.folder.name]}", columns, rows)


def _contrast(contrast: Contrast | None) -> Sequence[Cell]:
    if contrast is None:
        return Cell(UNKNOWN), Cell(UNKNOWN)
    return contrast_cell(contrast, "ratio"), verdict_cell(contrast.verdict)


def markdown(sections: Sequence[Mapping[str, Any]], summary: Sequence[str], texts: Sequence[str]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# A benchmark of optimizers for speech",
        "",
        "<!-- generated by asr-benchmark page; edit benchmark/v1/known.md, or add an entry -->",
        "",
        *([f"- {sentence}" for sentence in summary] or ["There are no entries yet."]),
        "",
        *texts,
        "",
        "[The rules](rules.md) say what is fixed, what is free, how to [enter](rules.md#enter), and what the verdicts "
        "claim. [The same tables and pictures in one file](benchmark.html).",
        "",
        "## How to read the tables",
        "",
        *(f"- {sentence}" for sentence in COLUMNS),
    ]
    for section in sections:
        shown: Table = section["table"]
        lines += ["", f"## {section['title']}", "", *(f"- {sentence}" for sentence in section["sentences"]), ""]
        if (plot := section["plot"]) is not None:
            assert isinstance(plot, Plot)
            lines += [f"![{plot.title}]({section['picture']})", "", plot.caption, ""]
        lines += [_row([column.name for column in shown.columns]), "|---" * len(shown.columns) + "|"]
        lines += [_row([f"{cell.text} {cell.detail}".strip() for cell in row]) for row in shown.rows]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
