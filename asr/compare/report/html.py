"""A comparison as one HTML page to share, to read on a phone and to keep offline."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asr.compare.plots.draw_plots import Plots
from asr.compare.plots.line_styles import COLORS
from asr.compare.report.costs import cost_table, overall
from asr.compare.report.inline_svg import inline_svg
from asr.compare.report.speed_tables import speed_tables
from asr.compare.report.tables import explanations, run_table, set_sections
from asr.compare.report.weights_tables import weights_tables
from asr.compare.result import Comparison
from asr.evaluation.formatting import count, printable


def report_page(comparison: Comparison, plots: Plots) -> str:
    """Return the page: valid HTML without scripts that loads nothing, with all names as text."""
    environment = Environment(
        loader=PackageLoader("asr.compare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    nouns = {"system": len(comparison.systems), "run": len(comparison.runs), "test set": len(comparison.sets)}
    return environment.get_template("report.html.jinja").render(
        comparison=comparison,
        size=", ".join(count(amount, noun) for noun, amount in nouns.items()),
        sections=set_sections(comparison),
        overall=overall(comparison),
        plots=plots,
        colors=COLORS,
        weights=weights_tables(comparison),
        speed=speed_tables(comparison),
        costs=cost_table(comparison),
        runs=run_table(comparison),
        explanations=explanations(comparison.level, comparison.rate_name),
        inline=lambda plot: Markup(inline_svg(plot.svg, plot.name, printable(plot.alt))),
        breakable=_breakable,
    )


def _printable(value: Any) -> Any:
    """Make text fit for any file; markup stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """Escape a long name and allow line breaks between its parts, but not within a number."""
    return Markup("<wbr>").join(re.split(r"(?<=[=_./-])(?=[^\W\d])", printable(name)))
