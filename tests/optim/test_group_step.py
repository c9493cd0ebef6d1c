"""Steps that a CUDA graph can replay, what a step launches, and steps that a bad gradient skips."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

import optim
from optim import Eve
from optim.testing import assert_same
from optim.transforms.adam import Adam
from optim.transforms.learning_rate import LearningRate
from tests.optim.training import (
    copies,
    duplicates,
    make_gradient,
    make_parameters,
    run,
    run_both,
    same,
    step_with,
    values,
)

SHAPES = Path(__file__).parents[2] / "scripts" / "bench" / "zipformer_s.json"
ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
READS = {"_local_scalar_dense", "is_nonzero"}
OTHERS = {"_unsafe_view", "_record_function_enter_new", "_record_function_exit"}  # a view, and torch's own profiling
PER_MATRIX = {"linalg_qr", "_linalg_eigh", "linalg_eigh", "_linalg_svd"}
"""Libraries call these once per matrix of a stack."""


class Dispatched(TorchDispatchMode):
    """Counts operations by name; views, reads and allocations are none.

    A foreach call counts as its length if its lists differ in shape, dtype or stride: it then calls once per tensor. A
    decomposition counts once per matrix.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        aliases = [r.alias_info for r in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and name not in ALLOCATIONS | READS | OTHERS:
            self.counts[name] += _calls(name, args)
        return func(*args, **(kwargs or {}))


def _calls(name: str, args: tuple[Any, ...]) -> int:
    if name in PER_MATRIX:
        return prod(args[0].shape[:-2])
    lists = [x for x in args if isinstance(x, list) and x and isinstance(x[0], Tensor)]
    if not name.startswith("_foreach") or name == "_foreach_norm":
        return 1
    kinds = [[(x.shape, x.dtype, x.stride()) for x in each] for each in lists]
    alike = all(row.count(row[0]) == len(row) for row in zip(*kinds, strict=True))
    return 1 if alike and len({x.dtype for x in lists[0]}) == 1 else len(lists[0])


def dispatched(build: Callable[[list[tuple[str, Tensor]]], Optimizer], num_steps: int, warm_up: int = 2) -> float:
    """Return how many operations a step dispatches on the meta device, for the shapes of a Zipformer.

    Args:
        build: makes the optimizer of pairs of a name and a parameter.
        num_steps: to take the mean of.
        warm_up: steps before them.
    """
    named_shapes = json.loads(SHAPES.read_text())
    params = [(name, torch.nn.Parameter(torch.empty(shape, device="meta"))) for name, shape in named_shapes]
    optimizer = build(params)
    for _, param in params:
        param.grad = torch.empty_like(param)
    for _ in range(warm_up):
        optimizer.step()
    with Dispatched() as counter:
        for _ in range(num_steps):
            optimizer.step()
    return counter.counts.total() / num_steps


ADAMW = partial(optim.AdamW, lr=0.01, capturable=True)


def both(case, dtype=torch.float64, **options):
    """Return a row's optimizer and its parameters, and its twin with capturable=True."""
    params = [param for _ in range(2) for param in make_parameters(dtype)]
    twins = copies(params)
    optimizer, twin = case.factory(params, **options), case.factory(twins, **options)
    twin.make_capturable()  # not every constructor has the option
    return (optimizer, params), (twin, twins)


def test_capturable_steps_equal_the_others_or_are_refused(case):
    if case.not_capturable:
        with pytest.raises(ValueError, match=f"{case.name} cannot be captured: {case.not_capturable}"):
            both(case)
        return
    for options in ({}, case.other_group):
        (optimizer, params), (twin, twins) = both(case, **options)
        run_both((optimizer, params[1:]), (twin, twins[1:]), range(1))  # one parameter is a step late
        run_both((optimizer, params), (twin, twins), range(1, 8))
        torch.testing.assert_close(params, twins, rtol=1e-6, atol=1e-9)
        assert all(isinstance(state["step"], torch.Tensor) for state in twin.state.values())


def test_a_capturable_step_reads_nothing_that_changes_as_a_number(case):
    if case.not_capturable:
        pytest.skip(f"refused: {case.not_capturable}")
    _, (twin, twins) = both(case, dtype=torch.float32)
    run(twin, twins, range(2))
    count, lr = twin.state[twins[3]]["step"], twin.param_groups[0]["lr"]
    assert isinstance(lr, torch.Tensor)
    run(twin, twins, range(2, 4))
    assert twin.state[twins[3]]["step"] is count
    assert count == 4
    assert twin.param_groups[0]["lr"] is lr


def test_an_optimizer_becomes_capturable_between_two_steps(case):
    if case.not_capturable:
        pytest.skip(f"refused: {case.not_capturable}")
    params = make_parameters(torch.float64)
    twins = copies(params)
    optimizer, twin = case.factory(params), case.factory(twins)
    run_both((optimizer, params), (twin, twins), range(3))
    twin.param_groups[0]["lr"] = torch.tensor(twin.param_groups[0]["lr"], dtype=torch.float64)  # as a loaded one may be
    twin.make_capturable()
    run_both((optimizer, params), (twin, twins), range(3, 6))
    torch.testing.assert_close(params, twins, rtol=1e-6, atol=1e-9)
    assert all(isinstance(state["step"], torch.Tensor) for state in twin.state.values())


def test_a_schedule_fills_the_lr():
    for make, wanted in (
        (lambda optimizer: optim.WarmupCosine(optimizer, max_steps=10, warmup_steps=4), 0.01 * 2 / 5),
        (lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), 0.005),
    ):
        optimizer = ADAMW(make_parameters())
        scheduler = make(optimizer)
        lr = optimizer.param_groups[0]["lr"]  # a clone, since groups may share one
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] is lr
        assert lr.item() == pytest.approx(wanted)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_state_loads_into_a_capturable_optimizer_and_from_one(saved, loaded):
    params = make_parameters(torch.float64)
    optimizer = ADAMW(params, capturable=saved, warmup_steps=6)
    run(optimizer, params, range(3))
    twins = copies(params)
    twin = ADAMW(twins, capturable=loaded, warmup_steps=6)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run_both((optimizer, params), (twin, twins), range(3, 5))
    torch.testing.assert_close(params, twins, rtol=1e-6, atol=1e-9)
    for value in (twin.state[twins[0]]["step"], twin.param_groups[0]["shared_state"]["steps"]):
        assert value == 5
        assert isinstance(value, torch.Tensor) == loaded


