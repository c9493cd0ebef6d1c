"""A page taken apart with the parser of the standard library."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("meta", "link", "wbr", "br", "img", "input")


@dataclass
class Element:
    """One element; ``text`` is all that is in it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        inside = [found for child in self.children for found in child.all(tag)]
        return [self, *inside] if self.tag == tag else inside


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("page", {})]

    def handle_starttag(self, tag, attrs) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes nothing"

    def handle_data(self, data) -> None:
        for element in self.open:
            element.text += data


def parse(page: str) -> Element:
    """Return the page; every element must be closed in order."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    (root,) = parser.open
    return root


def has_own_script_alone(page: str) -> bool:
    """Return whether the page has one script, and its policy allows this one alone."""
    (script,), policies = parse(page).all("script"), [one.attributes.get("content") for one in parse(page).all("meta")]
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    (policy,) = [text for text in policies if (text or "").startswith("default-src")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    return (rules["default-src"], rules["script-src"]) == ("'none'", f"'sha256-{digest}'")


def table_of(root: Element, title: str) -> list[list[str]]:
    """Return the texts of the first table of that title, its header first."""
    table = next(table for table in root.all("table") if table.all("caption")[0].text == title)
    rows = [[cell for cell in row.children if cell.tag in ("td", "th")] for row in table.all("tr")]
    return [[" ".join(cell.text.split()) for cell in row] for row in rows]
