"""A short form of scripts/check_statistics: cells of each kind; the long one is for people."""

import runpy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from werdict.statistics.judge import Judge

FOLDER = Path(__file__).parents[2] / "scripts" / "check_statistics"
NAMES = ("cells", "others", "power", "seeds", "tables", "targets", "worlds")


@pytest.fixture(scope="module")
def check():
    """Return the modules of the script by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield SimpleNamespace(**{name: import_module(name) for name in NAMES})


@pytest.mark.parametrize(
    ("num_seeds", "num_systems", "num"), [(3, 2, 1000), (5, 2, 1000), (3, 5, 600), (5, 10, 400), (10, 4, 400)]
)
def test_verdicts_intervals_and_the_set_of_the_best_are_right_in_each_world(check, num_seeds, num_systems, num):
    rows = list(check.tables.claim_rows(num, [(num_seeds, num_systems)]))
    assert len(rows) >= 25
    assert not [row for row in rows if not check.cells.row_holds(row)]
    if num_systems == 2:
        assert next(row for row in rows if row["world"] == "equal")["any false verdict"].share > 0.01  # and not never


def test_where_only_one_system_fails_its_mean_cannot_be_estimated(check):
    """What the claims exclude; reports give the share of failures instead."""
    *_, row = check.tables.excluded_rows(200, [(5, 10)])
    assert row["any false verdict"].share > 0.2


def test_one_better_system_of_ten_is_found(check):
    rows = list(check.power.target_rows(125))
    assert [row["seeds"] for row in rows] == [5, 9, 18]
    assert all(row["found"].holds for row in rows)


def test_other_methods_find_fewer_or_are_wrong_more_often(check):
    ten, rng = check.power.TEN, np.random.default_rng(0)
    system = ten.systems[0]
    unstable = replace(ten, systems=[*ten.systems[1:], replace(system, rate=0.05, seed_sd=1.0)])
    equal, wild, far = (
        world.contrasts(world.errors(rng, 20)).values for world in (ten, unstable, check.power.better(ten, 0.9))
    )
    assert np.mean([check.power.bootstrap(table).any() for table in equal]) > 0.05
    assert np.mean([check.power.dunnett(table)[:-1].any() for table in wild]) < 0.2
    assert check.power.dunnett(far[0])[0]
    assert check.power.games_howell(far[0])[0]


def test_the_difference_that_is_said_to_be_found_in_80_of_100_is(check):
    rows = list(check.power.seed_rows(600))
    assert [row["found"].share for row in rows] == pytest.approx([0.8] * len(rows), abs=0.05)


def test_two_looks_find_nearly_as_much_with_fewer_runs(check):
    *_, row = check.power.look_rows(60)
    two, ten = row["differences found by two looks"].share, row["by ten seeds"].share
    assert ten - 0.1 < two <= 1
    assert int(row["runs, % of ten seeds"]) < 85
    assert row["any false verdict of two looks"].holds


def test_where_seeds_vary_alike_in_points_ratios_find_less(check):
    ratio, points = (float(next(check.power.scale_rows(40))[f"found of 9, {scale}"]) for scale in ("ratio", "points"))
    assert ratio < points - 1


def test_arrays_are_judged_as_a_report_judges_named_systems(check):
    world = check.worlds.World([check.worlds.System(rate) for rate in (0.3, 0.3, 0.15, 0.2)], 5)
    contrasts = world.contrasts(world.errors(np.random.default_rng(0), 30))
    tables, names = check.tables.judge(contrasts), "abcd"

    def named(values):
        return {name: dict(enumerate(row)) for name, row in zip(names, values, strict=True)}

    for place in range(30):
        resolution = dict(zip(names, contrasts.resolution[place], strict=True))
        alpha, units = check.cells.ALPHA, contrasts.effective_units
        judge = Judge(named(contrasts.values[place]), resolution, alpha, "ratio", named(contrasts.moves[place]), units)
        found = judge.from_baseline("a")
        signs = [{"better": -1, "worse": 1}.get(found[name].verdict, 0) for name in "bcd"]
        assert signs == tables.verdicts()[place].tolist()
        assert [found[name].low for name in "bcd"] == pytest.approx(np.exp(tables.decisions.low[place]))
        assert judge.may_be_best() == {name for name, is_in in zip(names, tables.best[0][place], strict=True) if is_in}


def test_times_and_wers_at_equal_time_raise_no_false_alarms(check):
    """Where some never reach the target too, where the baseline varies more, and where WERs come in whole words."""
    rows = [*check.seeds.time_rows(500, (3,), (2, 10)), *check.seeds.time_rows(500, (5,), (5,))]
    assert not [row for row in rows if not check.cells.row_holds(row)]
    assert max(row["any false verdict"].share for row in rows) > 0.01


def test_single_runs_raise_no_false_alarms_over_speakers(check):
    assert all(map(check.cells.row_holds, check.others.single_rows(600)))


def test_runs_that_understand_nothing_rarely_seem_to_have_learned(check):
    nothing, little = check.others.dependence_rows(100, [100], [0.0, 0.1])
    assert nothing["learned"].holds
    assert little["learned"].share > 0.9


def test_systems_that_fail_equally_often_are_not_said_to_differ(check):
    rows = list(check.others.reliability_rows(1000, [10, 20], [2, 8]))
    assert all(map(check.cells.row_holds, rows))
    assert max(row["found different"].share for row in rows) > 0.002


def test_where_speakers_are_unknown_verdicts_are_too_sure(check):
    assert next(iter(check.others.unknown_rows(100)))["found different"].share > 0.1


@pytest.mark.parametrize(("num_seeds", "num_systems"), [(3, 2), (5, 8), (20, 2)])
def test_studies_of_their_own_hold_the_luck_of_tuning(check, num_seeds, num_systems):
    each = check.others.tuned(400, num_systems, num_seeds, num_seeds)
    assert check.cells.cell(each, check.cells.ALPHA).holds
    if num_seeds == 20:
        assert check.others.tuned(400, num_systems, num_seeds, 1).mean() > 0.1


def test_an_entry_that_equals_the_baseline_is_seldom_called_different(check):
    rows = list(check.targets.race_rows(200))
    assert all(int(row["runs that reach the target %"]) > 80 for row in rows)
    assert all(map(check.cells.row_holds, rows))


def test_an_entry_with_three_quarters_of_the_errors_and_updates_is_found_by_both_outcomes(check):
    by_wer, by_updates, _ = check.targets.Race(0.05, 0.75).verdicts(30, 0)
    assert (by_wer == -1).mean() > 0.9
    assert (by_updates == -1).mean() > 0.9


def test_cells_are_marked_and_decide_the_exit_code(check, capsys):
    cell, events = check.cells.cell, np.arange(1000)
    good, bad = cell(events < 34, 0.025), cell(events < 36, 0.025)  # two standard errors are 0.99 %
    assert (good.holds, bad.holds) == (True, False)
    assert [cell(events < found, at_least=0.8).holds for found in (774, 775)] == [False, True]
    failed = check.cells.print_table("Title", [{"a": 1, "b": good}, {"a": 2, "b": bad}])
    assert failed == ["Title: | 2 | 3.6 ! |"]
    assert capsys.readouterr().out.splitlines()[-4:] == ["| a | b |", "|---|---|", "| 1 | 3.4 |", "| 2 | 3.6 ! |"]


@pytest.mark.parametrize(("share", "code", "end"), [(0.0, 0, "Everything holds."), (1.0, 1, "| 100.0 ! |")])
def test_the_script_prints_all_tables_and_ends_with_the_answer(check, monkeypatch, capsys, share, code, end):
    row = {"found different": check.cells.Cell(share, 100, at_most=0.05)}
    for module in vars(check).values():
        for name in (name for name in vars(module) if name.endswith("_rows")):
            monkeypatch.setattr(module, name, lambda *_, **__: [row])
    main = runpy.run_path(str(FOLDER / "__main__.py"))["main"]
    assert main(10) == code
    out = capsys.readouterr().out
    assert "What is claimed\n\n| found different |\n" in out
    assert out.splitlines()[-3].endswith(end)
