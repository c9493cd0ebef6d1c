"""The toy comparison of the optimizers: its problem, its rows, how an lr is chosen, and what it writes."""

import importlib
import inspect
import math
from pathlib import Path

import pytest
import torch
from torch.optim import Optimizer

import optim


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    num_threads = torch.get_num_threads()
    yield importlib.import_module("toy_magnitudes")
    torch.set_num_threads(num_threads)


@pytest.fixture
def row(toy):
    return {row.name: row for row in toy.ROWS}


@pytest.fixture
def made_up(toy):
    """Trainings whose last loss is lowest at lr 0.03, and what was asked for."""

    def trainer(tasks):
        asked.extend(tasks)
        return [toy.Trained([100.0, 1.0 + abs(math.log((task.lr or 1.0) / 0.03))], 0.0) for task in tasks]

    asked = []
    return trainer, asked


def test_every_optimizer_that_is_exported_has_a_row(toy):
    exported = {name: getattr(optim, name) for name in optim.__all__ if inspect.isclass(getattr(optim, name))}
    ours = {name for name, cls in exported.items() if issubclass(cls, Optimizer)}
    # what the HeavyBall family does to such matrices is in compare_convergence.py, but for SOAP, which is made for them
    family = {name for name, cls in exported.items() if issubclass(cls, optim.Composable)} - {"SOAP"}
    not_rules = {"Chain", "Combined", "StepInBackward"}
    assert {row.optimizer for row in toy.ROWS if row.module == "optim"} == ours - not_rules - family


def test_magnitudes_differ_between_dimensions_but_not_between_batches(toy):
    _, batches = importlib.import_module("toy_training").make_problem(0)
    for side, scale in ((0, 100), (1, 1)):
        magnitudes = torch.stack([batch[side] for batch in batches]).square().mean((0, 1, 2)).sqrt() / scale
        assert magnitudes.log().mean().abs() < 0.5
        assert 0.7 < magnitudes.log().std() < 1.3
    assert len(batches) == 20
    assert batches[0][0].shape == batches[0][1].shape == (4, 2, 100)


def test_a_seed_decides_every_number(toy):
    for one in toy.ROWS:
        first, again, other = (toy.train(toy.Task(one, one.lr, seed, 1)).curve for seed in (1, 1, 2))
        assert first == again
        assert first != other


def test_losses_are_smoothed_and_start_at_the_first(toy, row):
    network, batches = importlib.import_module("toy_training").make_problem(3)
    losses = [100 * (network(x) - y).square().mean().item() for x, y in batches]
    curve = toy.train(toy.Task(row["Eve"], 1e-30, 3, 1)).curve
    smoothed = losses[0]
    for loss, shown in zip(losses, curve, strict=True):
        smoothed = 0.95 * smoothed + 0.05 * loss
        assert shown == pytest.approx(smoothed, rel=1e-3)


def test_an_independent_run_of_the_reference_problem_is_met(toy, row):
    """Another script, written apart from this one, had 5.32e3 at seed 42 after 10 epochs of Eve with lr 0.003."""
    assert toy.train(toy.Task(row["Eve"], 3e-3, 42, 10)).curve[-1] == pytest.approx(5.32e3, rel=0.01)


def test_a_training_that_diverges_has_an_infinite_loss(toy, row):
    curve = toy.train(toy.Task(row["AdamW"], 1e30, 0, 2)).curve
    assert len(curve) == 40
    assert math.isfinite(curve[0])
    assert curve[-1] == math.inf
    assert toy.average([1.0, curve[-1]]) == math.inf


def test_seeds_are_averaged_geometrically(toy):
    assert toy.average([1.0, 100.0]) == pytest.approx(10.0)


def test_the_grid_grows_until_the_best_lr_is_inside(toy, row, made_up):
    trainer, asked = made_up
    grids = toy.search(trainer, [row["AdamW"], row["Cain"], row["Adafactor, relative step"]], 2, 5)
    assert list(grids) == ["AdamW", "Cain"]
    assert list(grids["Cain"]) == [0.003, 0.009, 0.03, 0.09, 0.3]
    assert list(grids["AdamW"]) == [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]
    assert toy.best_lr(grids["AdamW"]) == 0.03
    assert {task.seed for task in asked} == {0, 1}


def test_the_grid_ends_where_everything_diverges(toy, row):
    grids = toy.search(lambda tasks: [toy.Trained([math.inf], 0.0)] * len(tasks), [row["Cain"]], 1, 5)
    assert list(grids["Cain"]) == pytest.approx([0.0003, 0.0009, 0.003, 0.009, 0.03, 0.09, 0.3])


def test_what_is_reported_was_trained_on_other_seeds_than_the_choice(toy, row, made_up):
    trainer, asked = made_up
    rows = [row["AdamW"], row["Cain"], row["Adafactor, relative step"]]
    grids = {"AdamW": {0.001: 2.0, 0.003: 1.0}, "Cain": {0.03: 1.0, 0.09: 2.0}}
    lines = toy.report(trainer, rows, grids, 2, 5)
    assert [(line.row.name, line.lr, line.choice) for line in lines] == [
        ("AdamW", 0.001, "usual"),
        ("AdamW", 0.003, "best"),
        ("Cain", 0.03, "usual, best"),
        ("Adafactor, relative step", None, "own steps"),
    ]
    assert {task.seed for task in asked} == {100, 101}


def test_a_missing_optimizer_is_named(toy, monkeypatch, tmp_path, capsys):
    monkeypatch.delattr(optim, "Cain")
    with pytest.raises(SystemExit) as left:
        toy.main(["--only", "Cain", "--out", str(tmp_path)])
    assert left.value.code == 2
    assert "optim exports no Cain, which row 'Cain' needs; choose rows with --only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "Eva"], "no rows ['Eva']; there are Adafactor, AdamW"),
        (["--jobs", "0"], "--jobs"),
        (["--seeds", "101"], "at most 100"),
    ],
)
def test_a_wrong_command_line_says_what_is_allowed(toy, capsys, arguments, message):
    with pytest.raises(SystemExit) as left:
        toy.parsed(arguments)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_tables_and_a_picture_come_out_and_two_jobs_change_no_number(toy, tmp_path, capsys):
    pages = []
    for num_jobs in ("1", "2"):
        out = tmp_path / num_jobs
        arguments = ["--only", "AdamW,Adafactor", "--seeds", "1", "--epochs", "2", "--jobs", num_jobs, "--markdown"]
        toy.main([*arguments, "--out", str(out)])
        printed = capsys.readouterr().out
        assert printed.splitlines()[-1] == f"3 optimizers compared: {out / 'losses.png'}, {out / 'table.md'}"
        assert (out / "losses.png").stat().st_size > 10_000
        page = (out / "table.md").read_text()
        assert page in printed
        pages.append([line.split("|")[1:6] for line in page.splitlines() if line.startswith("|")])
    assert pages[0] == pages[1]
    assert [cell.strip() for cell in pages[0][2][:3]] == ["AdamW", "0.001", "usual"]
