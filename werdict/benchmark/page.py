"""The page of the benchmark: for each task and ruleset what is sure, the frozen verdicts, and what entries cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from werdict.benchmark.entries import DEV_LOSS, Entry
from werdict.benchmark.rules import BASELINE, LEVEL, LOOKS, NUM_TRIALS, VERSION
from werdict.benchmark.verdicts import Standing, standings, updates_to_target
from werdict.files import write_whole
from werdict.formatting import UNKNOWN, count, interval, number, ratio, shortlist
from werdict.plots import Bar, Plot, Trade, curve_plot, line_styles, plot_intervals, plot_trades
from werdict.report.headline import headline
from werdict.report.pages import render
from werdict.report.sections import SYSTEM, Cell, Column, Table, mean_cell, verdict_cell
from werdict.statistics.times import seed_curves

KNOWN = "known.md"  # written by people
NAMES = {"as_shipped": "as shipped", "tuned": f"tuned with {NUM_TRIALS} trials"}
SURE = f"{100 * LEVEL:g} %"
COLUMNS = (
    "May be best: the outcomes by which no other entry is significantly better; computed again for all. Entries that "
    "were significantly worse than the record when they entered are left out of this question.",
    f"Verdicts: compared with {BASELINE} on the day of entry, and frozen. Each outcome has a level of {SURE}. A ratio "
    "below 1 is better.",
    "WER: mean and standard deviation over the runs; one that failed counts as 100 %. Ratios are of geometric means.",
    "Updates to the target: geometric mean over all seeds. One that missed the target counts as if it had reached it "
    "at the end, and ≥ says so.",
    f"CPU seconds to the target: relative to {BASELINE}, which was trained once beside the entry, on the same machine.",
)


def write_pages(root: Path, pages: Path) -> list[Path]:
    """Write ``index.md``, one HTML and pictures of each task and ruleset from stored runs and verdicts.

    Args:
        root: of a version, ``benchmark/v2``.
        pages: folder of the pages.
    """
    written: list[Path] = []
    sections: list[dict[str, Any]] = []
    pages.mkdir(parents=True, exist_ok=True)
    for standing in sorted(standings(root), key=lambda one: (one.ruleset != "tuned", one.task)):
        plots = [*_plots(standing)]
        pictures = [pages / f"{standing.task}_{standing.ruleset}_{plot.name}.svg" for plot in plots]
        for picture, plot in zip(pictures, plots, strict=True):
            write_whole(picture, plot.svg)
        written += pictures
        sections.append(
            {
                "title": f"{standing.task}, {NAMES[standing.ruleset]}",
                "sentences": [*_sentences(standing)],
                "table": _table(standing),
                "plots": plots,
                "pictures": [picture.name for picture in pictures],
            }
        )
    known = (root / KNOWN).read_text(encoding="utf-8") if (root / KNOWN).exists() else ""
    summary = [f"{section['title']}: {sentence}" for section in sections for sentence in section["sentences"][:2]]
    index, page = pages / "index.md", pages / "benchmark.html"
    write_whole(index, markdown(sections, summary, known))
    shown: dict[str, Any] = {"sections": sections, "summary": summary, "columns": COLUMNS, "version": VERSION}
    write_whole(page, render("benchmark.html.jinja", styles={}, **shown))
    return [*written, index, page]


def _sentences(standing: Standing) -> Iterator[str]:
    """Yield which entries may be best, which differ from the baseline, and what that was measured on."""
    errors, times = standing.errors, standing.times
    yield headline(errors, LEVEL, standing.comparison.scale)[0]
    verdicts = standing.verdicts
    for outcome in ("errors", "updates"):
        beside = {name: verdict.get(f"beside {BASELINE}", {}).get(outcome) for name, verdict in verdicts.items()}
        differ = [
            f"{name} {ratio(one['value'])} {interval(one['low'], one['high'], ratio)}"
            for name, one in beside.items()
            if one is not None and one["verdict"] in ("better", "worse")
        ]
        yield f"{outcome.capitalize()} ÷ {BASELINE}’s: {shortlist(differ) or 'no entry differs significantly'}."
    yield f"Target: a loss of {standing.target:.3g} on dev; all have {number(times.budget)} updates."
    speakers = f" by {count(errors.num_speakers, 'speaker')}" if errors.num_speakers else ""
    yield f"Test: {count(errors.num_utterances, 'utterance')}{speakers}."
    kinds = sorted({"GPU" if entry.is_of_gpu else "CPU" for entry in standing.entries})
    runs = f"{LOOKS[0]} or {LOOKS[1]} runs each, made by {' and '.join(kinds)}"
    yield f"{len(standing.entries)} entries, {runs}."


def _table(standing: Standing) -> Table:
    best_by = {
        "WER": {row.system for row in standing.errors.rows if row.may_be_best},
        "updates": {row.system for row in standing.times.rows if row.may_be_best},
    }
    rows = []
    for entry in sorted(standing.entries, key=lambda one: (statistics.mean(one.wers), one.name)):
        verdict = standing.verdicts.get(entry.name, {})
        record = " (record)" if verdict.get("record") else ""
        seconds, is_least = _relative_seconds(standing, entry)
        states = [run.cost.state_bytes_per_parameter for run in entry.runs]
        rows.append(
            [
                Cell(entry.name),
                Cell(", ".join(name for name, best in best_by.items() if entry.name in best) or UNKNOWN),
                mean_cell(statistics.mean(entry.wers), statistics.stdev(entry.wers)),
                *_frozen(verdict, "errors"),
                *_frozen(verdict, "updates"),
                Cell(UNKNOWN if seconds is None else f"{'≥ ' * is_least}{ratio(seconds)}"),
                Cell(number(states[0] if states else None)),
                Cell(str(len(entry.lines))),
                Cell(f"{verdict.get('date', UNKNOWN)}{record}"),
                Cell(_confirmed(standing, entry)),
            ]
        )
    columns = (
        *(SYSTEM, Column("may be best", is_text=True), Column("WER %"), Column(f"errors ÷ {BASELINE}’s [{SURE}]")),
        *(Column("verdict on WER", is_text=True), Column(f"updates ÷ {BASELINE}’s [{SURE}]")),
        *(Column("verdict on updates", is_text=True), Column(f"CPU seconds to the target ÷ {BASELINE}’s")),
        *(Column("state bytes per parameter"), Column("runs"), Column("entered", is_text=True)),
        Column("confirmed", is_text=True),
    )
    return Table(f"{standing.task}, {NAMES[standing.ruleset]}", columns, rows)


def _frozen(verdict: Mapping[str, Any], outcome: str) -> Sequence[Cell]:
    one = verdict.get(f"beside {BASELINE}", {}).get(outcome)
    if one is None:
        return Cell(UNKNOWN), Cell(UNKNOWN)
    return Cell(ratio(one["value"]), interval(one["low"], one["high"], ratio)), verdict_cell(one["verdict"])


def _relative_seconds(standing: Standing, entry: Entry) -> tuple[float | None, bool]:
    """Return the CPU seconds of an entry to the target, relative to the baseline's, and whether it is at least that."""
    baseline = next(one for one in standing.entries if one.name == BASELINE)
    (own, reached), (usual, _) = (updates_to_target(one, standing.target) for one in (entry, baseline))
    return None if entry.cost is None else entry.cost * own / usual, not reached


