"""Which room may know which: the rules of the architecture, read off the import statements."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("asr", "optim", "werdict", "recipes", "scripts", "tests")

# room: module prefixes that nothing in it may import; the first matching room decides
HYDRA_SIDE = ("asr.run", "asr.commands", "asr.sweeps")
ANYBODYS = ("asr.run.options", "asr.run.folder")  # of it: what a run is given, and what it leaves
RUN_SIDE = ("asr.training", "asr.tracking", *HYDRA_SIDE)
MODEL_SIDE = ("asr.data", "asr.inference", *RUN_SIDE)
FORBIDDEN = {
    "asr/models": MODEL_SIDE,
    "asr/features": MODEL_SIDE,
    "asr/decoding": MODEL_SIDE,
    "asr/text": MODEL_SIDE,
    "asr/language_models.py": ("torch", "asr.models", "asr.decoding", *MODEL_SIDE),
    "asr/export": MODEL_SIDE,
    "werdict": ("torch", "lightning", "hydra", "omegaconf", "asr", "optim", "recipes"),
    "asr/runs": ("torch", "lightning", "hydra", "omegaconf", "asr.models", "asr.data", "asr.inference"),
    "asr/data": ("asr.models", "asr.inference", *RUN_SIDE),
    "asr/inference": RUN_SIDE,
    "asr/training": ("asr.tracking", *HYDRA_SIDE),
    "asr/tracking": HYDRA_SIDE,
    "asr/run": ("asr.commands", "asr.sweeps"),
    "asr/sweeps": ("asr.commands",),
    "recipes": ("asr.models", "asr.inference", *RUN_SIDE),
}
# module prefix: the only rooms of asr and recipes that may import it
ONLY_IN = {
    "optim": (),
    "lightning": ("asr/training", "asr/tracking", "asr/run", "asr/commands"),
    "wandb": ("asr/tracking",),
    "hydra": ("asr/run", "asr/commands", "asr/sweeps"),
    "omegaconf": ("asr/run", "asr/commands", "asr/sweeps"),
    "lhotse": ("asr/data", "recipes"),
    "onnx": ("asr/export",),
    "onnxruntime": ("asr/export",),
    "safetensors": ("asr/export", "asr/models"),
    "transformers": ("asr/export", "asr/models"),
    "peft": ("asr/models",),
    "huggingface_hub": ("asr/models",),
}
NOBODY_IMPORTS = ("tests", "scripts")


def files_of(room: str) -> list[Path]:
    if room.endswith(".py"):
        return [ROOT / room]
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
        and not any(belongs(name, prefix) for prefix in ANYBODYS)
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_in_its_rooms(library):
    wrong = [
        f"{here} imports {name}"
        for file in (*files_of("asr"), *files_of("recipes"))
        if not (here := file.relative_to(ROOT)).as_posix().startswith(tuple(f"{room}/" for room in ONLY_IN[library]))
        for name in imports_of(file)
        if belongs(name, library)
    ]
    assert wrong == []


def test_evaluating_and_transcribing_need_nothing_of_training():
    files = [ROOT / "asr" / "commands" / f"{command}.py" for command in ("evaluate", "transcribe")]
    assert [name for file in files for name in imports_of(file) if belongs(name, "asr.training")] == []


def test_comparing_loads_neither_torch_nor_lightning_nor_hydra():
    modules = [
        file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for file in [*files_of("werdict"), *files_of("asr/runs")]
    ]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {modules}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"torch", "lightning", "hydra", "omegaconf"}.isdisjoint(loaded.split())


def test_optim_imports_torch_and_the_standard_library_only():
    allowed = {"torch", "optim", *sys.stdlib_module_names}
    wrong = {name for file in files_of("optim") for name in imports_of(file) if name.split(".")[0] not in allowed}
    assert wrong == set()


def test_nobody_imports_tests_scripts_or_another_recipe():
    wrong = []
    for room in ("asr", "optim", "werdict", "recipes"):
        for file in files_of(room):
            here = file.relative_to(ROOT)
            for name in imports_of(file):
                recipe = (
                    name.split("recipes.")[1].split(".")[0] if name.startswith(("recipes.", "asr.recipes.")) else ""
                )
                if any(belongs(name, prefix) for prefix in NOBODY_IMPORTS) or recipe not in (here.parts[1], ""):
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


def test_no_files_import_each_other_in_a_circle():
    """Imports in functions and under TYPE_CHECKING count; those by a name that is computed do not."""
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for room in ("asr", "optim", "werdict")
        for file in files_of(room)
        if file != ROOT / "asr" / "__init__.py"  # names from all rooms, imported when they are used
    }
    imports = {
        # what is imported from a package may be a module or a name in it
        module: {name if name in files else name.rpartition(".")[0] for name in imports_of(file)}
        & files.keys() - {module}
        for module, file in files.items()
    }
    TopologicalSorter(imports).prepare()  # raises an error that names a circle
