"""A comparison as a page, as JSON, as tables, and on the terminal."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich.table
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Group
from rich.text import Text

from werdict.console import printable
from werdict.error_files import check_set_name
from werdict.formatting import count, explanations
from werdict.plots import Plots, draw_plots
from werdict.report.sections import Cell, Table, run_table, set_sections, what_verdicts_are_about
from werdict.report.utterances import cost_tables, errors_of
from werdict.result import Comparison
from werdict.statistics.judge import count_errors

JSON_FILE = "comparison.json"
SCRIPT = (Path(__file__).parents[1] / "templates" / "page.js").read_text(encoding="utf-8")


def render(template: str, package: str = "werdict", **values: Any) -> str:
    """Return a page.

    Args:
        template: its name.
        package: whose templates may extend and include those of this package.
        values: of the template.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("werdict")]),
        autoescape=True,
        undefined=StrictUndefined,
        # what macros return is escaped already, and no plain string
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # a page's policy names its script by its hash, so that no other script runs
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    environment.globals |= {"script": Markup(SCRIPT), "script_hash": f"sha256-{digest}"}
    return environment.get_template(template).render(**values)


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
    path = folder / JSON_FILE
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


# every terminal has these characters, and programs that read the tables know them
PLAIN = str.maketrans({"–": "-", "−": "-", "\N{NO-BREAK SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": "", "∞": "inf"})


def tables(comparison: Comparison) -> Iterator[Group | Text]:
    """Yield the answer for each test set, then its WERs and differences, then speed, time and memory."""
    sections = set_sections(comparison)
    for section in sections:
        sentences = (Text(sentence.translate(PLAIN)) for sentence in section.headline)
        yield Group(Text(f"{section.name}: {section.size}", style="bold"), *sentences)
    yield Text(what_verdicts_are_about(comparison))
    for section in sections:
        # with one test set the line above says which it is
        yield from [Text(section.name, style="bold")] if len(sections) > 1 else []
        yield from map(_rendered, section.tables)
    yield from map(_rendered, cost_tables(comparison))


def _rendered(table: Table) -> Group:
    rendered = rich.table.Table(box=None, pad_edge=False)
    # a name that is cut may be that of several systems
    rendered.add_column(table.columns[0].name, overflow="fold")
    shown = [place for place, column in enumerate(table.columns) if column.in_terminal][1:]
    for place in shown:
        column, cells = table.columns[place], [_plain(row[place]) for row in table.rows]
        if column.is_text:
            longest_word = max((len(word) for cell in cells for word in cell.split()), default=0)
            rendered.add_column(Text(column.name), min_width=longest_word)
        else:
            # numbers stay on one line, so that only their header can be wrapped
            name = column.name.replace(" %", "\N{NO-BREAK SPACE}%")
            lines = textwrap.wrap(name, max(map(len, cells), default=1), break_long_words=False)
            rendered.add_column(Text("\n".join(lines).translate(PLAIN)), justify="right", no_wrap=True)
    for row in table.rows:
        rendered.add_row(Text(printable(row[0].text)), *(Text(_plain(row[place])) for place in shown))
    title, *notes = (text.translate(PLAIN) for text in (table.title, *table.notes))
    return Group(Text(title, style="bold"), rendered, *map(Text, notes))


def _plain(cell: Cell) -> str:
    return printable(f"{cell.text} {cell.detail}".rstrip().translate(PLAIN))
