"""Every rule of the HeavyBall family equals a slow form in NumPy, written from its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.optim.cases import CASES, COMMON_RUNS
from tests.optim.oracles.common import corrected, step
from tests.optim.training import make_gradient, make_parameters

STEPS = 25
RUNS = [
    pytest.param(case, options, id="-".join([case.name, *(f"{name}={value}" for name, value in options.items())]))
    for case in CASES
    for options in case.oracle_runs
]


COMMON_TEST = "test_every_common_option_composes_with_every_rule"
ROWS_WITH_ORACLE = [
    pytest.param(
        case,
        id=case.name,
        marks=[pytest.mark.skip(reason=case.exceptions[COMMON_TEST])] if COMMON_TEST in case.exceptions else [],
    )
    for case in CASES
    if case.oracle
]


COMPANY = pytest.mark.parametrize(
    ("copies", "on"), [(1, "cpu"), (2, "cpu"), (2, "gpu")], ids=["alone", "stacked", "as on a GPU"]
)


def follow(row, options, copies, steps):
    """Compare a row's class with its slow form, on parameters of all shapes, each ``copies`` times."""
    params = [param for _ in range(copies) for param in make_parameters(torch.float64)]
    optimizer = row.factory(params, **options)
    slow = [param.detach().numpy().copy() for param in params]
    # random draws depend on the place of a parameter
    states = [{"label": (0, place)} for place in range(len(params))]
    for t in range(1, steps + 1):
        for place, param in enumerate(params):
            param.grad = make_gradient(param, t, place)
        grads = [param.grad.numpy() for param in params]
        pairs = zip(grads, states, strict=True)
        total_norm = np.sqrt(sum(np.sum(corrected(g, state, optimizer.defaults) ** 2) for g, state in pairs))
        for place, g in enumerate(grads):
            slow[place] = step(
                row.oracle, slow[place], g, states[place], t, optimizer.defaults, total_norm, row.oracle_ending
            )
        optimizer.step()
    for param, expected in zip(params, slow, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@COMPANY
@pytest.mark.parametrize(("row", "options"), RUNS)
def test_the_slow_form_is_followed(row, options, copies, on, request):
    if on == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    follow(row, options, copies, STEPS)


@COMPANY
@pytest.mark.parametrize("options", COMMON_RUNS, ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()))
@pytest.mark.parametrize("row", ROWS_WITH_ORACLE)
def test_every_common_option_composes_with_every_rule(row, options, copies, on, request):
    if on == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    known = row.factory(make_parameters()).defaults
    if not set(options) <= set(known):
        with pytest.raises(ValueError, match=f"{row.name} has no option (palm|beta2_scale|cautious_weight_decay)"):
            row.factory(make_parameters(), **options)
        options = {name: value for name, value in options.items() if name in known}
    follow(row, options, copies, STEPS)


def test_every_rule_is_compared_with_something(case):
    assert (case.golden is None) == (case.oracle is not None) == bool(case.oracle_runs)


def test_a_wrong_rule_is_noticed():
    row = next(case for case in CASES if case.oracle)
    param = nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    optimizer = row.factory([param])
    wrong = step(row.oracle, np.ones(3), 2 - param.grad.numpy(), {}, 1, optimizer.defaults)
    optimizer.step()
    assert not np.allclose(param.detach().numpy(), wrong, rtol=1e-10)
