"""Write the tables of the documentation that follow from the code.

    python scripts/docs_tables.py [--check]

A page holds a table between two comments, ``<!-- generated: NAME ARGUMENT -->`` and ``<!-- end -->``; `TABLES` says
what makes it. With ``--check`` nothing is written, and pages whose tables are out of date are named.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import optim
from optim.schedules.closed_form import ClosedFormSchedule

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- generated: ([\w-]+)(?: ([^\n]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
PENDING = {"choices", "commands", "results"}  # no function makes these tables yet


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def public(base: type) -> Iterator[tuple[type, str]]:
    """Yield class and docstring of what `optim` exports that is a ``base`` with a rule of its own."""
    for name in sorted(optim.__all__, key=str.lower):
        cls = getattr(optim, name)
        if isinstance(cls, type) and issubclass(cls, base) and cls not in (optim.Chain, optim.Composable):
            yield cls, inspect.getdoc(cls) or ""


def paragraph(doc: str, pattern: str) -> str:
    """Return what a regular expression finds in a docstring, on one line and in Markdown; a dash if nothing."""
    found = re.search(pattern, doc, re.DOTALL)
    return " ".join(found[1].split()).replace("``", "`") if found else "–"


def source(doc: str) -> str:
    """Return the first sentence under ``Reference:``, with links in place of titles."""
    sentence = paragraph(doc, r"\nReference:\n(.+?)(?:\.\s+(?=[A-Z])|\.?$|\.?\n\n)")
    sentence = re.sub(r', "[^"]+"', "", sentence)
    sentence = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", sentence)
    return re.sub(r"((?:[\w-]+\.)+(?:com|io)/[\w./-]*\w)", lambda url: f"[{short(url[1])}](https://{url[1]})", sentence)


def short(url: str) -> str:
    """Return the name of a site, or of a repository, and of a file in it with its folder."""
    host, *path = url.split("/")
    if host != "github.com":
        return host
    return "/".join(path) if len(path) == 2 else f"{path[1]}: {'/'.join(path[-2:])}"


def optimizers() -> str:
    """Return one row per optimizer, from its docstring."""
    rows = [
        (
            f"`{cls.__name__}`",
            paragraph(doc, r"^(.+?)\.?\n\n"),
            paragraph(doc, r"\nState: (.+?):").replace(" bytes per float32 parameter", ""),
            paragraph(doc, r"\nUse: (.+?)\.?\n\n"),
            source(doc),
        )
        for cls, doc in public(optim.Chain)
    ]
    return table(("optimizer", "idea", "state, bytes per float32 parameter", "use it", "source"), rows)


def schedules() -> str:
    """Return one row per schedule, from its signature and docstring."""
    rows = []
    for cls, doc in public(ClosedFormSchedule):
        options = [option for option in inspect.signature(cls).parameters if option != "optimizer"]
        rows.append((f"`{cls.__name__}({', '.join(options)})`", paragraph(doc, r"^(.+?)\.?\n\n"), source(doc)))
    return table(("schedule", "what it does", "source"), rows)


TABLES: Mapping[str, Callable[..., str]] = {"optimizers": optimizers, "schedules": schedules}


def renewed(page: str) -> str:
    """Return a page with its tables made anew; a function gets the argument that its block has, if any."""

    def made(block: re.Match[str]) -> str:
        """Return a block with its table."""
        start, name, argument, end = block.groups()
        if name in PENDING:
            return block[0]
        return f"{start}\n{TABLES[name](*([argument] if argument else []))}\n\n{end}"

    return BLOCK.sub(made, page)


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    check = parser.parse_args().check
    folders = (ROOT, ROOT / "docs", ROOT / "optim", ROOT / "recipes")
    pages = [page for folder in folders for page in folder.glob("*.md" if folder == ROOT else "**/*.md")]
    stale = [page for page in pages if renewed(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'out of date; run python scripts/docs_tables.py' if check else 'written'}")
        if not check:
            page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