def test_a_copy_is_capturable_too_and_later_groups_count_for_themselves():
    params, more = make_parameters(), make_parameters(seed=1)
    optimizer = ADAMW(params)
    run(optimizer, params, range(2))
    twin, twins = copy.deepcopy((optimizer, params))
    assert twin.capturable
    run_both((optimizer, params), (twin, twins), range(2, 4))
    assert same(params, twins)
    optimizer.add_param_group({"params": more})
    run(optimizer, params, range(1))
    first, second = (group["shared_state"]["steps"] for group in optimizer.param_groups)
    assert first is not second
    assert first == second == 5


def test_what_cannot_be_captured_is_refused_at_construction(params):
    @optim.transform
    def every_other(update, batch):
        return update if batch.step % 2 else update * 0

    class Reads(LearningRate):
        def before_step(self, groups):
            assert groups[0][1][0].grad.norm() > 0

    for make, message in (
        (optim.chain(every_other(), LearningRate(), lr=0.1), "every_other decides by numbers"),
        (optim.chain(Reads(), lr=0.1), "Reads decides by numbers"),
        (partial(optim.AdamW, skip_nonfinite=True), "skip_nonfinite=True reads from the device"),
    ):
        with pytest.raises(ValueError, match=message):
            make(params, capturable=True)
    with pytest.raises(ValueError, match="needs an lr on the device of its parameters"):
        ADAMW([nn.Parameter(torch.empty(3, device="meta"))], lr=torch.tensor(0.1))


BUILD = [
    optim.AdamW,
    partial(optim.AdamW, palm=True),
    partial(optim.ScaledAdam, clipping_scale=2.0),
    optim.Cain,
]


@pytest.mark.parametrize("build", BUILD)
def test_a_step_with_found_inf_changes_nothing_and_others_are_as_ever(build):
    params = [param for _ in range(2) for param in make_parameters()]
    twins = copies(params)
    optimizer, twin = build(params, capturable=True), build(twins, capturable=True)
    run(twin, twins, range(8))
    for step in range(8):
        optimizer.found_inf = torch.ones(1)
        step_with(optimizer, params, float("inf"))
        optimizer.found_inf = torch.zeros(1)
        run(optimizer, params, [step])
    assert same(params, twins)
    assert all(state["step"] == 8 for state in optimizer.state.values())
    steps = optimizer.param_groups[0]["shared_state"]["steps"].clone()
    optimizer.zero_grad()
    optimizer.found_inf = torch.ones(1)
    optimizer.step()  # with nothing but its count
    assert optimizer.param_groups[0]["shared_state"]["steps"] == steps
    plain = optim.SOAP(params)
    plain.found_inf = torch.zeros(())
    with pytest.raises(ValueError, match="capturable"):
        plain.step()


def test_equal_counts_are_one_tensor_and_those_of_parameters_without_gradient_stand_still():
    params = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = optim.Eve(params, capturable=True)

    def counts():
        return [optimizer.state[param]["step"] for param in params]

    run(optimizer, params, range(2))
    assert len({id(count) for count in counts()}) == 1
    params[0].grad = None
    optimizer.step()
    assert counts() == [2, 3, 3, 3]
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(1))
    assert counts() == [3, 4, 4, 4]
    assert len({id(count) for count in counts()}) == 2


