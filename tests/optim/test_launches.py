"""How much a step launches on a GPU, counted without one; docs/gpu_results.md has times."""

from __future__ import annotations

from functools import partial

import pytest

import optim
from tests.optim.dispatched import dispatched


def muon_with_adamw(params):
    """Return Muon for what is a matrix by its layer, and AdamW for the rest, as users combine them."""
    matrices = [(name, param) for name, param in params if param.dim() >= 2 and param.shape[1] > 1]
    others = [(name, param) for name, param in params if param.dim() < 2 or param.shape[1] == 1]
    return optim.Combined([optim.Muon(matrices), optim.AdamW(others)])


BUDGETS = [
    (optim.AdamW, 1, 60),
    (optim.LaProp, 1, 60),
    (optim.Prodigy, 1, 110),
    (optim.AdEMAMix, 1, 60),
    (optim.ADOPT, 1, 60),
    (optim.Lion, 1, 60),
    (optim.RMSprop, 1, 60),
    (optim.ScheduleFreeAdamW, 1, 60),
    (optim.ScheduleFreePlus, 1, 150),
    (optim.Eve, 1, 110),
    (partial(optim.ScaledAdam, clipping_scale=2.0), 4, 280),
    (optim.Adafactor, 1, 450),
    (partial(optim.T5XAdafactor, lr=1e-3, factor_map="matrices"), 1, 500),
    (optim.MaxFactor, 1, 550),
    (optim.Cain, 4, 500),
    (muon_with_adamw, 1, 1100),
    (optim.Rubik, 1, 1180),  # 1.3 of Muon alone
    (optim.LearnedGradient, 10, 1200),
    (optim.SOAP, 2, 1300),
    (partial(optim.SOAP, kl_factors=True), 2, 3000),
    (optim.Shampoo, 2, 2500),
    (optim.PSGDKron, 2, 3000),
]


def name_of(build):
    return getattr(build, "func", build).__name__


@pytest.mark.parametrize(("build", "period", "most"), [pytest.param(*row, id=name_of(row[0])) for row in BUDGETS])
def test_a_step_launches_no_more_than_its_budget(build, period, most):
    warm_up = 12 if name_of(build) == "ScaledAdam" else 2  # it clips from its tenth step on
    assert 0 < dispatched(build, period, warm_up) <= most
