"""What the package's README shows works."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import optim
from optim.schedules import ClosedFormSchedule
from optim.transforms.adam import Adam, PalmBeta2
from tests.optim.cases import CASES
from tests.optim.training import all_moved, make_gradient, make_parameters, run, values

README = Path(__file__).parents[2] / "optim" / "README.md"


def test_the_examples_do_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 11
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
        params = list(names["model"].parameters())
        before = values(params)
        for _ in range(4):
            names["optimizer"].step()
        # steps in the backward pass have freed the gradients
        assert all(param.grad is None for param in params) or all_moved(params, before)
    start = make_parameters()[3].detach()

    def moved(transform, steps: int) -> torch.Tensor:
        param = make_parameters()[3]
        run(optim.chain(transform, lr=1.0)([param]), [param], range(steps))
        return param.detach() - start

    grads = [make_gradient(start, step, 0) for step in range(4)]
    torch.testing.assert_close(moved(names["accumulate"](num_steps=4), 7), -sum(grads) / 4)
    torch.testing.assert_close(moved(names["lookahead"](period=3, slow_lr=0.25), 3), -0.25 * sum(grads[:3]))
    assert float(moved(names["ClipByGlobalNorm"](max_norm=1.0), 1).norm()) == pytest.approx(1.0, rel=1e-5)
    grafted = moved(names["grafted"], 1)
    assert torch.equal(grafted.sign(), -grads[0].sign())
    # Adam's first step has elements of ±1
    torch.testing.assert_close(grafted.norm(), torch.tensor(start.numel() ** 0.5))


@pytest.mark.parametrize("name", optim.__all__)
def test_every_public_name_has_an_example_that_runs(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(optim, name), name, module=False)
    assert found[0].examples
    found[0].globs = {"optim": optim, "torch": torch, "nn": nn}
    assert doctest.DocTestRunner().run(found[0]).failed == 0


def test_every_optimizer_and_schedule_has_a_row():
    rows = re.findall(r"^\| `(\w+)", README.read_text(), re.MULTILINE)
    schedules = [cls for cls in vars(optim).values() if isinstance(cls, type) and issubclass(cls, ClosedFormSchedule)]
    assert {case.name for case in CASES} | {cls.__name__ for cls in schedules} <= set(rows)


HEAVYBALL = README.with_name("HEAVYBALL.md").read_text()


def rows(heading: str) -> list[list[list[str]]]:
    """Return the names in each cell of the table below a heading."""
    lines = HEAVYBALL.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split(" | ")] for row in table]


def test_every_name_of_heavyball_builds_an_optimizer():
    names = [name for theirs, _ in rows("Optimizers") for name in theirs]
    assert len(names) >= 30
    for name in names:
        run(getattr(optim, name)(params := make_parameters()), params, range(1))


def test_the_table_of_transforms_is_right():
    around = {type(transform) for transform in optim.Composable([make_parameters()[3]], [Adam()], lr=0.1).transforms}
    for (name,), transforms in rows("What each is made of"):
        chain = getattr(optim, name)(make_parameters()).transforms
        rule = [type(each).__name__ for each in chain if type(each) not in around - {Adam} | {PalmBeta2}]
        assert rule == transforms, name


def test_transforms_and_test_files_that_are_named_exist():
    for _, ours in rows("`chainable`"):
        for name in ours:
            module, _, attribute = name.rpartition(".")
            if not name.startswith("optim.") and re.fullmatch(r"[a-z_.]+\.[A-Z]\w+", name):
                assert hasattr(importlib.import_module(f"optim.{module}"), attribute), name
    for file in re.findall(r"test_\w+\.py", HEAVYBALL):
        assert Path(__file__).with_name(file).is_file(), file
