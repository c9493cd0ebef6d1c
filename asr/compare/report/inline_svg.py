"""Plots as parts of a page: small, in the colors of its scheme, with unique ids."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from asr.compare.plots.line_styles import COLORS

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#[\w-]+")
_MEASURES = ("d", "transform", "x", "y")
_DROPPED = (f"{{{SVG}}}metadata", f"{{{SVG}}}style")  # a style would apply to the whole page


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
