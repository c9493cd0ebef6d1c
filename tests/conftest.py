"""What tests of every package share."""

import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import asr.recipes
from tests.commands.conftest import TINY, Trained, Workplace, session_programs
from tests.programs import Programs
from tests.small_runs import SmallRun, make_small_run

os.environ["WERDICT_CACHE"] = "data"  # below the folder of each test, not in the user's own cache

if "PYTEST_XDIST_WORKER" in os.environ:
    # several workers share the cores; torch reads this when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # shells start background jobs so; commands that are tested would ignore a Ctrl-C too, as they should
    signal.signal(signal.SIGINT, signal.default_int_handler)

# paths below tests/ of what pytest -m "" alone runs: hostile files, faults, schedulers, sweeps, simulations, and all
# but a few of the commands, each of which trains or decodes a whole run
SLOW = (
    *("commands/", "demo/", "docs/test_blocks", "export/", "faults/", "security/", "slurm/"),
    *("werdict/test_check_statistics.py", "models/zipformer/test_convert.py"),
    *("recipes/test_spoken.py", "benchmark/test_magnitudes.py"),
    *("recipes/test_an4_commands.py", "recipes/test_custom_choices.py", "recipes/test_large_corpora.py"),
    *("recipes/test_miniatures.py", "test_benches.py"),
    *("training/test_compiled_encoder.py", "training/test_heads.py"),
    *("test_gpu_report.py", "test_wheel.py"),
)
QUICK = tuple(
    f"commands/test_{name}.py" for name in ("configs", "errors", "matrix_rules", "quoting", "sweep_jobs", "train")
)
# rows of tables of which others are enough while one changes something else
SLOW_ROWS = re.compile(
    r"commands/test_configs.py::test_every_recipe_composes_with_every_optimizer"
    r"|optim/test_golden.py::\w+\[(alone|stacked|as on a GPU|.*-long-)"
    r"|optim/test_oracles.py::.*-(common|single)-.*(stacked|as on a GPU)"
    r"|optim/test_group_step.py::test_it_continues.*torch\.float64"
    r"|optim/test_.*torch\.float16"
    r"|optim/test_contracts.py::.*-(ddp|fsdp2)\]"
)

SET_BY_COMMANDS = ("PYTHONSAFEPATH", "HYDRA_FULL_ERROR")  # for their children
DATA = Path(os.environ.get("WERDICT_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if (name.startswith(SLOW) and not name.startswith(QUICK)) or SLOW_ROWS.match(name):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _as_it_was(request) -> Iterator[None]:
    """Undo what a command changes in its process, which is the next test's too; end what a test has left at work."""
    threads, folder, words = _torch_threads(), os.getcwd(), [*sys.argv]
    variables = {name: os.environ.get(name) for name in SET_BY_COMMANDS}
    recipes = [*asr.recipes.__path__]
    yield
    if "programs" in request.fixturenames:
        request.getfixturevalue("programs").end_started()
    os.chdir(folder)
    sys.argv[:] = words
    asr.recipes.__path__[:] = recipes
    for name, value in variables.items():
        os.environ.pop(name, None)
        os.environ.update({name: value} if value is not None else {})
    if torch := sys.modules.get("torch"):
        torch.use_deterministic_algorithms(False)  # trainer.deterministic=true sets it in the process
        if threads and threads != _torch_threads():
            torch.set_num_threads(threads)


def _torch_threads() -> int:
    # tests that never import torch must not wait for it
    return sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0


@pytest.fixture
def script(monkeypatch) -> Callable[[str], ModuleType]:
    """Return what imports a file of scripts/, or of the studies in benchmark/problems/, by its name."""
    for folder in ("benchmark/problems", "scripts"):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / folder))
    return importlib.import_module


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real recordings, or skip: they are never part of the repository."""
    if not DATA.is_dir():
        pytest.skip(f"no real recordings at {DATA}; WERDICT_DATA names their folder")
    return DATA


@pytest.fixture(scope="session")
def golden() -> Path:
    """Return the folder of what authors' own code computed, or skip."""
    if not (folder := DATA.with_name("golden")).is_dir():
        pytest.skip(f"no golden files at {folder}, beside the folder that WERDICT_DATA names")
    return folder


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Return what starts the commands quickly."""
    return session_programs()


def pytest_sessionfinish() -> None:
    if session_programs.cache_info().currsize:
        session_programs().close()


@pytest.fixture(scope="session")
def small_run(programs, tmp_path_factory) -> SmallRun:
    """Return a finished run to copy."""
    return make_small_run(programs, tmp_path_factory.mktemp("small-run"))


@pytest.fixture(scope="session")
def causal(small_run, tmp_path_factory) -> Path:
    """Return a checkpoint with an untrained causal Zipformer."""
    from tests.causal_checkpoint import make_causal_checkpoint  # imports torch

    return make_causal_checkpoint(small_run, tmp_path_factory.mktemp("causal") / "causal.ckpt")


@pytest.fixture
def find_batch_size(monkeypatch, capfd) -> Callable[..., str]:
    """Return what runs ``asr-train find_batch_size=true`` in a folder, where a CPU stands for the GPU."""
    import torch
    from lightning.pytorch.accelerators import CPUAccelerator

    from asr.commands import train

    monkeypatch.setattr("asr.run.build.CUDAAccelerator", CPUAccelerator)
    for name in ("reset_peak_memory_stats", "synchronize", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 2**20)

    def run(folder: Path, *words: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["asr-train", "find_batch_size=true", *words])
        train.main()
        return str(capfd.readouterr().out)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    printed = Workplace(folder).run_fresh("train", *TINY, "run_dir=first")
    return Trained(folder, folder / "first", printed)