def test_a_tensor_as_lr_is_kept_and_copies_of_the_first_step_are_made_then():
    @optim.transform(state={"start": "gradient"})
    def from_start(update, batch):
        return update - batch.state["start"]

    params, lr = [nn.Parameter(torch.empty(0, 3)), make_parameters()[3]], torch.tensor(0.5)
    before = params[1].detach().clone()
    optimizer = optim.chain(from_start(), LearningRate(), lr=lr)(params, capturable=True)
    assert optimizer.param_groups[0]["lr"] is lr
    lr.fill_(0.25)
    run(optimizer, params, range(2))
    first, second = (make_gradient(params[1], step, 1) for step in range(2))
    torch.testing.assert_close(before - params[1], 0.25 * (second - first))


@pytest.mark.parametrize("rule", [[Adam()], [Adam(), optim.Sequential(LearningRate())]], ids=["fused", "one by one"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_a_replayed_graph_does_what_eager_steps_do(rule):
    tail = [LearningRate()] if len(rule) == 1 else []
    params = [nn.Parameter(param.detach().cuda()) for param in make_parameters()]
    twins = copies(params)
    optimizer = optim.chain(*rule, *tail, lr=0.01)(params, capturable=True)
    eager = optim.chain(*rule, *tail, lr=0.01)(twins)

    def give(owners, step):
        for place, param in enumerate(owners):
            grad = make_gradient(param.cpu(), step, place).cuda()
            param.grad = grad if param.grad is None else param.grad.copy_(grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in range(3):
            give(params, step)
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # records a step without making it
        optimizer.step()
    for step in range(3, 8):
        give(params, step)
        optimizer.param_groups[0]["lr"].fill_(0.01 / step)
        graph.replay()
    for step in range(8):
        give(twins, step)
        eager.param_groups[0]["lr"] = 0.01 if step < 3 else 0.01 / step
        eager.step()
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-6)


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


BAD = [float("nan"), float("inf"), float("-inf")]


def make(case, params):
    options = {**case.options, "skip_nonfinite": True}
    return case.optimizer([{"params": params[:3]}, {"params": params[3:], **case.other_group}], **options)


def bad_step(optimizer, params, place: int, value: float, step: int = 2) -> None:
    """Make a step whose gradients are finite but for the last element of one."""
    for i, param in enumerate(params):
        param.grad = make_gradient(param, step, i)
    params[place].grad.view(-1)[-1] = value
    optimizer.step()


def counts(optimizer) -> list[tuple[int, int]]:
    shared = [group["shared_state"] for group in optimizer.param_groups]
    return [(one["steps"], one["skipped_steps"]) for one in shared]


def without_skips(optimizer) -> dict:
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        del group["shared_state"]["skipped_steps"]
    return state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_continues_as_if_the_bad_steps_had_never_been(case, dtype):
    params, twins = make_parameters(dtype), make_parameters(dtype)
    optimizer, clean = make(case, params), make(case, twins)
    for step in range(4):
        bad_step(optimizer, params, step, BAD[step % 3])
        assert same(params, twins)
        assert_same(without_skips(optimizer)["state"], without_skips(clean)["state"], "state")
        run_both((optimizer, params), (clean, twins), [step])
        assert same(params, twins)
        assert_same(without_skips(optimizer), without_skips(clean), "state")
    assert (optimizer.skipped_steps, clean.skipped_steps) == (4, 0)


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("place", [0, 2, 5], ids=["in a scalar", "in a vector", "in the last matrix"])
def test_one_bad_element_skips_the_step_for_all_parameters(params, place, value):
    optimizer = Eve(params, skip_nonfinite=True)
    before = values(params)
    bad_step(optimizer, params, place, value)
    assert same(before, params)
    assert counts(optimizer) == [(0, 1)]


def test_the_count_survives_saving_loading_and_copying(params):
    optimizer = Eve(params, skip_nonfinite=True)
    bad_step(optimizer, params, 3, BAD[0])
    loaded = Eve(copies(params), skip_nonfinite=True)
    loaded.load_state_dict(optimizer.state_dict())
    assert [one.skipped_steps for one in (loaded, *duplicates(optimizer))] == [1, 1, 1]


def test_gradients_that_are_large_but_finite_are_no_reason_to_skip(params, case):
    optimizer = make(case, params)
    step_with(optimizer, params, 1e19)  # the sum of the squares of these is infinite in float32
    assert counts(optimizer) == [(1, 0)] * 2


def test_the_loss_of_a_skipped_step_is_returned(params):
    optimizer = Eve(params, skip_nonfinite=True)

    def closure():
        loss = sum(param.square().sum() for param in params) * float("nan")
        loss.backward()
        return loss

    assert optimizer.step(closure).isnan()
    assert counts(optimizer) == [(0, 1)]


def test_parameters_without_elements_or_gradients_do_not_matter():
    params = [nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = Eve(params, lr=0.1, skip_nonfinite=True)
    optimizer.step()
    step_with(optimizer, params[:1], 1.0)
    step_with(optimizer, params[:2], 1.0)
    assert counts(optimizer) == [(3, 0)]
    assert not params[1].equal(torch.ones(2))


@pytest.mark.parametrize("switch", ["skip_nonfinite", "capturable"])
def test_only_true_and_false_are_allowed(switch):
    with pytest.raises(ValueError, match=switch):
        Eve(make_parameters(), **{switch: 1})
