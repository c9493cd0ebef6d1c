"""A pytest plugin: a test that takes ``optimizer_check`` runs once per check of `optim.testing`.

    def test_my_optimizer(optimizer_check):
        optimizer_check(partial(MyOptimizer, lr=0.1))

It lies beside `optim`, which imports torch: pytest loads plugins in projects that do not use them too.
"""

from functools import partial

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each check."""
    if "optimizer_check" in metafunc.fixturenames:
        from optim.testing import CHECKS, run_check

        metafunc.parametrize("optimizer_check", [pytest.param(partial(run_check, name), id=name) for name in CHECKS])
