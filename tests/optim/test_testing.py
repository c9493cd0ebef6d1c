"""Each check of `optim.testing` passes a plain optimizer, and fails one with a bug that it is there for."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from optim.testing import CHECKS, check_optimizer

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]


class Momentum(torch.optim.Optimizer):
    """Momentum as one would write it."""

    def __init__(self, params, lr=0.1, capturable=False):
        super().__init__(params, {"lr": lr})

    def trained(self):
        return [(group, param) for group in self.param_groups for param in group["params"] if param.grad is not None]

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(param.grad.is_sparse for _, param in self.trained()):
            raise ValueError("sparse gradients are not supported")
        for group, param in self.trained():
            self.update(group, param, self.state[param])
        return loss

    def update(self, group, param, state):
        if "m" not in state:
            state["step"], state["m"] = 0, torch.zeros_like(param)
        state["step"] += 1
        param.sub_(group["lr"] * self.direction(param, state["m"].mul_(0.9).add_(param.grad)))

    def direction(self, param, m):
        return m


def flat(params):
    return [one for each in params for one in (each["params"] if isinstance(each, dict) else [each])]


def update_then(change):
    """Return an update that changes state or parameter after the right one."""

    def update(self, group, param, state):
        Momentum.update(self, group, param, state)
        change(param, state)

    return update


def load_then(change):
    """Return a loading of state that changes the optimizer after the right one."""

    def load_state_dict(self, state_dict):
        Momentum.load_state_dict(self, state_dict)
        change(self)

    return load_state_dict


def remember_rates(self, params, lr=0.1):
    Momentum.__init__(self, params, lr)
    self.rates = {param: group["lr"] for group in self.param_groups for param in group["params"]}


def closure_without_gradients(self, closure=None):
    with torch.no_grad():
        loss = closure() if closure else None
    Momentum.step(self)
    return loss


def dense_first(self, closure=None):
    for group, param in self.trained():
        if param.grad.is_sparse:
            raise ValueError("sparse gradients are not supported")
        Momentum.update(self, group, param, self.state[param])


def rows_as_a_matrix(self, param, m):
    if not hasattr(m, "to_local"):
        return m / m.norm()
    local = m.to_local()
    return type(m).from_local(local / local.norm(), m.device_mesh, m.placements, shape=m.shape, stride=m.stride())


# check, and the methods that have the bug
BUGS = {
    "joins groups": ("keeps_groups", {"__init__": lambda self, params: Momentum.__init__(self, flat(params))}),
    "needs gradients": (
        "missing_gradients",
        {"trained": lambda self: [(group, param) for group in self.param_groups for param in group["params"]]},
    ),
    "only matrices": ("all_shapes", {"direction": lambda self, param, m: m @ m.mT @ m}),
    "divides by zero": ("empty_and_zero", {"direction": lambda self, param, m: m / m.norm()}),
    "row-major": (
        "memory_layouts",
        {"direction": lambda self, param, m: m.as_strided(m.shape, torch.empty(m.shape).stride())},
    ),
    "widens": ("bfloat16", {"update": update_then(lambda param, state: setattr(param, "data", param.float()))}),
    "no_grad": ("closure", {"step": closure_without_gradients}),
    "no loss": ("closure", {"step": lambda self, closure=None: Momentum.step(self, closure) and None}),
    "keeps its rate": (
        "changed_lr",
        {
            "__init__": remember_rates,
            "update": lambda self, group, *others: Momentum.update(self, {"lr": self.rates[others[0]]}, *others),
        },
    ),
    "moment elsewhere": (
        "resumes",
        {
            "__init__": lambda self, params: (setattr(self, "m", {}), Momentum.__init__(self, params))[-1],
            "update": lambda self, group, param, state: Momentum.update(
                self, group, param, self.m.setdefault(param, {})
            ),
        },
    ),
    "loses moments": (
        "resumes",
        {"load_state_dict": load_then(lambda self: [state["m"].zero_() for state in self.state.values()])},
    ),
    "no state by zeros": (
        "resumes_from_dcp",
        {"update": lambda self, group, param, state: param.grad.any() and Momentum.update(self, group, param, state)},
    ),
    "never counts": ("counts_steps", {"update": update_then(lambda param, state: state.update(step=1))}),
    "first group only": (
        "added_group",
        {"__init__": remember_rates, "trained": lambda self: [x for x in Momentum.trained(self) if x[1] in self.rates]},
    ),
    "loses initial_lr": (
        "sequential_lr",
        {"load_state_dict": load_then(lambda self: [group.pop("initial_lr", None) for group in self.param_groups])},
    ),
    "sparse too late": ("sparse", {"step": dense_first}),
    "reads": ("host_reads", {"direction": lambda self, param, m: m / m.norm().item()}),
    "other when capturable": (
        "capturable",
        {
            "__init__": lambda self, params, capturable=False: Momentum.__init__(
                self, params, 0.2 if capturable else 0.1
            )
        },
    ),
    "scales gradients": ("leaves_inputs", {"update": update_then(lambda param, state: param.grad.mul_(0.5))}),
    "draws": ("ddp", {"direction": lambda self, param, m: m + 0.1 * torch.randn(m.shape)}),
    "rows as a matrix": ("fsdp2", {"direction": rows_as_a_matrix}),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_fails_its_check(bug):
    check, methods = BUGS[bug]
    report = check_optimizer(type("Wrong", (Momentum,), methods), only=[check])
    assert not report.passed, report
    assert report.results[check][1] in str(report)


def test_every_check_has_a_bug_and_a_plain_optimizer_passes_all():
    assert {check for check, _ in BUGS.values()} == {*CHECKS}
    report = check_optimizer(Momentum)
    assert report.passed, report
    assert [check for check, (status, _) in report.results.items() if status != "passed"] == ["sparse"]


def test_what_fails_in_torch_itself_is_no_refusal():
    report = check_optimizer(partial(torch.optim.Adafactor, lr=0.1), only=["fsdp2"])
    assert report.results["fsdp2"][0] == "failed"


def test_ranks_are_started_anew_where_they_cannot_be_forked(monkeypatch):
    monkeypatch.setattr("optim.testing.sys", SimpleNamespace(platform="darwin"))
    report = check_optimizer(partial(torch.optim.AdamW, lr=1e-3), only=["ddp"])
    assert report.passed, report
    assert check_optimizer(lambda params: torch.optim.SGD(params), only=["ddp"]).results["ddp"][0] == "skipped"


def test_matrices_are_tried_where_others_are_refused_and_what_a_user_skips_is_skipped():
    report = check_optimizer(partial(torch.optim.Muon, lr=0.1), skip=["ddp", "fsdp2"])
    assert report.passed, report
    assert report.results["all_shapes"][0] == report.results["capturable"][0] == "refused"
    assert report.results["ddp"][0] == "skipped"
    report = check_optimizer(
        torch.optim.AdamW, only=["resumes"], shapes=[(2, 2), (3,), ()], options={"betas": (0.1, 0.2)}
    )
    assert report.results == {"resumes": ("passed", "")}
    with pytest.raises(ValueError, match="fdsp2"):
        check_optimizer(Momentum, skip=["fdsp2"])


def test_in_pytest_each_check_is_a_test(pytester):
    pytester.makepyfile("""
        import torch
        def test_sgd(optimizer_check):
            optimizer_check(torch.optim.SGD)
        def test_of_something_else():
            pass
    """)
    options = ("-p", "no:randomly", "-p", "pytest_optim", "-k", "not ddp and not fsdp2", "-v")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(passed=len(CHECKS) - 2, skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["*test_sgd?resumes? PASSED*", "*test_sgd?counts_steps? SKIPPED*"])


def test_loading_the_plugin_does_not_import_torch():
    code = "import pytest_optim, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
