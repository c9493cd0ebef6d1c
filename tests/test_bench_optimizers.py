"""The benchmark of the optimizers: its command line, its rows, what it counts, and how it fails."""

import json
import re
import sys

import pytest
import torch

SHAPES = [["conv.weight", [8, 2, 3]], ["linear.weight", [16, 8]], ["linear.bias", [16]], ["scale", []]]
NUM_ELEMENTS = 48 + 128 + 16 + 1


@pytest.fixture
def bench(monkeypatch, script):
    module = script("bench_optimizers")
    monkeypatch.setattr(module, "keep_freed_memory", lambda: False)  # would hold for the tests that follow
    return module


@pytest.fixture
def steps(bench):
    return sys.modules["bench_steps"]


@pytest.fixture
def stage(steps):
    return steps.Stage(SHAPES, "cpu", 0)


@pytest.fixture
def shapes_file(tmp_path):
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(SHAPES))
    return str(file)


def test_the_unit_is_timed_whatever_is_chosen(bench):
    options = bench.parsed(["--only", "Eve, Adafactor", "--repeats", "3"])
    assert [row.name for row in options.rows] == ["torch_adamw_fused", "Adafactor", "Eve"]
    assert (options.repeats, options.threads) == (3, 1)
    assert len(json.loads(options.shapes.read_text())) == 569


def test_every_row_has_a_name_of_its_own_and_is_timed_by_default(bench):
    rows = bench.parsed([]).rows
    assert len({row.name for row in rows}) == len(rows) == len(bench.ROWS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "Eva"], "no Eva; there are .*Eve"),
        (["--repeats", "0"], "--repeats"),
        (["--limits", "--threads", "2"], "one thread"),
    ],
)
def test_an_option_that_cannot_be_is_refused(bench, arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.parsed(arguments)
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("module", "row"), [("heavyball", "heavyball_adamw"), ("pytorch_optimizer", "pytorch_optimizer_adafactor")]
)
def test_a_missing_peer_is_an_error_that_names_the_extra(bench, monkeypatch, shapes_file, module, row):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"{module} is not installed: pip install '.\[bench\]'"):
        bench.main(["--shapes", shapes_file, "--only", row])


def test_a_run_gives_one_line_per_row_and_says_what_happened(bench, shapes_file, capsys):
    bench.main(["--shapes", shapes_file, "--only", "torch_adafactor,Eve", "--repeats", "1", "--markdown"])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    assert [row[0] for row in rows] == ["`torch_adamw_fused`", "`torch_adafactor`", "`Eve`"]
    assert rows[0][2:4] == ["1.00", "1.00–1.00"]
    assert lines[-1] == "3 optimizers timed"


def test_a_missed_limit_ends_with_1_and_names_row_and_value(bench, shapes_file, capsys):
    with pytest.raises(SystemExit, match="1"):
        bench.main(["--shapes", shapes_file, "--only", "Adafactor", "--repeats", "1", "--limits"])
    assert "Adafactor state bytes" in capsys.readouterr().out.splitlines()[-1]


def test_state_is_what_the_optimizer_keeps_beside_parameters_and_gradients(bench, steps, stage):
    candidate = steps.Candidate(bench.UNIT, stage)
    candidate.warm_up()
    step_counts = 4 * len(SHAPES)
    assert candidate.state_bytes() == pytest.approx((8 * NUM_ELEMENTS + step_counts) / NUM_ELEMENTS)


def test_operations_are_counted_without_views_and_reads(steps):
    with steps.Counter() as counter:
        matrix = torch.ones(2, 3).t()
        (matrix @ matrix.t()).sum().item()
    assert (counter.num_ops, counter.num_reads) == (3, 1)  # ones, matrix product, sum


def test_counts_and_times_are_averages_over_the_period(bench, steps, stage):
    row = bench.Row("adamw", "torch.optim", "AdamW", {"fused": True}, period=4)
    once, four = (steps.Candidate(each, stage) for each in (bench.UNIT, row))
    for candidate in (once, four):
        candidate.warm_up()
    assert once.counts() == four.counts()
    assert four.optimizer.state[stage.params[0]]["step"] == 8


def test_an_optimizer_that_moves_nothing_is_refused(bench, steps, stage):
    row = bench.Row("still", "torch.optim", "SGD", {"lr": 0.0})
    with pytest.raises(ValueError, match="still left 4 of 4 parameters"):
        steps.Candidate(row, stage).warm_up()
