"""What is private of Lightning is used in one file, and means there what it says."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from asr.training import lightning_internals as internals
from tests.training.runs import run

ROOT = Path(__file__).parents[2]
OURS = Path(internals.__file__)


def private_of_lightning() -> set[str]:
    """Return the private names of its classes and modules."""
    files = [file for part in ("pytorch", "fabric") for file in (Path(pl.__file__).parents[1] / part).rglob("*.py")]
    found = re.findall(r"self\.(_[a-z]\w+)|def (_[a-z]\w+)", "".join(file.read_text() for file in files))
    return {name for pair in found for name in pair if name}


def used(file: Path) -> set[str]:
    """Return private names that a file takes from objects and from Lightning's modules, and does not define."""
    text = file.read_text()
    nodes = [*ast.walk(ast.parse(text))]
    own = set(re.findall(r"(?:def |self\.|^)(_\w+)(?:\(| *[:=])", text, re.MULTILINE))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning")
        for alias in node.names
    }
    return {name for name in names if name.startswith("_")} - own


def test_no_other_file_uses_what_is_private_of_lightning():
    private = private_of_lightning()
    assert used(OURS) == {
        *("_batches_that_stepped", "_data_fetcher", "_should_check_val_fx", "_timeout", "_ddp_kwargs"),
        *("_tensor_parallel_size", "_wandb_init"),
    }
    assert used(OURS) <= private
    of_torch = {"_parameters", "_buffers"}
    folders = ("asr", "recipes", "benchmark", "scripts", "hydra_plugins")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py") if file != OURS]
    assert {file.name: found for file in files if (found := used(file) & private - of_torch)} == {}


def test_options_of_strategies_and_loggers_are_where_lightning_keeps_them(tmp_path):
    ddp, given = DDPStrategy(), DDPStrategy(timeout=timedelta(seconds=7), gradient_as_bucket_view=True)
    internals.set_ddp_options(ddp, 7)
    assert vars(ddp).keys() == vars(given).keys()
    assert (ddp._timeout, ddp._ddp_kwargs) == (given._timeout, given._ddp_kwargs)
    divided = ModelParallelStrategy(2, 3)
    internals.set_processes_of_a_model(divided, 4)
    assert [name for name, value in vars(divided).items() if value == 3] == []
    assert [name for name, value in vars(divided).items() if value == 4] == ["_tensor_parallel_size"]
    logger = WandbLogger(save_dir=tmp_path, entity="team")
    internals.leave_to_wandb(logger, ["anonymous"])
    assert logger._wandb_init.keys() == {"name", "project", "dir", "id", "resume", "entity"}


class Looks(pl.Callback):
    """Notes after which updates a validation was due, and which number Lightning's own logging gives them."""

    def __init__(self) -> None:
        self.due: list[int] = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        if internals.is_validation_due(trainer):
            self.due.append(trainer.global_step)
        trainer.fit_loop.epoch_loop._batches_that_stepped = 70  # which the module sets right after callbacks


def test_loops_say_when_a_validation_is_due_and_number_what_is_logged(tmp_path):
    steps: list[int] = []

    class Logged(DummyLogger):
        def log_metrics(self, metrics, step=None):
            if "val/wer" in metrics:
                steps.append(step)

    looks = Looks()
    run(tmp_path, 7, [looks], logger=Logged())
    assert looks.due == [3, 6]
    assert steps == [2, 5, 6]
