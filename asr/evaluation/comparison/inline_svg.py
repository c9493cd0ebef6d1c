"""Pictures as parts of a page: small, in the colours of its scheme, without names that could meet twice."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from asr.evaluation.comparison.looks import COLOURS

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#[\w-]+")
_MEASURES = ("d", "transform", "x", "y")
_DROPPED = (f"{{{SVG}}}metadata", f"{{{SVG}}}style")  # a style would hold for the whole page


def inline_svg(svg: str, name: str, alt: str) -> str:
    """Return matplotlib's SVG as an element of an HTML page.

    Its size follows the page, its colours are the page's variables of ``looks.COLOURS``, its ids begin with ``name``.

    Args:
        svg: the file's content.
        name: of the picture, unique on its page.
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
    """Name, colour and shorten an element; it loses its namespace, which HTML knows."""
    node.tag = node.tag.removeprefix(f"{{{SVG}}}")
    attributes = {key.removeprefix(f"{{{XLINK}}}"): value for key, value in node.attrib.items()}
    node.attrib.clear()
    for key, value in attributes.items():
        if key == "id" and f"#{value}" in targets:
            node.set(key, f"{name}-{value}")
        elif key in _MEASURES:
            node.set(key, _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value))
        elif key != "id":
            node.set(key, _coloured(_REFERENCE.sub(lambda found: _renamed(found[0], name, targets), value)))


def _renamed(reference: str, name: str, targets: set[str]) -> str:
    return f"#{name}-{reference[1:]}" if reference in targets else reference


def _coloured(style: str) -> str:
    for colour in COLOURS:
        style = style.replace(colour.light, f"var(--{colour.name})")
    return style
