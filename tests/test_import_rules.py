"""Which room may know which: the rules of the architecture, read off the import statements."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("asr", "optim", "recipes", "scripts", "tests")

# room: module prefixes that nothing in it may import; the first matching room decides
FORBIDDEN = {
    "optim": ("asr", "recipes", "lightning", "hydra", "omegaconf", "lhotse", "wandb", "numpy"),
    "asr/models": ("optim", "lightning", "hydra", "omegaconf", "lhotse", "asr.data", "asr.training", "asr.cli"),
    "asr/features": ("optim", "lightning", "hydra", "omegaconf", "lhotse", "asr.data", "asr.training", "asr.cli"),
    "asr/decoding": ("optim", "lightning", "hydra", "omegaconf", "lhotse", "asr.data", "asr.training", "asr.cli"),
    "asr/text": ("optim", "lightning", "hydra", "omegaconf", "lhotse", "asr.data", "asr.training", "asr.cli"),
    "asr/evaluation": ("optim", "torch", "lightning", "hydra", "omegaconf", "lhotse", "asr.data", "asr.training"),
    "asr/data": ("optim", "lightning", "hydra", "omegaconf", "asr.models", "asr.training", "asr.cli"),
    "asr/training": ("optim", "hydra", "omegaconf", "lhotse", "asr.cli"),
    "asr/cli": ("optim", "lhotse"),
    "recipes": ("optim", "lightning", "hydra", "omegaconf", "asr.cli", "asr.training", "asr.models"),
}
NOBODY_IMPORTS = ("tests", "scripts")


def files_of(room: str) -> list[Path]:
    return sorted(file for file in (ROOT / room).rglob("*.py") if "recipes" not in file.relative_to(ROOT).parts[1:])


def imports_of(file: Path) -> list[str]:
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            found += [f"{base}{node.module or ''}.{alias.name}" for alias in node.names]
    return found


def belongs(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_knows_only_what_it_may(room):
    files = files_of(room)
    assert files
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports_of(file)
        if any(belongs(name, prefix) for prefix in FORBIDDEN[room])
    ]
    assert wrong == []


def test_optim_imports_torch_and_the_standard_library_only():
    allowed = {"torch", "optim", *sys.stdlib_module_names}
    wrong = {name for file in files_of("optim") for name in imports_of(file) if name.split(".")[0] not in allowed}
    assert wrong == set()


def test_nobody_imports_tests_scripts_or_another_recipe():
    wrong = []
    for room in ("asr", "optim", "recipes"):
        for file in files_of(room):
            here = file.relative_to(ROOT)
            for name in imports_of(file):
                other_recipe = name.startswith(("recipes.", "asr.recipes.")) and name.split("recipes.")[1].split(".")[
                    0
                ] not in (here.parts[1], "")
                if any(belongs(name, prefix) for prefix in NOBODY_IMPORTS) or (room != "tests" and other_recipe):
                    wrong.append(f"{here} imports {name}")
    assert wrong == []


def test_torch_optim_never_hides_ours():
    source = [file for room in OWN for file in files_of(room)]
    wrong = [
        str(file.relative_to(ROOT))
        for file in source
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "torch" and any(a.name == "optim" for a in node.names)
    ]
    assert wrong == []
