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
from typing import Any

import yaml
from pydantic import TypeAdapter

import optim
from asr.run.command_line import CONFIGS, LISTED, WORDS, choices, config_folder, describe, options, shown_options
from asr.run.options import COMMANDS, options_of
from optim.schedules import ClosedFormSchedule
from optim.testing import CHECKS

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- generated: ([\w-]+)(?: ([^\n]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TYPES = {"string": "text", "boolean": "`true`, `false`", "object": "options", "array": "list"}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def plain(text: str) -> str:
    """Return a text in which Markdown finds nothing to format."""
    return re.sub(r"([*|])", r"\\\1", text).replace("<", "&lt;")


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


def choices_of_groups() -> str:
    """Return the choices of each group with the first lines of their files."""
    parts = []
    for group in LISTED:
        rows = [(f"`{choice}`", plain(text)) for choice, text in choices(CONFIGS, group).items()]
        parts += [f"## {group}", table((f"`{group}=`", ""), rows)]
    return "\n\n".join(parts)


def options_of_commands() -> str:
    """Return the options of each command, by the schema and the comments in its yaml file."""
    parts = []
    for command, table_of_options in COMMANDS.items():
        kinds = {key: kind for key, kind, _ in options_of(table_of_options)}
        folder = config_folder(command)
        name, _, purpose = describe(folder / f"{command}.yaml").partition(": ")
        parts += [f"## {name}", f"{purpose[0].upper()}{purpose[1:].rstrip('.')}."]
        if command in WORDS:
            parts[-1] += f" Words without `=` are {', then '.join(f'`{key}`' for key in WORDS[command])}."
        shown = shown_options(command, folder)
        if command == "train":
            shown += options(folder / "trainer" / "cpu.yaml", "trainer.")
        rows = []
        for option, comment in shown:
            key, _, default = option.partition("=")
            given = yaml.safe_load(default)
            kind = kinds.get(key, type(given) if isinstance(given, str | int | float) and default != "???" else Any)
            if comment:
                value = "required" if default == "???" else f"`{default}`"
                rows.append((f"`{key}`", values_of(TypeAdapter(kind).json_schema()), value, plain(comment)))
        parts.append(table(("option", "takes", "default", "meaning"), rows))
    return "\n\n".join(parts)


def values_of(schema: Mapping[str, Any]) -> str:
    """Return the values that a JSON schema allows, in words; null is left out."""
    if "anyOf" in schema:
        parts = [values_of(part) for part in schema["anyOf"] if part.get("type") != "null"]
        # what names a thing may look like a number
        return ", ".join(dict.fromkeys(part for part in parts if part != "integer" or "text" not in parts))
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    bounds = [f"{sign} {schema[key]:g}" for key, sign in SIGNS.items() if abs(schema.get(key, 2**63)) < 2**63]
    name = "object" if "$ref" in schema else schema.get("type", "")
    kind = TYPES.get(name, name)
    items = f"of {values_of(schema['items'])}" if {"type", "anyOf"} & {*schema.get("items", ())} else ""
    return " ".join(filter(None, (kind, items, " and ".join(bounds))))


def results(place: str) -> str:
    """Return the first table below a heading of a page, without links to logs; ``place`` is PAGE: HEADING."""
    page, heading = place.split(": ", 1)
    section = (ROOT / page).read_text(encoding="utf-8").split(f"# {heading}\n")[1]
    rows = section[section.index("\n|") + 1 :].split("\n\n")[0]
    return re.sub(r" (\[log\]\([^)]*\)|log) \|$", "", rows.strip(), flags=re.MULTILINE)


def contracts() -> str:
    """Return one row per check of `optim.testing`, from its docstring."""
    rows = []
    for name, check in CHECKS.items():
        what, *why = (" ".join(part.split()).replace("``", "`") for part in (inspect.getdoc(check) or "").split("\n\n"))
        link = r"[\g<0>](https://github.com/\1/issues/\2)"
        rows.append((f"`{name}`", what, re.sub(r"([\w-]+/[\w-]+)#(\d+)", link, "".join(why))))
    return table(("check", "what it asks", "where it mattered"), rows)


TABLES: Mapping[str, Callable[..., str]] = {
    "contracts": contracts,
    "optimizers": optimizers,
    "schedules": schedules,
    "choices": choices_of_groups,
    "commands": options_of_commands,
    "results": results,
}


def renewed(page: str) -> str:
    """Return a page with its tables made anew; a function gets the argument that its block has, if any."""

    def made(block: re.Match[str]) -> str:
        """Return a block with its table."""
        start, name, argument, end = block.groups()
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
