"""Measure how much a reader has to read: the sizes of the packages, and the way from the command line to an update.

    python docs/studies/structure.py [--tree FOLDER] [--parts static,trace,cost] [--data FOLDER] [--verbose]

``static`` (seconds) reads the code:

- Lines of code have no blank lines, comments and docstrings. The middle line lives in a file of N lines: half of all
  lines live in files that are not longer. Links, such as asr/recipes, are not counted twice.
- The options are followed from ``run`` in asr/commands/train.py (or from ``main``, if there is no ``run``), without
  running anything: a function is *entered* if an argument that it gets holds the options, a section, or a value read
  from them, or if it is a method of an object with a field ``config`` or ``options``. Names assigned from such values
  are followed too; results of functions only if they are annotated as mappings or as classes with such a field. What a
  config builds (encoders, callbacks) is not entered. The options *come back* wherever a call enters a function that
  another call has entered before.
- A place reads an option by string if it subscripts a name (or attribute) ``config``, ``options`` or ``saved`` with
  a string, or asks it by ``.get("key")``, ``at``, ``get_nested`` or ``select``; ``config["a"]["b"]`` is one place.
  A function takes a raw config if a parameter is annotated as DictConfig, or is called ``config`` and annotated as a
  mapping. An edit in place assigns to, deletes from or updates ``config``, or a section of ``options``. What judges
  results (werdict, and the commands that call it) is left out of all three.

``trace`` (two minutes) runs asr-train in a process of its own with ``sys.setprofile``: one update of the digits recipe
on prepared data, then a second one, resumed. Functions are different code objects by file and name that are called
after the command's start, in the main thread; bodies of modules and classes, lambdas and comprehensions are left out.
The first optimizer step ends when Lightning's ``LightningOptimizer.step`` returns; its closure includes the first
forward and backward pass. An AdamW is constructed when ``AdamW.__init__`` is called by something else.

``cost`` (two minutes) is the median of three runs: CPU seconds, of all processes that the command has started, beside
those of importing torch, lightning and lhotse, with one torch thread.

Prepared data are made below a temporary folder, or in ``--data``, where they stay for the next time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import FrameType

RUN_PACKAGES = ("asr", "optim", "werdict", "hydra_plugins", "recipes")
PACKAGES = {
    "asr": "≤ 17,800; ≤ 150",
    "werdict": "≤ 4,800; ≤ 30",
    "optim": "≤ 60 files",
    "recipes": "",
    "hydra_plugins": "",
    "scripts": "≤ 4,200 lines",
    "tests": "≤ 25,000 lines",
}
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
JUDGES = ("werdict/", "asr/commands/compare.py", "asr/commands/benchmark.py")
OPTIONS = {"config", "options", "composed"}
READ = OPTIONS | {"saved"}
RAW = {"Mapping", "MutableMapping", "dict", "DictConfig"}
GETTERS = {"at", "get_nested", "select"}
PLAIN_COPY = {"dict", "cast", "plain", "to_container", "create", "deepcopy", "copy", "get", "items", "values", *GETTERS}
EDITS = {"update", "pop", "popitem", "setdefault", "clear", "force_add"}
SMALL_CORPUS = ("data.prepare.num_train=100", "data.prepare.num_dev=4", "data.prepare.num_test=4")
ONE_UPDATE = ("recipe=digits/transformer_ctc", *SMALL_CORPUS, "trainer.max_steps=1", "decode_test=false")
IMPORTS = "import torch, lightning.pytorch, lhotse"
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from asr.commands.__main__ import start; start('train')"

Key = tuple[str, str]  # module, qualified name
Row = tuple[str, str, str]  # what is measured, what it is now, what is wanted
Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(tree: Path, package: str) -> list[Path]:
    """Return the files of a package, without those that a link brings in from elsewhere."""
    folder = (tree / package).resolve()
    return [path for path in sorted(folder.rglob("*.py")) if path.resolve().is_relative_to(folder)]


def code_lines(text: str) -> int:
    """Return how many lines hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def import_lines(module: ast.Module) -> int:
    """Return how many lines import something, at any depth."""
    nodes = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def middle_file(sizes: list[int]) -> int:
    """Return the length of the file that holds the middle line of code."""
    seen = 0
    for size in sorted(sizes):
        seen += size
        if 2 * seen >= sum(sizes):
            return size
    return 0


