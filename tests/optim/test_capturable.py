"""Steps that a CUDA graph can replay: equal to the others, and refused where a rule needs numbers."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import optim
from optim.transforms.adam import Adam
from optim.transforms.learning_rate import LearningRate
from tests.optim.training import copies, make_gradient, make_parameters, run, run_both, same, step_with

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


def test_what_cannot_be_captured_is_refused_at_construction():
    @optim.transform
    def every_other(update, batch):
        return update if batch.step % 2 else update * 0

    class Reads(LearningRate):
        def before_step(self, groups):
            assert groups[0][1][0].grad.norm() > 0

    params = make_parameters()
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
