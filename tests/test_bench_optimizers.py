"""The benchmark of the optimizers: its command line, its rows, what it counts, and how it fails."""

import json
import re

import pytest
import torch

SHAPES = [["conv.weight", [8, 2, 3]], ["linear.weight", [16, 8]], ["linear.bias", [16]], ["scale", []]]
NUM_ELEMENTS = 48 + 128 + 16 + 1


@pytest.fixture
def bench(monkeypatch, script):
    module = script("bench.optimizers")
    monkeypatch.setattr(module, "keep_freed_memory", lambda: False)  # would hold for the tests that follow
    return module


@pytest.fixture
def command(bench, script):
    """Return the command line of the benches."""
    return script("bench.__main__")


@pytest.fixture
def stage(bench):
    return bench.Stage(SHAPES, "cpu", 0)


@pytest.fixture
def shapes_file(tmp_path):
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(SHAPES))
    return str(file)


def test_the_unit_is_timed_whatever_is_chosen(bench, command):
    _, options = command.parsed(["optimizers", "--only", "Eve, Adafactor", "--repeats", "3"])
    assert [row.name for row in bench.chosen(options)] == ["torch_adamw_fused", "Adafactor", "Eve"]
    assert options.repeats == 3
    assert len(json.loads(options.shapes.read_text())) == 569


def test_a_run_gives_one_line_per_row_and_says_what_happened(command, shapes_file, capsys):
    command.main(
        ["optimizers", "--shapes", shapes_file, "--only", "torch_adafactor,Eve", "--repeats", "1", "--markdown"]
    )
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    assert [row[0] for row in rows] == ["`torch_adamw_fused`", "`torch_adafactor`", "`Eve`"]
    assert rows[0][2:4] == ["1.00", "1.00–1.00"]
    assert lines[-1] == "4 rows, every goal was met"


def test_a_missed_limit_ends_with_1_and_names_row_and_value(command, shapes_file, capsys):
    words = ["--shapes", shapes_file, "--only", "Adafactor", "--repeats", "1", "--limits"]
    assert command.main(["optimizers", *words]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "Adafactor state bytes" in lines[-1]
    assert any(re.match(r"NO Adafactor state bytes: \S+ \(goal: at most 0\.12\)", line) for line in lines)


def test_state_is_what_the_optimizer_keeps_beside_parameters_and_gradients(bench, stage):
    candidate = bench.Candidate(bench.UNIT, stage)
    candidate.warm_up()
    step_counts = 4 * len(SHAPES)
    assert candidate.state_bytes() == pytest.approx((8 * NUM_ELEMENTS + step_counts) / NUM_ELEMENTS)


def test_operations_are_counted_without_views_and_reads(bench):
    with bench.Counter() as counter:
        matrix = torch.ones(2, 3).t()
        (matrix @ matrix.t()).sum().item()
    assert (counter.num_ops, counter.num_reads) == (3, 1)  # ones, matrix product, sum


def test_counts_and_times_are_averages_over_the_period(bench, stage):
    row = bench.Spec("adamw", "torch.optim", "AdamW", {"fused": True}, period=4)
    once, four = (bench.Candidate(each, stage) for each in (bench.UNIT, row))
    for candidate in (once, four):
        candidate.warm_up()
    assert (once.num_ops, once.num_waits) == (four.num_ops, four.num_waits)
    assert four.optimizer.state[stage.params[0]]["step"] == 1 + 4


def test_an_optimizer_that_moves_nothing_is_refused(bench, stage):
    row = bench.Spec("still", "torch.optim", "SGD", {"lr": 0.0})
    with pytest.raises(ValueError, match="still left 4 of 4 parameters"):
        bench.Candidate(row, stage).warm_up()