def is_options(node: ast.expr, names: set[str] = READ) -> bool:
    """Return whether an expression is a config by its name, or a part of one."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute) and node.attr in names:
            return not ast.unparse(node).startswith("torch.")
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Attribute) and node.func.attr == "get"):
                return False
            node = node.func
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def is_read(node: ast.AST) -> bool:
    """Return whether a node reads an option by string."""
    if isinstance(node, ast.Subscript):
        is_key = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return is_key and isinstance(node.ctx, ast.Load) and is_options(node.value)
    if not isinstance(node, ast.Call) or not node.args:
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return isinstance(node.args[0], ast.Constant) and is_options(node.func.value)
    return name_of(node.func) in GETTERS and is_options(node.args[0])


def is_edit(node: ast.AST) -> bool:
    """Return whether a node changes a config, or a section of options, in place."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EDITS:
        edited = [node.args[0] if ast.unparse(node.func) == "OmegaConf.update" else node.func.value]
    else:
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        edited = [target.value for target in targets if isinstance(target, ast.Subscript | ast.Attribute)]
    return any(is_options(item, {"config"} if isinstance(item, ast.Name) else OPTIONS) for item in edited)


def takes_raw_config(node: ast.AST) -> bool:
    """Return whether a function takes a config as a mapping."""
    return isinstance(node, Function) and any(
        (RAW if item.arg == "config" else {"DictConfig"}) & names_in(item.annotation) for item in parameters(node)
    )


