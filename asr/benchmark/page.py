"""The page of the benchmark: for each task and ruleset the groups, the verdicts and the cost of each entry."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.benchmark.rules import BASELINE, LEVEL, TASKS, VERSION
from asr.benchmark.verdicts import COMPARISON, Verdicts, benchmark_verdicts, comparison_text, status
from asr.compare.plots.drawing import Plot
from asr.compare.plots.interval_plots import plot_differences
from asr.compare.plots.line_styles import line_styles
from asr.compare.report.pages import render
from asr.compare.report.tables import SYSTEM, Cell, Column, Table, interval_cell, mean_cell, verdict_cell
from asr.evaluation.formatting import UNKNOWN, count, detectable, number, percent, points, ratio, shortlist
from asr.safe_io import write_whole

COSTS = "costs.json"
TEXTS = ("known.md",)  # written by people
NAMES = {"as_shipped": "as shipped", "tuned": "tuned"}
COLUMNS = (
    f"Intervals and verdicts of a table hold together at {100 * LEVEL:g} %: those on WER, and those on updates.",
    "Group: the best entry of a group is better than all entries of later groups. Its other entries need not be, and "
    "their order means nothing. An entry of which fewer than two seeds learned has no group.",
    "WER: mean and standard deviation over the seeds that learned, which means that their hypotheses depend on the "
    "audio. Differences are means over the seeds that learned in both entries. An interval is missing where half of it "
    "would exceed 100 points. One that ends at 0.00 belongs to a significant difference.",
    "Updates to the target: geometric mean over all seeds. One that missed the target counts as if it had reached it "
    "at the end, and ≥ says so. A ratio below 1 is better than the baseline.",
    "Cost of a step: time of the optimizer's step on one CPU thread, all measured in one run. On a GPU it is another.",
)


def write_pages(root: Path, pages: Path) -> list[Path]:
    """Recompute all verdicts; write ``comparison.json`` of each task and ruleset, ``index.md``, one HTML and pictures.

    Args:
        root: of a version, ``benchmark/v1``.
        pages: folder of the pages.
    """
    costs = json.loads((root / COSTS).read_text(encoding="utf-8")) if (root / COSTS).exists() else {}
    written, sections = [], []
    pages.mkdir(parents=True, exist_ok=True)
    all_verdicts = sorted(
        benchmark_verdicts(root), key=lambda verdicts: (TASKS.index(verdicts.folder.parent.name), verdicts.folder.name)
    )
    for verdicts in all_verdicts:
        write_whole(verdicts.folder / COMPARISON, comparison_text(verdicts))
        task, ruleset = verdicts.folder.parent.name, verdicts.folder.name
        plot = plot_differences(verdicts.errors, line_styles(verdicts.comparison.systems, BASELINE), LEVEL)
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
    summary = [_first(verdicts) for verdicts in all_verdicts]
    index, page = pages / "index.md", pages / "benchmark.html"
    write_whole(index, markdown(sections, summary, texts))
    shown = {"sections": sections, "summary": summary, "columns": COLUMNS, "version": VERSION}
    write_whole(page, render("benchmark.html.jinja", __package__, styles={}, **shown))
    return [*written, index, page, *(verdicts.folder / COMPARISON for verdicts in all_verdicts)]


def _first(verdicts: Verdicts) -> str:
    """Return what is sure about one task and ruleset, a sentence for each outcome."""
    task, ruleset = verdicts.folder.parent.name, NAMES[verdicts.folder.name]
    by_wer = {row.system: row.to_baseline for row in verdicts.errors.rows}
    by_updates = {row.system: row.contrast for row in verdicts.times.rows}
    sentences = []
    for outcome, contrasts in (("WER", by_wer), ("Updates to the target", by_updates)):
        systems: dict[str, list[str]] = defaultdict(list)
        for name, contrast in contrasts.items():
            if contrast is not None:
                systems[contrast.verdict].append(name)
        parts = [f"{verdict}: {shortlist(systems[verdict])}" for verdict in sorted(systems)]
        sentences.append(f"{outcome}: {'; '.join(parts)}.")
    return f"{task}, {ruleset}, compared with {BASELINE}. {' '.join(sentences)}"


def _sentences(verdicts: Verdicts) -> Iterator[str]:
    errors, times = verdicts.errors, verdicts.times
    speakers = f", {count(errors.num_speakers, 'speaker')}" if errors.num_speakers else ""
    yield (
        f"Test: {count(errors.num_utterances, 'utterance')}{speakers}. Updates are counted to a loss of "
        f"{verdicts.target:.3g} on dev, out of {number(times.budget)}."
    )
    if errors.power is not None:
        yield (
            f"A true difference of {detectable(errors.power.detectable)} points of WER is found in 80 of 100 such "
            "comparisons."
        )
    yield from dict.fromkeys(verdicts.comparison.problems)


def _table(verdicts: Verdicts, costs: Mapping[str, Any]) -> Table:
    by_time = {row.system: row for row in verdicts.times.rows}
    entries = {entry.about["name"]: entry for entry in verdicts.entries}
    any_left_out = any(row.leaves_out_results for row in verdicts.errors.rows)
    rows = []
    for row in verdicts.errors.rows:
        time, cost = by_time[row.system], costs.get(row.system, {})
        rows.append(
            [
                Cell(row.system),
                Cell(str(verdicts.groups.get(row.system, UNKNOWN))),
                mean_cell(row.wer_mean, row.wer_sd),
                *([Cell(percent(row.wer_mean_of_all))] if any_left_out else []),
                *_difference(row.to_baseline),
                Cell(f"{row.reliability.num_learned} of {row.reliability.num_runs}"),
                Cell(("" if time.num_reached == time.num_runs else "≥ ") + number(time.mean)),
                *_ratio(time.contrast),
                Cell(ratio(cost["ratio"]) if cost else UNKNOWN),
                Cell(number(entries[row.system].runs[0].cost.state_bytes_per_parameter)),
                Cell(status(entries[row.system])),
            ]
        )
    for name, lost in verdicts.errors.gone.items():
        learned = Cell(f"0 of {lost.num_runs}")
        rows.append([Cell(name), *[Cell(UNKNOWN)] * (4 + any_left_out), learned, *[Cell(UNKNOWN)] * 6])
    level = f"[{100 * LEVEL:g} %]"
    columns = (
        *(SYSTEM, Column("group"), Column("WER %"), *([Column("WER % of all seeds")] if any_left_out else [])),
        *(Column(f"WER − {BASELINE}, points {level}"), Column("verdict on WER", is_text=True), Column("learned")),
        *(Column("updates to target"), Column(f"updates ÷ {BASELINE}’s {level}")),
        *(Column("verdict on updates", is_text=True), Column(f"cost of a step ÷ {BASELINE}’s")),
        *(Column("state bytes per parameter"), Column("status", is_text=True)),
    )
    return Table(f"{verdicts.folder.parent.name}, {NAMES[verdicts.folder.name]}", columns, rows)


def _difference(pair: Any) -> Sequence[Cell]:
    if pair is None:
        return Cell(UNKNOWN), Cell("baseline")
    return interval_cell(pair.mean, pair.low, pair.high, points), verdict_cell(pair.verdict)


def _ratio(contrast: Any) -> Sequence[Cell]:
    if contrast is None:
        return Cell(UNKNOWN), Cell(UNKNOWN)
    return interval_cell(contrast.value, contrast.low, contrast.high, ratio), verdict_cell(contrast.verdict)


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
        lines += ["", f"## {section['title']}", "", " ".join(section["sentences"]), ""]
        if (plot := section["plot"]) is not None:
            assert isinstance(plot, Plot)
            lines += [f"![{plot.title}]({section['picture']})", "", plot.caption, ""]
        lines += [_row([column.name for column in shown.columns]), "|---" * len(shown.columns) + "|"]
        lines += [_row([f"{cell.text} {cell.detail}".strip() for cell in row]) for row in shown.rows]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
