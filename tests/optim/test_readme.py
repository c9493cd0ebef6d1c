"""What the package's README shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[2] / "optim" / "README.md"


def test_the_examples_run_one_after_the_other():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    assert [type(member).__name__ for member in names["optimizer"].optimizers] == ["Eve", "Adafactor"]
    before = [param.detach().clone() for param in names["model"].parameters()]
    for block in blocks[1:]:
        exec(block, names)
        names["optimizer"].step()
    moved = [torch.equal(a, b) for a, b in zip(before, names["model"].parameters(), strict=True)]
    assert not any(moved)


def test_every_optimizer_and_schedule_has_a_row():
    import optim
    from optim.schedules.closed_form import ClosedFormSchedule
    from tests.optim.cases import CASES

    rows = re.findall(r"^\| `(\w+)", README.read_text(), re.MULTILINE)
    schedules = [cls for cls in vars(optim).values() if isinstance(cls, type) and issubclass(cls, ClosedFormSchedule)]
    assert {case.name for case in CASES} | {cls.__name__ for cls in schedules} <= set(rows)
