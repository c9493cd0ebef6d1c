"""The comparison of convergence: its problems, how an lr is chosen, and what it prints."""

import math

import pytest
import torch
from torch import nn


@pytest.fixture
def compare(script):
    return script("convergence")


@pytest.fixture
def row(compare):
    return {row.name: row for row in compare.ROWS}


def square(seed):
    x = nn.Parameter(torch.tensor([1.0]))
    return [("x", x)], lambda step: x.square().sum() / 2


@pytest.fixture
def halving(compare):
    """Plain descent that halves x, so that x²/2 falls by 4 per step from ½."""

    def run(target, max_steps=10, lr=0.5, smoothing=0.0):
        sgd = compare.Spec("sgd", "torch.optim", "SGD", {"lr": lr})
        return compare.train(compare.Task(sgd, compare.Problem("square", square, target, max_steps, smoothing), 0))

    return run


def test_a_seed_decides_every_problem(compare):
    for problem in compare.PROBLEMS:
        gradients = []
        for seed in (1, 1, 2):
            named, loss_at = problem.begin(seed)
            assert loss_at(0).item() > problem.target
            problem.begin(seed)[1](0)
            gradients.append(torch.autograd.grad(loss_at(1), named[0][1])[0])
        assert torch.equal(gradients[0], gradients[1])
        assert not torch.equal(gradients[0], gradients[2])


def test_the_quadratic_has_the_stated_condition(compare):
    [(_, weight)], loss_at = compare.quadratic(0, size=4)
    rows = []
    for unit in torch.eye(16):
        with torch.no_grad():
            weight.copy_(unit.reshape(4, 4))
        rows.append(torch.autograd.grad(loss_at(0), weight)[0].flatten())
    eigenvalues = torch.linalg.eigvalsh(torch.stack(rows).double())
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(1e4, rel=0.05)


def test_steps_count_until_the_target_is_met(halving):
    assert halving(target=0.5).steps == 0
    assert halving(target=0.002).steps == 4
    assert halving(target=0.002).loss == 0.5**9


def test_a_target_that_is_not_met_takes_infinitely_many_steps(halving):
    late = halving(target=0.002, max_steps=4)
    assert (late.steps, late.cpu_s) == (math.inf, math.inf)
    assert late.loss == 0.5**7
    assert halving(target=0.1, lr=1e30).loss == math.inf


def test_the_average_of_losses_starts_at_the_first(halving):
    assert halving(target=0.5, smoothing=0.9).steps == 0
    # after two losses, ½ with weight 0.9 and ⅛ with weight 1
    assert halving(target=0.0, smoothing=0.9, max_steps=2).loss == pytest.approx((0.9 * 0.5 + 0.125) / 1.9)


def test_of_equal_steps_the_lower_loss_is_best(compare, row):
    def trainer(tasks):
        asked.extend(tasks)
        return [compare.Trained(40.0 + task.seed**2, 1.0, abs(task.row.options["lr"] - 0.03)) for task in tasks]

    asked = []
    scores = compare.search_lrs(trainer, [row["SOAP"]], compare.PROBLEMS[0], 3)
    assert scores == {"SOAP": {lr: (41.0, abs(lr - 0.03)) for lr in (0.0009, 0.003, 0.009, 0.03, 0.09)}}
    assert {task.seed for task in asked} == {0, 1, 2}


def test_what_is_reported_was_trained_on_other_seeds_than_the_choice(compare, row):
    def trainer(tasks):
        asked.append(tasks)
        return [compare.Trained(float(task.seed), 1.0, 0.0) for task in tasks]

    asked = []
    table = compare.results_table(trainer, [row["AdamW"]], compare.PROBLEMS[:1], 3)
    assert {task.seed for task in asked[-1]} == {100, 101, 102}
    assert [next(iter(column.cells)) for column in table.columns[3:6]] == ["101", "100–102", "1"]


@pytest.mark.parametrize("shapes", [[(2, 3), (4,)], [(2, 3)], [(4,), ()]])
def test_muon_has_the_matrices_and_adamw_the_rest_at_the_same_lr(script, compare, row, shapes):
    named = [(f"x{i}", nn.Parameter(torch.zeros(shape))) for i, shape in enumerate(shapes)]
    optimizer = script("bench.peers").build_optimizer(compare.at_lr(row["Muon"], 0.25), named)
    found = {
        type(one).__name__: [p.shape for g in one.param_groups for p in g["params"]] for one in optimizer.optimizers
    }
    assert found.get("ForeachMuon", []) == [shape for shape in shapes if len(shape) == 2]
    assert found.get("ForeachAdamW", []) == [shape for shape in shapes if len(shape) != 2]
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}


def test_rows_of_missing_packages_are_left_out_unless_they_are_named(compare, monkeypatch):
    monkeypatch.setattr(compare, "ROWS", (compare.Spec("gone", "not_installed", "SOAP"), *compare.ROWS[:1]))
    assert [one.name for one in compare.parsed([]).rows] == ["torch_adamw"]
    with pytest.raises(ValueError, match="not_installed"):
        compare.main(["--only", "gone"])


def test_a_table_comes_out(compare, capsys):
    compare.main(["--only", "AdamW,SOAP", "--seeds", "1", "--max-steps", "3", "--markdown"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 optimizers compared on 4 problems"
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert [line[:2] for line in cells[2:]] == [
        [problem.name, name] for problem in compare.PROBLEMS for name in ("AdamW", "SOAP")
    ]
    assert {line[6] for line in cells[2:]} == {"0/1"}
