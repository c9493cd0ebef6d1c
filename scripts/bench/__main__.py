"""Measure one thing on this machine.

    python scripts/bench NAME [--device cuda] [--markdown] [--out DIR] …    a bench; NAME --help: its own options
    python scripts/bench NAME-WHAT …                                        a part of gpu_report.py, see its --help

CPU seconds of one thread where not said otherwise. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT / "scripts"), str(ROOT)]  # not this folder; and the arrays of the tests

import torch  # noqa: E402

from bench.measure import Row, Setting  # noqa: E402
from bench.output import PartFile, circumstances, key_of, positive, rows_table, table_text, text_of  # noqa: E402

NAMES = sorted(file.stem for file in Path(__file__).parent.glob("*.py") if "\ndef rows(" in file.read_text())
MARKS = {True: "ok", False: "NO", None: "  "}


def parsed(arguments: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Return the module of a bench and its options; leaves with a message where one cannot be."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench", description=__doc__, formatter_class=form, add_help=False)
    parser.add_argument("part", metavar="NAME[-WHAT]", help=", ".join(NAMES))
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        sys.exit(not arguments)
    name = arguments[0].partition("-")[0]
    if name not in NAMES:
        parser.error(f"no bench {name}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(f"bench {name}", description=module.__doc__, formatter_class=form)
    parser.add_argument("part", metavar="NAME[-WHAT]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=positive, help="of torch (default: 1 on a CPU)")
    repeats = getattr(module, "NUM_REPEATS", 5)
    parser.add_argument("--repeats", type=positive, default=repeats, help="of what is timed (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="show only that everything works")
    parser.add_argument("--data", type=Path, help="folder with archives of corpora")
    parser.add_argument("--out", type=Path, help="folder for NAME-WHAT.json, which says what is missed instead of 1")
    parser.add_argument("--markdown", action="store_true", help="print tables as pages have them")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    return module, options


def show(rows: Iterable[Row], markdown: bool) -> list[Row]:
    """Print rows as they come, and those of a table when it is complete; return them."""
    shown = list[Row]()
    for columns, group in itertools.groupby(rows, lambda row: tuple(row.value) if isinstance(row.value, dict) else ()):
        of_table = list[Row]()
        for row in group:
            of_table.append(row)
            if columns:
                print(row.check, file=sys.stderr, flush=True)
            else:
                goal = f" (goal: {row.goal})" if row.goal else ""
                print(f"{MARKS[row.met]} {row.check}: {text_of(row.value)}{goal}", flush=True)
        if columns:
            print(table_text(rows_table(of_table, columns, markdown), markdown), flush=True)
        shown += of_table
    return shown


def main(arguments: Sequence[str]) -> int:
    """Run a bench; return 1 if a goal is missed, and no file says so."""
    module, options = parsed(arguments)
    if options.threads or options.device == "cpu":
        torch.set_num_threads(options.threads or 1)
    with tempfile.TemporaryDirectory(prefix=f"bench-{options.part}-", ignore_cleanup_errors=True) as work:
        setting = Setting(options.device, options.small, Path(work), options.data, options)
        about, rows = circumstances(options.device), module.rows(setting, options.part.partition("-")[2])
        print(text_of({name: str(value) for name, value in about.items() if value}), flush=True)
        if options.out:
            rows = PartFile(options.out, options.part).write(key_of(about, options.small), about, rows)
        shown = show(rows, options.markdown)
    missed = [row.check for row in shown if row.met is False]
    print(f"{len(shown)} rows, {'goals missed: ' + '; '.join(missed) if missed else 'every goal was met'}")
    return int(bool(missed) and not options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
