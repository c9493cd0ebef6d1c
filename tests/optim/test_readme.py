"""What the package's README shows works."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import optim
from optim.transforms.adam import Adam
from optim.transforms.beta2 import PalmBeta2
from tests.optim.training import make_gradient, make_parameters, run, values

README = Path(__file__).parents[2] / "optim" / "README.md"


def test_the_examples_run_one_after_the_other():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    assert [type(member).__name__ for member in names["optimizer"].optimizers] == ["Eve", "Adafactor"]
    before = [param.detach().clone() for param in names["model"].parameters()]
    for block in blocks[1:]:
        exec(block, names)
        names["optimizer"].step()
    moved = [torch.equal(a, b) for a, b in zip(before, names["model"].parameters(), strict=True)]
    assert not any(moved)


def test_the_examples_of_transforms_do_what_they_say():
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(block, names)
        if "accumulate" in names and "graft" not in names:
            _check_functions(names)
        params = list(names["model"].parameters())
        before = [param.detach().clone() for param in params]
        for _ in range(4):
            names["optimizer"].step()
        # steps in the backward pass have freed the gradients
        moves = any(param.grad is not None for param in params)
        assert not moves or not any(torch.equal(a, b) for a, b in zip(before, params, strict=True))
    clip = optim.chain(names["ClipByGlobalNorm"](max_norm=1.0), lr=1.0)
    params = make_parameters()
    before = values(params)
    run(clip(params), params, range(1))
    moved = [param.detach() - start for param, start in zip(params, before, strict=True)]
    assert float(torch.nn.utils.get_total_norm(moved)) == pytest.approx(1.0, rel=1e-5)


def _check_functions(names: dict[str, Any]) -> None:
    param, twin = make_parameters()[3], make_parameters()[3]
    mean = sum(make_gradient(param, step, 0) for step in range(4)) / 4
    run(optim.chain(names["accumulate"](num_steps=4), lr=1.0)([param]), [param], range(7))
    torch.testing.assert_close(param.detach(), twin.detach() - mean)
    start, fast = twin.detach().clone(), make_parameters()[3].detach()
    run(optim.chain(names["lookahead"](period=3, slow_lr=0.25), lr=1.0)([twin]), [twin], range(3))
    fast -= sum(make_gradient(fast, step, 0) for step in range(3))
    torch.testing.assert_close(twin.detach(), start + 0.25 * (fast - start))


def test_grafting_has_the_direction_of_one_rule_and_the_size_of_another():
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:5]:
        exec(block, names)
    param = make_parameters()[3]
    before = param.detach().clone()
    run(optim.chain(names["grafted"], lr=1.0)([param]), [param], range(1))
    moved = param.detach() - before
    assert torch.equal(moved.sign(), -param.grad.sign())
    # Adam's first step has elements of ±1
    torch.testing.assert_close(moved.norm(), torch.tensor(param.numel() ** 0.5))


def test_every_optimizer_and_schedule_has_a_row():
    import optim
    from optim.schedules.closed_form import ClosedFormSchedule
    from tests.optim.cases import CASES

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
