"""Print what optimizers of installed packages pass of `optim.testing`, as tables in Markdown.

    python scripts/optimizer_contracts.py                        # torch's, ours, and the peers that are installed
    python scripts/optimizer_contracts.py mypkg.optim            # all optimizers of a module
    python scripts/optimizer_contracts.py mypkg:Mine --verbose   # one, and what happened in each check

An optimizer is built with its defaults, and lr=1e-3 if it has none. Each is tried in a process of its own, without
torch.compile, which would take minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from optim.testing import CHECKS, check_optimizer

PACKAGES = ("torch.optim", "optim", "heavyball", "pytorch_optimizer", "schedulefree", "dion", "emerging_optimizers")
LIMIT_S = 300  # for all checks of an optimizer
NOT_BUILT = "needs more than parameters"
Results = dict[str, tuple[str, str]]


def uncompiled(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Return a function as it is, in torch.compile's place; TORCH_COMPILE_DISABLE refuses ``fullgraph=True``."""
    return function or (lambda decorated: decorated)


vars(torch)["compile"] = uncompiled  # before packages are imported that decorate with it


def optimizers(place: str) -> Iterator[tuple[str, type[Optimizer]]]:
    """Yield the optimizers of ``module``, or of ``module:Class,Class``, by name."""
    module, _, wanted = place.partition(":")
    for name, cls in vars(importlib.import_module(module)).items():
        if (
            inspect.isclass(cls)
            and issubclass(cls, Optimizer)
            and cls is not Optimizer
            and (not wanted or name in wanted.split(","))
        ):
            yield name, cls


def maker(cls: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Return what builds an optimizer, with a learning rate only if it has no default."""
    try:
        cls([nn.Parameter(torch.ones(4, 3))])
    except TypeError:
        cls([nn.Parameter(torch.ones(4, 3))], lr=1e-3)
        return partial(cls, lr=1e-3)
    return cls


def checked(cls: type[Optimizer]) -> Results:
    """Return what came of each check, in a process of its own: an optimizer may hang, crash or change settings."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        process = multiprocessing.get_context("fork").Process(target=_check, args=(cls, file))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
        if not file.exists():
            return dict.fromkeys(CHECKS, ("failed", f"no result after {LIMIT_S} s, exit code {process.exitcode}"))
        return {name: (status, said) for name, (status, said) in json.loads(file.read_text()).items()}


def _check(cls: type[Optimizer], file: Path) -> None:
    torch.set_num_threads(1)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        try:
            make = maker(cls)
        except Exception as error:
            results = {NOT_BUILT: ("failed", shorten(str(error), 240))}
        else:
            results = check_optimizer(make).results
    file.write_text(json.dumps(results))


def table(found: dict[str, Results]) -> str:
    """Return a row for optimizers that pass, refuse and fail the same checks; those that pass most come first."""
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, results in found.items():
        if NOT_BUILT in results:
            continue
        names = {
            status: [check for check in results if results[check][0] == status] for status in ("refused", "failed")
        }
        counted = [check for check, (status, _) in results.items() if status != "skipped"]
        passes = f"{len(counted) - len(names['failed'])} of {len(counted)}"
        rows[passes, ", ".join(names["refused"]) or "–", ", ".join(names["failed"]) or "–"].append(name)
    ordered = sorted(rows.items(), key=lambda row: row[0][2].count(",") + (row[0][2] != "–"))
    lines = [f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |" for cells, names in ordered]
    not_built = ", ".join(f"`{name}`" for name, results in found.items() if NOT_BUILT in results)
    ending = [f"\nNot tried, since more than parameters is needed: {not_built}."] if not_built else []
    head = ["| optimizers | passed | by saying no | failed |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines, *ending])


def version(module: str) -> str:
    """Return a package's name and version."""
    package = re.split(r"[.:]", module)[0]
    names = importlib.metadata.packages_distributions().get(package)
    return f"{package} {importlib.metadata.version(names[0])}" if names else package


def main() -> None:
    """Check optimizers, and print a table per package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", default=[*PACKAGES], metavar="MODULE[:CLASS,CLASS]")
    parser.add_argument("--verbose", action="store_true", help="also print what happened in each check")
    options = parser.parse_args()
    for place in options.places:
        try:
            classes = dict(optimizers(place))
        except ModuleNotFoundError as error:
            print(f"\n### {place}\n\nnot installed: {error}")
            continue
        found: dict[str, Results] = {}
        for name, cls in classes.items():
            found[name] = checked(cls)
            if options.verbose:
                lines = [f"    {check:18} {status:8} {said}" for check, (status, said) in found[name].items() if said]
                print("\n".join([f"{place.partition(':')[0]}.{name}", *lines]), flush=True)
        print(f"\n### {version(place)}\n\n{table(found)}", flush=True)


if __name__ == "__main__":
    main()
