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
from tests.optim.training import make_gradient, make_parameters, run, same, values


def both(case, dtype=torch.float64, **options):
    """Return a row's optimizer, its twin with capturable=True, and the parameters of each."""
    params = [param for _ in range(2) for param in make_parameters(dtype)]
    twins = [nn.Parameter(value) for value in values(params)]
    optimizer, twin = case.factory(params, **options), case.factory(twins, **options)
    group = twin.param_groups.pop()
    twin.capturable = True  # not every constructor has the option
    twin.add_param_group({key: value for key, value in group.items() if key != "shared_state"})
    return optimizer, twin, params, twins


def test_capturable_steps_equal_the_others_or_are_refused(case):
    if case.not_capturable:
        with pytest.raises(ValueError, match=f"{case.name} cannot be captured: {case.not_capturable} decides"):
            both(case)
        return
    for options in ({}, case.other_group):
        optimizer, twin, params, twins = both(case, **options)
        run(optimizer, params[1:], range(1))  # one parameter is a step late
        run(twin, twins[1:], range(1))
        run(optimizer, params, range(1, 8))
        run(twin, twins, range(1, 8))
        for param, other in zip(params, twins, strict=True):
            torch.testing.assert_close(param.detach(), other.detach(), rtol=1e-6, atol=1e-9)
        for state in twin.state.values():
            assert isinstance(state["step"], torch.Tensor)


def test_a_capturable_step_reads_nothing_that_changes_as_a_number(case):
    if case.not_capturable:
        pytest.skip(f"refused: {case.not_capturable}")
    _, twin, _, twins = both(case, dtype=torch.float32)
    run(twin, twins, range(2))
    state = twin.state[twins[3]]
    count, lr = state["step"], twin.param_groups[0]["lr"]
    assert isinstance(lr, torch.Tensor)
    run(twin, twins, range(2, 4))
    assert state["step"] is count
    assert count == 4
    assert twin.param_groups[0]["lr"] is lr


def make(**options):
    return partial(optim.AdamW, **{"lr": 0.01, "capturable": True, **options})


def test_a_schedule_fills_the_lr():
    params = make_parameters()
    optimizer = make()(params)
    lr = optimizer.param_groups[0]["lr"]
    optim.WarmupCosine(optimizer, max_steps=10, warmup_steps=4)
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.01 / 5)
    scheduler = torch.optim.lr_scheduler.StepLR(make()(params), 1, gamma=0.5)
    lr = scheduler.optimizer.param_groups[0]["lr"]
    scheduler.optimizer.step()
    scheduler.step()
    assert scheduler.optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(0.005)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_state_loads_into_a_capturable_optimizer_and_from_one(saved, loaded):
    params = make_parameters(torch.float64)
    optimizer = make(capturable=saved, warmup_steps=6)(params)
    run(optimizer, params, range(3))
    twins = [nn.Parameter(value) for value in values(params)]
    twin = make(capturable=loaded, warmup_steps=6)(twins)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(3, 5))
    run(twin, twins, range(3, 5))
    for param, other in zip(params, twins, strict=True):
        torch.testing.assert_close(param.detach(), other.detach(), rtol=1e-6, atol=1e-9)
    for value in (twin.state[twins[0]]["step"], twin.param_groups[0]["shared_state"]["steps"]):
        assert value == 5
        assert isinstance(value, torch.Tensor) == loaded


def test_a_copy_is_capturable_too_and_later_groups_count_for_themselves():
    params, more = make_parameters(), make_parameters(seed=1)
    optimizer = make()(params)
    run(optimizer, params, range(2))
    twin, twins = copy.deepcopy((optimizer, params))
    assert twin.capturable
    run(optimizer, params, range(2, 4))
    run(twin, twins, range(2, 4))
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

    params = make_parameters()
    message = "Chain cannot be captured: every_other decides by numbers, such as the count of steps"
    with pytest.raises(ValueError, match=message):
        optim.chain(every_other(), LearningRate(), lr=0.1)(params, capturable=True)
    with pytest.raises(ValueError, match="skip_nonfinite=True reads from the device"):
        make(skip_nonfinite=True)(params)
    with pytest.raises(ValueError, match="capturable must be True or False, given 1"):
        make(capturable=1)(params)
    with pytest.raises(ValueError, match="needs an lr on the device of its parameters, meta, given one on cpu"):
        make(lr=torch.tensor(0.1))([nn.Parameter(torch.empty(3, device="meta"))])


