"""Changes a file in one place at a time, runs its tests, and prints the changes that no test noticed.

Run:    python scripts/mutate.py asr/evaluation/wer.py
Expect: one line per survivor, then the share of changes for which a test failed; see CONTRIBUTING.md.

mutmut 3 changes no decorated function (every property, `Chain.step`); cosmic-ray imports torch anew for every change.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from importlib.machinery import SourceFileLoader
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TESTS = {
    "asr/data/loading/sampling.py": "data/loading/test_sampling",
    "asr/decoding/ctc_beam.py": "decoding/test_ctc_beam",
    "asr/decoding/ctc_prefixes.py": "decoding/test_ctc_beam",
    "asr/decoding/scorers/hotwords.py": "decoding/test_hotwords decoding/test_fusion",
    "asr/decoding/scorers/ngram.py": "decoding/test_ngram",
    "asr/evaluation/wer.py": "evaluation/test_wer",
    "asr/language_models/kneser_ney.py": "language_models/test_kneser_ney",
    "asr/training/module.py": "training/test_module training/test_validation training/test_nonfinite_guard "
    "training/test_unreadable training/test_out_of_memory",
    "optim/engine/chain.py": "optim/test_chain optim/test_options optim/test_health optim/test_contracts "
    "optim/test_skip_nonfinite optim/test_checkpoints optim/test_schedule_free optim/test_storage "
    "optim/test_capturable",
    "optim/engine/capturable.py": "optim/test_capturable",
    "optim/transforms/function.py": "optim/test_chainable optim/test_capturable",
    "optim/transforms/combining.py": "optim/test_chainable",
    "optim/parameter_groups.py": "optim/test_parameter_groups",
    **{f"optim/schedules/{path.name}": "optim/test_schedules" for path in ROOT.glob("optim/schedules/[a-z]*.py")},
}
# tests that start other processes: those would import the unchanged file
BLIND = "_rank_", "all_ranks", "two_processes", "new_process"
PYTEST = ["-x", "-q", "-m", "", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", f"not ({' or '.join(BLIND)})"]
SWAPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
DELETED = ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break


class Mutant(NamedTuple):
    """A node of a syntax tree, what replaces it, and where: a field of a node, or an index of a list."""

    old: Any
    new: ast.AST
    holder: Any
    key: Any

    def __str__(self) -> str:
        old, new = (ast.unparse(ast.fix_missing_locations(node)).splitlines()[0] for node in (self.old, self.new))
        return f"{self.old.lineno}: {old}  →  {new}"


def mutants(node: ast.AST) -> Iterator[Mutant]:
    """Yield every change of a tree: operators, conditions, constants, results, and deleted statements."""
    for name, value in ast.iter_fields(node):
        # annotations are never evaluated, and no test should repeat a message word by word
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for key, child in enumerate(value) if isinstance(value, list) else [(name, value)]:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not docstring:
                holder = value if isinstance(value, list) else node
                yield from (Mutant(child, new, holder, key) for new in replacements(child))
                yield from mutants(child)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the place of a node."""
    match node:
        case ast.Compare(left, [op, *ops], comparators):
            yield ast.Compare(left, [SWAPS[type(op)](), *ops], comparators)
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.AugAssign(target, op, right) if type(op) in SWAPS:
            yield ast.AugAssign(target, SWAPS[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPS[type(op)](), values)
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.If(test, body, orelse) | ast.IfExp(test, body, orelse):
            kind: Any = type(node)
            yield kind(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(str() as value):
            yield ast.Constant(f"x{value}x")
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
    if isinstance(node, DELETED):
        yield ast.Pass()


def survives(path: Path, tests: list[str], tree: ast.Module, mutant: Mutant | None, limit_s: int) -> bool:
    """Run the tests in a fork that has imported torch already; with None for a mutant nothing is changed."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    signal.alarm(limit_s)  # ends a loop without an end
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    if mutant is not None:  # the parent's tree stays as it was
        set_item = list.__setitem__ if isinstance(mutant.holder, list) else setattr
        set_item(mutant.holder, mutant.key, mutant.new)
    code, get_code = compile(ast.fix_missing_locations(tree), str(path), "exec"), SourceFileLoader.get_code
    mutated = lambda self, name: code if Path(self.path) == path else get_code(self, name)  # noqa: E731
    SourceFileLoader.get_code = mutated  # type: ignore[method-assign]
    os._exit(pytest.main([*PYTEST, *tests]))


def main() -> None:
    """Print the survivors of one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", choices=TESTS, metavar="file", help=", ".join(TESTS))
    parser.add_argument("--lines", nargs="+", type=int, help="change these lines only")
    given = parser.parse_args()
    os.chdir(ROOT)
    path, tests = ROOT / given.file, [f"tests/{test}.py" for test in TESTS[given.file].split()]
    with redirect_stdout(StringIO()):
        pytest.main(["--collect-only", *PYTEST, *tests])
    if "torch" in sys.modules:
        import_module("torch._dynamo")  # the first step of every optimizer would import it, in each fork
    for name, module in [*sys.modules.items()]:  # our own modules are imported anew, with the change
        if name != "__main__" and Path(getattr(module, "__file__", None) or "/").is_relative_to(ROOT):
            del sys.modules[name]
    tree, start = ast.parse(path.read_text()), time.monotonic()
    if not survives(path, tests, tree, None, limit_s=600):
        sys.exit(f"the tests fail without any change; run: pytest {' '.join(tests)}")
    limit_s = round(10 + 5 * (time.monotonic() - start))
    found = [mutant for mutant in mutants(tree) if given.lines is None or mutant.old.lineno in given.lines]
    survivors = 0
    for mutant in found:
        if survives(path, tests, tree, mutant, limit_s):
            survivors += 1
            print(f"{given.file}:{mutant}", flush=True)
    print(f"{given.file}: tests fail for {len(found) - survivors} of {len(found)} changes")


if __name__ == "__main__":
    main()
