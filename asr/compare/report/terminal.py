"""A report's tables in a terminal, readable at 80 characters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import rich.table
from rich.console import Group
from rich.text import Text

from asr.compare.report.sections import set_sections, what_verdicts_are_about
from asr.compare.report.speed import cost_tables
from asr.compare.report.tables import Cell, Table
from asr.compare.result import Comparison
from asr.console import printable

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
