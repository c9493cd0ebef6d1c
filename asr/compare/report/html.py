"""A comparison as one HTML page to share, to read on a phone and to keep offline."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asr.compare.plots.draw_plots import Plots
from asr.compare.plots.line_styles import COLORS
from asr.compare.report.costs import cost_table, overall, speed_tables
from asr.compare.report.tables import explanations, run_table, set_sections
from asr.compare.result import Comparison
from asr.evaluation.formatting import count, printable

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#[\w-]+")
_MEASURES = ("d", "transform", "x", "y")
_DROPPED = (f"{{{SVG}}}metadata", f"{{{SVG}}}style")  # a style would apply to the whole page


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
        speed=speed_tables(comparison),
        costs=cost_table(comparison),
        runs=run_table(comparison),
        explanations=explanations(comparison.level, comparison.rate_name),
        inline=lambda plot: Markup(inline_svg(plot.svg, plot.name, printable(plot.alt))),
        breakable=_breakable,
    )


def _printable(value: Any) -> Any:
    """Replace characters that no file can hold; markup stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """Escape a long name and allow line breaks between its parts, but not within a number."""
    return Markup("<wbr>").join(re.split(r"(?<=[=_./-])(?=[^\W\d])", printable(name)))


def inline_svg(svg: str, name: str, alt: str) -> str:
    """Return matplotlib's SVG as an element of an HTML page.

    Its size follows the page, its colors are those of ``COLORS`` as variables, its ids begin with ``name``.

    Args:
        svg: content of the file.
        name: of the plot, unique on its page.
        alt: what it shows.
    """
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
    referred = {name for node in root.iter() for value in node.attrib.values() for name in _REFERENCE.findall(value)}
    targets = referred & {f"#{node.get('id')}" for node in root.iter()}
    for node in root.iter():
        _adapt(node, name, targets)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"role": "img", "aria-label": alt}
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(node: ElementTree.Element, name: str, targets: set[str]) -> None:
    """Set ids and colors of an element, shorten its numbers, and drop its namespace, which HTML implies."""
    node.tag = node.tag.removeprefix(f"{{{SVG}}}")
    attributes = {key.removeprefix(f"{{{XLINK}}}"): value for key, value in node.attrib.items()}
    node.attrib.clear()
    for key, value in attributes.items():
        if key == "id" and f"#{value}" in targets:
            node.set(key, f"{name}-{value}")
        elif key in _MEASURES:
            node.set(key, _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value))
        elif key != "id":
            style = _REFERENCE.sub(lambda found: f"#{name}-{found[0][1:]}" if found[0] in targets else found[0], value)
            for color in COLORS:
                style = style.replace(color.light, f"var(--{color.name})")
            node.set(key, style)