def parameters(function: Function) -> list[ast.arg]:
    """Return the parameters of a function that have names."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def name_of(node: ast.AST) -> str:
    """Return the last name of an expression, as f of ``a.b.f``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(annotation: ast.AST | None) -> set[str]:
    """Return all names in an annotation, which may be a string."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval")
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()


def places(modules: Mapping[str, ast.Module], found: Callable[[ast.AST], bool]) -> list[str]:
    """Return file and line of the outermost nodes that are found."""

    def outermost(node: ast.AST) -> Iterator[ast.AST]:
        if found(node):
            yield node
            if not isinstance(node, Function):
                return
        for child in ast.iter_child_nodes(node):
            yield from outermost(child)

    return [f"{name}:{node.lineno}" for name, module in modules.items() for node in outermost(module)]  # type: ignore[attr-defined]


@dataclass
class Follower:
    """Follows options from function to function.

    Attributes:
        modules: by dotted name.
        entered: the parameters that hold options, of each function.
        sites: calls that hand on options.
    """

    modules: Mapping[str, ast.Module]
    entered: dict[Key, set[str]] = field(default_factory=dict)
    sites: set[tuple[Key, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.definitions: dict[Key, ast.ClassDef | Function] = {}
        self.imported: dict[Key, Key] = {}
        for name, module in self.modules.items():
            for node in ast.walk(module):
                if isinstance(node, ast.ImportFrom) and node.module:
                    self.imported |= {(name, a.asname or a.name): (node.module, a.name) for a in node.names}
            for node in module.body:
                if isinstance(node, ast.ClassDef | Function):
                    self.definitions[name, node.name] = node
                if isinstance(node, ast.ClassDef):
                    methods = [item for item in node.body if isinstance(item, Function)]
                    self.definitions |= {(name, f"{node.name}.{item.name}"): item for item in methods}

    def find(self, module: str, name: str) -> Key | None:
        """Return the definition that a name in a module stands for, through re-exports."""
        key, seen = (module, name), set()
        while key in self.imported and key not in seen:
            seen.add(key)
            key = self.imported[key]
        return key if key in self.definitions else None

    def class_in(self, module: str, annotation: ast.AST | None) -> Key | None:
        """Return the class of ours in an annotation."""
        keys = [self.find(module, name) for name in sorted(names_in(annotation))]
        return next((key for key in keys if key and isinstance(self.definitions[key], ast.ClassDef)), None)

    def holds_options(self, key: Key | None) -> bool:
        """Return whether a class has a field with the options."""
        nodes = ast.walk(self.definitions[key]) if key else ()
        targets = [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
        return any(name_of(target) in OPTIONS for target in targets)

    def follow(self, key: Key, names: set[str]) -> None:
        """Enter a function whose parameters of these names hold options."""
        if key in self.entered and names <= self.entered[key]:
            return
        self.entered[key] = self.entered.get(key, set()) | names
        Body(self, key).follow_calls()


class Body:
    """A function in which names hold options."""

    def __init__(self, follower: Follower, key: Key) -> None:
        node = follower.definitions[key]
        assert isinstance(node, Function)
        self.follower, self.key, self.node, self.module = follower, key, node, key[0]
        self.names = set(follower.entered[key])
        self.types = {item.arg: follower.class_in(self.module, item.annotation) for item in parameters(node)}
        if "." in key[1]:
            self.types["self"] = self.types["cls"] = self.module, key[1].split(".")[0]
        for _ in range(3):  # names may be assigned from names that are assigned below them
            for item in ast.walk(node):
                self._assign(item)

    def _assign(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.AST, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.For | ast.comprehension):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.Call) and any(map(self.holds, node.args)):  # lambda config: …
            self.names |= {item.arg for lam in node.args if isinstance(lam, ast.Lambda) for item in lam.args.args}
        for target, value in pairs:
            if value is not None and self.holds(value):
                self.names |= {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}
            if isinstance(value, ast.Call):
                self.types.setdefault(name_of(target), self.type_of(value))

    def type_of(self, node: ast.expr) -> Key | None:
        """Return the class of ours that an expression is an object of."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        called = self.resolve(node.func) if isinstance(node, ast.Call) else None
        definition = self.follower.definitions[called] if called else None
        if isinstance(definition, Function) and called:
            return self.follower.class_in(called[0], definition.returns)
        return called

    def resolve(self, function: ast.expr) -> Key | None:
        """Return the definition of what is called."""
        find = self.follower.find
        if isinstance(function, ast.Name):
            return find(self.module, function.id)
        if not isinstance(function, ast.Attribute):
            return None
        owner = self.type_of(function.value) or find(self.module, name_of(function.value))
        if owner is None:  # a function of an imported module
            return find(".".join(self.follower.imported.get((self.module, name_of(function.value)), ())), function.attr)
        key = owner[0], f"{owner[1]}.{function.attr}"
        return key if key in self.follower.definitions else None

    def holds(self, node: ast.expr) -> bool:
        """Return whether an expression holds options, or is read from them."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Attribute) and self.follower.holds_options(self.type_of(node.value)):
            return node.attr in OPTIONS and self.holds(node.value)
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.NamedExpr):
            return self.holds(node.value)
        if isinstance(node, ast.Call):
            arguments = [*node.args, *(word.value for word in node.keywords)]
            given = any(map(self.holds, arguments))
            if name_of(node.func) in PLAIN_COPY:
                return given or (isinstance(node.func, ast.Attribute) and self.holds(node.func.value))
            called = self.resolve(node.func) if given else None
            definition = self.follower.definitions[called] if called else None
            returns_raw = isinstance(definition, Function) and bool(RAW & names_in(definition.returns))
            return returns_raw or (given and self.follower.holds_options(self.type_of(node)))
        inner = [*getattr(node, "elts", ()), *getattr(node, "values", ())]
        if isinstance(node, ast.IfExp):
            inner = [node.body, node.orelse]
        return any(map(self.holds, inner))

    def follow_calls(self) -> None:
        """Enter all functions that get options, in the order of the text."""
        nodes = [node for node in ast.walk(self.node) if isinstance(node, ast.Call | ast.Attribute)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            called, names = self._property(node) if isinstance(node, ast.Attribute) else self._called(node)
            if called and names:
                self.follower.sites.add((self.key, node.lineno, node.col_offset))
                self.follower.follow(called, names)

    def _property(self, node: ast.Attribute) -> tuple[Key | None, set[str]]:
        is_held = self.holds(node.value) and self.type_of(node.value) is not None
        return (self.resolve(node), {"self"}) if is_held else (None, set())

    def _called(self, node: ast.Call) -> tuple[Key | None, set[str]]:
        """Return the function that is called, and which of its parameters get options."""
        function, arguments = node.func, node.args
        if name_of(function) == "partial" and arguments:
            function, *arguments = arguments
        called = self.resolve(function)
        if called and isinstance(self.follower.definitions[called], ast.ClassDef):
            called = called[0], f"{called[1]}.__init__"
        definition = self.follower.definitions.get(called) if called else None
        if not isinstance(definition, Function):
            return None, set()
        is_static = "staticmethod" in {name_of(item) for item in definition.decorator_list}
        names = [item.arg for item in parameters(definition)]
        names = names[1:] if called and "." in called[1] and not is_static else names
        words = [word.arg or "kwargs" for word in node.keywords if self.holds(word.value)]
        given = [names[i] if i < len(names) else "args" for i, value in enumerate(arguments) if self.holds(value)]
        return called, {*words, *given}


@dataclass
class Trace:
    """Counts what is called until the first optimizer step; a profile function of ``sys.setprofile``."""

    tree: str
    called: dict[tuple[str, str], None] = field(default_factory=dict)
    until: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    num_adamw: int = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call, or the end of the step."""
        code = frame.f_code
        name, file = code.co_qualname, code.co_filename
        if event == "return" and name == "LightningOptimizer.step":
            self.until.setdefault("step", list(self.called))
        if event != "call":
            return
        if name == "Trainer.fit" and "lightning" in file:
            self.until.setdefault("fit", list(self.called))
        if name == "AdamW.__init__" and not (frame.f_back and frame.f_back.f_code.co_qualname == name):
            self.num_adamw += 1
        is_function = code.co_flags & 2 and not name.endswith(">")  # CO_NEWLOCALS: no body of a class or module
        if is_function and file.startswith(self.tree) and file[len(self.tree) :].split("/")[0] in RUN_PACKAGES:
            self.called[file[len(self.tree) :], name] = None


