"""What the package's README shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import optim
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