def _confirmed(standing: Standing, entry: Entry) -> str:
    """Return what repetitions of an entry with new seeds have said."""
    again = [one for one in standing.entries if one.about.get("reproduces") == entry.name]
    said = {True: "confirmed by", False: "not confirmed by"}
    results = [
        f"{said[standing.verdicts[one.name]['confirms']]} {one.name}" for one in again if one.name in standing.verdicts
    ]
    return ", ".join(results) or UNKNOWN


def _plots(standing: Standing) -> Iterator[Plot]:
    """Yield a forest of ratios to the baseline, the curves of the loss on dev, and cost against quality."""
    entries = sorted(standing.entries, key=lambda one: (statistics.mean(one.wers), one.name))
    styles = line_styles([entry.name for entry in entries], BASELINE)
    bars = []
    for entry in entries:
        one = standing.verdicts.get(entry.name, {}).get(f"beside {BASELINE}", {}).get("errors")
        if one is not None:
            text = f"{ratio(one['value'])} {interval(one['low'], one['high'], ratio)}"
            is_open = one["verdict"] == "cannot distinguish"
            bars.append(Bar(entry.name, one["value"], one["low"], one["high"], text, is_open))
    caption = (
        f"Ratio of geometric mean WERs and its {SURE} interval, on the day of entry. Left of the line: better than "
        f"{BASELINE}. Dotted: not significant."
    )
    title, intervals = f"Errors compared with {BASELINE}", (f"{SURE} interval", "not significant")
    x_label, reference = f"WER ÷ {BASELINE}’s", (BASELINE, 1.0)
    yield plot_intervals("forest", title, caption, bars, styles, x_label, reference, intervals, is_ratio=True)
    all_curves = {entry.name: seed_curves([run.curves[DEV_LOSS] for run in entry.runs], "updates") for entry in entries}
    curves = {name: curve for name, curve in all_curves.items() if curve is not None}
    yield curve_plot("curves", "Loss on dev", "nats per token", "updates", curves, styles)
    seconds = {entry.name: _relative_seconds(standing, entry) for entry in entries}
    trades = [
        Trade(entry.name, value, 100 * statistics.mean(entry.wers), is_least)
        for entry in entries
        for value, is_least in (seconds[entry.name],)
        if value is not None
    ]
    labels = f"CPU seconds to the target ÷ {BASELINE}’s", "WER (%)"
    caption = "Below and to the left is better. An empty marker: some runs missed the target, so the cost is larger."
    yield plot_trades(trades, styles, labels, "Cost against quality", caption)


def markdown(sections: Sequence[Mapping[str, Any]], summary: Sequence[str], known: str) -> str:
    """Return the page as Markdown."""
    lines = [
        "# A benchmark of optimizers for speech",
        "",
        f"<!-- generated by asr-benchmark page; edit benchmark/{VERSION}/{KNOWN}, or add an entry -->",
        "",
        *([f"- {sentence}" for sentence in summary] or ["There are no entries yet."]),
        "",
        known,
        "[The rules](rules.md) say what is fixed, what is free, how to [enter](rules.md#enter), and what the verdicts "
        "claim. [The same tables and pictures in one file](benchmark.html). [Version 1](v1/index.md) is superseded.",
        "",
        "## How to read the tables",
        "",
        *(f"- {sentence}" for sentence in COLUMNS),
    ]
    for section in sections:
        shown: Table = section["table"]
        lines += ["", f"## {section['title']}", "", *(f"- {sentence}" for sentence in section["sentences"]), ""]
        for plot, picture in zip(section["plots"], section["pictures"], strict=True):
            lines += [f"![{plot.title}]({picture})", "", plot.caption, ""]
        lines += [_row([column.name for column in shown.columns]), "|---" * len(shown.columns) + "|"]
        lines += [_row([f"{cell.text} {cell.detail}".strip() for cell in row]) for row in shown.rows]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