def test_what_looks_at_all_gradients_is_refused_too_where_it_needs_numbers():
    class Reads(LearningRate):
        def before_step(self, groups):
            assert groups[0][1][0].grad.norm() > 0

    with pytest.raises(ValueError, match="cannot be captured: Reads decides by numbers"):
        optim.chain(Reads(), lr=0.1)(make_parameters()[:1], capturable=True)


@pytest.mark.parametrize("build", [optim.AdamW, partial(optim.ScaledAdam, clipping_scale=2.0), optim.Cain, optim.SOAP])
def test_a_step_with_found_inf_changes_nothing_and_others_are_as_ever(build):
    captures = {} if build is optim.SOAP else {"capturable": True}
    params = [param for _ in range(2) for param in make_parameters()]
    twins = [nn.Parameter(value) for value in values(params)]
    optimizer, twin = build(params, **captures), build(twins, **captures)
    if build is optim.SOAP:
        optimizer.found_inf = torch.zeros(())
        with pytest.raises(ValueError, match="capturable"):
            optimizer.step()
        return
    run(twin, twins, range(8))
    for step in range(8):
        optimizer.found_inf = torch.ones(1)
        for param in params:
            param.grad = torch.full_like(param, float("inf"))
        optimizer.step()
        optimizer.found_inf = torch.zeros(1)
        run(optimizer, params, range(step, step + 1))
    assert same(params, twins)
    assert all(state["step"] == 8 for state in optimizer.state.values())


def test_equal_counts_are_one_tensor_and_those_of_parameters_without_gradient_stand_still():
    params = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = optim.Eve(params, capturable=True)
    run(optimizer, params, range(2))
    assert len({id(optimizer.state[param]["step"]) for param in params}) == 1
    params[0].grad = None
    optimizer.step()
    assert [optimizer.state[param]["step"].item() for param in params] == [2, 3, 3, 3]
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(1))
    assert [optimizer.state[param]["step"].item() for param in params] == [3, 4, 4, 4]
    assert len({id(optimizer.state[param]["step"]) for param in params}) == 2


def test_a_tensor_as_lr_is_kept_and_tensors_without_elements_are_no_trouble():
    params = [nn.Parameter(torch.empty(0, 3)), make_parameters()[3]]
    before = params[1].detach().clone()
    lr = torch.tensor(0.5)
    optimizer = optim.chain(LearningRate(), lr=lr)(params, capturable=True)
    assert optimizer.param_groups[0]["lr"] is lr
    lr.fill_(0.25)
    run(optimizer, params, range(1))
    torch.testing.assert_close(before - params[1], 0.25 * params[1].grad)


def test_copies_made_at_the_first_step_are_made_then_too():
    @optim.transform(state={"start": "gradient"})
    def from_start(update, batch):
        return update - batch.state["start"]

    param = make_parameters()[3]
    before = param.detach().clone()
    optimizer = optim.chain(from_start(), LearningRate(), lr=1.0)([param], capturable=True)
    run(optimizer, [param], range(2))
    torch.testing.assert_close(before - param, make_gradient(param, 1, 0) - make_gradient(param, 0, 0))


@pytest.mark.parametrize("rule", [[Adam()], [Adam(), optim.Sequential(LearningRate())]], ids=["fused", "one by one"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_a_replayed_graph_does_what_eager_steps_do(rule):
    tail = [LearningRate()] if len(rule) == 1 else []
    params = [nn.Parameter(param.detach().cuda()) for param in make_parameters()]
    twins = [nn.Parameter(value) for value in values(params)]
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
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param, twin, rtol=1e-5, atol=1e-6)
