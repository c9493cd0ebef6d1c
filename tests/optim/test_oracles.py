"""Every rule of the HeavyBall family equals a slow form in NumPy, written from its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import optim
from tests.optim.cases import CASES, COMMON_RUNS, FAMILY, SINGLE_RUNS
from tests.optim.oracles.common import corrected, step
from tests.optim.training import make_gradient, make_parameters

RUNS = [(case, options, "own") for case in FAMILY for options in case.oracle_runs]
RUNS += [(case, options, "common") for case in FAMILY for options in COMMON_RUNS]
RUNS += [(case, options, "single") for case in FAMILY if case.optimizer is optim.AdamW for options in SINGLE_RUNS]
ROWS = [
    pytest.param(case, options, id="-".join([case.name, kind, *(f"{name}={value}" for name, value in options.items())]))
    for case, options, kind in RUNS
]


@pytest.mark.parametrize(
    ("repeats", "device"), [(1, "cpu"), (2, "cpu"), (2, "gpu")], ids=["alone", "stacked", "as on a GPU"]
)
@pytest.mark.parametrize(("row", "options"), ROWS)
def test_the_slow_form_is_followed(row, options, repeats, device, request):
    if device == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    params = [param for _ in range(repeats) for param in make_parameters(torch.float64)]
    known = row.factory(params).defaults
    optimizer = row.factory(params, **{name: value for name, value in options.items() if name in known})
    slow = [param.detach().numpy().copy() for param in params]
    # random draws depend on the place of a parameter
    shared = {}
    states = [{"name": f"parameter {place} of group 0", "shared": shared} for place in range(len(params))]
    options = optimizer.defaults
    for t in range(1, 26):
        for place, param in enumerate(params):
            param.grad = make_gradient(param, t, place)
        grads = [param.grad.numpy() for param in params]
        shared.update(params=[*slow], grads=grads)
        pairs = zip(grads, states, strict=True)
        total_norm = np.sqrt(sum(np.sum(corrected(g, state, options) ** 2) for g, state in pairs))
        for place, g in enumerate(grads):
            slow[place] = step(row.oracle, slow[place], g, states[place], t, options, total_norm, row.oracle_ending)
        optimizer.step()
    for param, expected in zip(params, slow, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_every_rule_is_compared_with_something():
    assert all((case.golden is None) == (case in FAMILY) == bool(case.oracle_runs) for case in CASES)