def run_traced(tree: str, result: str, words: list[str]) -> None:
    """Run asr-train in this process, and write what was traced."""
    sys.path.insert(0, tree)
    from asr.commands.__main__ import start

    sys.argv = ["asr-train", *words]
    trace = Trace(f"{tree}/")
    sys.setprofile(trace)
    try:
        start("train")
    finally:
        sys.setprofile(None)
        Path(result).write_text(json.dumps({"until": trace.until, "num_adamw": trace.num_adamw}))


def static(tree: Path, verbose: bool) -> list[Row]:
    """Measure what can be read from the code."""
    texts = {name: {path: path.read_text() for path in python_files(tree, name)} for name in PACKAGES}
    sizes = {name: [code_lines(text) for text in files.values()] for name, files in texts.items()}
    modules = {
        str(path.relative_to(tree.resolve())): ast.parse(text)
        for name in RUN_PACKAGES
        for path, text in texts[name].items()
    }
    train = {name: module for name, module in modules.items() if name.startswith("asr/")}
    imports = 100 * sum(map(import_lines, train.values())) / (sum(sizes["asr"]) or 1)
    looked_at = {name: module for name, module in train.items() if not name.startswith(JUDGES)}
    found = [places(looked_at, kind) for kind in (is_read, takes_raw_config, is_edit)]
    found[0] = [place for place in found[0] if not place.startswith("asr/run/compose.py")]
    parts = {name: Path(name.removesuffix("__init__.py")).with_suffix("").parts for name in modules}
    follower = Follower({".".join(parts[name]): module for name, module in modules.items()})
    names = {node.name for node in modules["asr/commands/train.py"].body if isinstance(node, Function)}
    start = "run" if "run" in names else "main"
    follower.follow(("asr.commands.train", start), {"config", "composed"})
    followed = {module for module, _ in follower.entered}
    if verbose:
        print(*chain(*found), *map(".".join, follower.entered), sep="\n")
    size = {name: f"{sum(lines):,}; {len(lines)}" for name, lines in sizes.items()}
    return [
        (
            "options followed from commands/train.py: functions, modules, times they come back",
            f"{len(follower.entered)}, {len(followed)}, {len(follower.sites) - len(follower.entered) + 1}",
            "≤ 70, ≤ 20, ≤ 30",
        ),
        (
            "reads of options by string, outside compose.py; functions that take a raw config; edits in place",
            f"{len(found[0])}; {len(found[1])}; {len(found[2])}",
            "0; ≤ 3; 0",
        ),
        (
            "asr: imports among lines of code; the middle line lives in a file of",
            f"{imports:.1f} %; {middle_file(sizes['asr'])}",
            "≤ 9 %; ≥ 200",
        ),
        *((f"{name}: lines of code; files", size[name], wanted) for name, wanted in PACKAGES.items()),
    ]


