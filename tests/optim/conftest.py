"""Runs every test that takes a `case` once per row of the table, and uses one thread."""

import pytest
import torch
from torch import nn

from tests.optim.cases import CASES
from tests.optim.training import copies, make_parameters


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    test = metafunc.function.__name__
    rows = [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.skip(reason=case.exceptions[test])] if test in case.exceptions else [],
        )
        for case in CASES
    ]
    metafunc.parametrize("case", rows)


@pytest.fixture
def params() -> list[nn.Parameter]:
    """Return one parameter per shape."""
    return make_parameters()


@pytest.fixture
def twins(params) -> list[nn.Parameter]:
    """Return others with the values that these begin with."""
    return copies(params)


@pytest.fixture
def steps_as_on_a_gpu(monkeypatch):
    """Let optimizers take the path of a GPU on a CPU: all stacks of a kind in one batch."""
    monkeypatch.setattr("optim.engine.group_step.launches_cost", lambda device: True)


@pytest.fixture(autouse=True, scope="module")  # not of the session: other packages choose for themselves
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
