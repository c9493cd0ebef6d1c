"""A comparison as pictures and as one page that can be shown to colleagues, read on a phone and kept offline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asr.evaluation.comparison.drawing import Plot
from asr.evaluation.comparison.headline import headline
from asr.evaluation.comparison.inline_svg import inline_svg
from asr.evaluation.comparison.looks import COLOURS
from asr.evaluation.comparison.plots import Plots, contestants, draw_plots
from asr.evaluation.comparison.report_tables import (
    Table,
    cost_table,
    difference_tables,
    run_table,
    target_table,
    wer_table,
)
from asr.evaluation.comparison.result import Comparison, SetComparison
from asr.evaluation.comparison.wording import count, printable
from asr.evaluation.report import check_set_name
from asr.safe_io import refuse_existing, write_new

REPORT = "report.html"
PLOTS = "plots"


@dataclass(frozen=True)
class SetSection:
    """What the page says of one test set.

    Attributes:
        name: of the set.
        size: in words.
        headline: sentences, the most important one first.
        plot: of its WERs.
        wers: the numbers that it shows.
        differences: between contestants.
    """

    name: str
    size: str
    headline: Sequence[str]
    plot: Plot
    wers: Table
    differences: Sequence[Table]


def write_report_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``report.html`` and below ``plots`` its pictures as PNG and SVG.

    Each file appears complete or not at all; where the report is, the pictures are too.

    Args:
        comparison: what was found.
        folder: created if needed.

    Returns:
        The files, the report first.

    Raises:
        FileExistsError: one of the files is there already; nothing is written then.
        ValueError: the name of a test set cannot be part of a file's name.
    """
    for found in comparison.sets:
        check_set_name(found.name)
    plots = draw_plots(comparison)
    files: dict[Path, str | bytes] = {folder / REPORT: report_page(comparison, plots)}
    for plot in plots.all:
        files |= {folder / PLOTS / f"{plot.name}.png": plot.png, folder / PLOTS / f"{plot.name}.svg": plot.svg}
    for path in files:
        refuse_existing(path)
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    for path in reversed(files):  # the report last
        write_new(path, files[path])
    return list(files)


def report_page(comparison: Comparison, plots: Plots) -> str:
    """Return the page: valid HTML that loads nothing, runs nothing, and shows all names as text."""
    environment = Environment(
        loader=PackageLoader("asr.evaluation.comparison"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = contestants(comparison)
    return environment.get_template("report.html.jinja").render(
        comparison=comparison,
        size=_size(comparison),
        sections=[_section(found, plots, comparison.level) for found in comparison.sets if found.rows],
        plots=plots,
        looks=plots.looks,
        colours=COLOURS,
        target=target_table(comparison),
        costs=cost_table(comparison, names),
        runs=run_table(comparison, names),
        inline=_inline,
        breakable=_breakable,
    )


def _printable(value: Any) -> Any:
    """Make text fit for any file; what is markup already stays."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _inline(plot: Plot) -> Markup:
    return Markup(inline_svg(plot.svg, plot.name, printable(plot.alt)))


def _breakable(name: str) -> Markup:
    """Escape a long name, and let lines break between its parts, never within a number."""
    return Markup("<wbr>").join(re.split(r"(?<=[=_./-])(?=[^\W\d])", printable(name)))


def _section(found: SetComparison, plots: Plots, level: float) -> SetSection:
    speakers = "of unknown speakers" if found.num_speakers is None else f"of {count(found.num_speakers, 'speaker')}"
    return SetSection(
        name=found.name,
        size=f"{count(found.num_utterances, 'utterance')} {speakers}",
        headline=headline(found, level),
        plot=plots.wers[found.name],
        wers=wer_table(found, level),
        differences=difference_tables(found, level),
    )


def _size(comparison: Comparison) -> str:
    num_contestants = len({run.contestant for run in comparison.runs})
    parts = (
        count(num_contestants, "contestant"),
        count(len(comparison.runs), "run"),
        count(len(comparison.sets), "test set"),
    )
    return ", ".join(parts)