def call(command: list[str]) -> float:
    """Run a command and return its CPU seconds, those of its children too.

    Raises:
        SystemExit: it has failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def trace(tree: Path, data: Path, runs: Path) -> list[Row]:
    """Trace a run, and its resumption."""
    results = []
    for words in (
        [*ONE_UPDATE, f"data.dir={data}", f"run_dir={runs}/traced"],
        [f"resume={runs}/traced", f"data.dir={data}", "trainer.max_steps=2", "allow_changes=true"],
    ):
        call([sys.executable, __file__, "--traced", str(tree), f"{runs}/trace.json", *words])
        results.append(json.loads((runs / "trace.json").read_text()))

    def counted(until: str) -> str:
        called = results[0]["until"][until]
        return f"{len(called)} in {len({file for file, _ in called})}"

    return [
        ("functions and files of ours until the first optimizer step", counted("step"), "≤ 300 in ≤ 60"),
        ("the same until trainer.fit", counted("fit"), "≤ 150 in ≤ 35"),
        (
            "constructions of AdamW in a run, and in a resumption",
            "; ".join(str(result["num_adamw"]) for result in results),
            "1; 1 (2 with a trial update)",
        ),
    ]


def cost(tree: Path, data: Path, runs: Path, repeats: int = 3) -> list[Row]:
    """Measure CPU seconds of a run with one update, and of what it imports."""
    seconds = []
    for number in range(repeats):
        words = [*ONE_UPDATE, f"data.dir={data}", f"run_dir={runs}/cost{number}"]
        seconds.append((call([sys.executable, "-c", START, str(tree), *words]), call([sys.executable, "-c", IMPORTS])))
    run, imports = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratio = statistics.median(run / imports for run, imports in seconds)
    what = "CPU seconds of asr-train with one update, beside importing torch, lightning and lhotse"
    return [(what, f"{run:.1f} s / {imports:.1f} s = {ratio:.2f} ×", "≤ 1.5 ×")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2], help="a checkout")
    parser.add_argument("--parts", default="static,trace,cost")
    parser.add_argument("--data", type=Path, help="folder of prepared data, which is filled if it is empty")
    parser.add_argument("--verbose", action="store_true", help="list the places and functions of the static part")
    options = parser.parse_args()
    tree, parts = options.tree.resolve(), options.parts.split(",")
    if unknown := {*parts} - {"static", "trace", "cost"}:
        parser.error(f"--parts: {', '.join(unknown)}; allowed: static, trace, cost")
    rows = static(tree, options.verbose) if "static" in parts else []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        data, runs = options.data or Path(folder) / "data", Path(folder)
        if parts != ["static"]:
            call([sys.executable, "-c", START, str(tree), *ONE_UPDATE, f"data.dir={data}", f"run_dir={runs}/first"])
        for name, measure in (("trace", trace), ("cost", cost)):
            rows += measure(tree, data.resolve(), runs) if name in parts else []
    print("| measured | now | wanted |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--traced"]:
        run_traced(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
