"""A short form of scripts/check_statistics: cells of each kind; the long one is for people."""

import runpy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from asr.compare.statistics.pairs import SeedDifferences
from asr.compare.statistics.power import Design

FOLDER = Path(__file__).parents[3] / "scripts" / "check_statistics"
NAMES = ("cells", "means", "pairs", "reports", "seeds", "targets", "tuning", "worlds")


@pytest.fixture(scope="module")
def check():
    """Return the modules of the script by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield SimpleNamespace(**{name: import_module(name) for name in NAMES})


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 20])
@pytest.mark.parametrize("sds", [(0.01, 0.03, 0.0), (0.0, 0.03, 0.0), (0.01, 0.03, 0.03)], ids=str)
def test_equal_systems_are_told_apart_in_at_most_5_of_100_comparisons(check, num_seeds, sds):
    tables = check.pairs.pair_tables(check.worlds.World(*sds, num_seeds), 3000, [0.15, 0.15])
    found = check.cells.wrong(tables.apart[:, 0])
    assert found.holds
    # and not never
    assert found.share > 0.01


@pytest.mark.parametrize("num_systems", [3, 8])
@pytest.mark.parametrize("num_seeds", [3, 5])
@pytest.mark.parametrize("differing", ["none", "two groups", "all but two, far", "some, hardly"])
def test_all_verdicts_and_intervals_of_a_table_are_right_together(check, num_seeds, num_systems, differing):
    """With Holm's verdicts and level α/M, 92 of 100 tables of three systems were right if one was far off."""
    wers = check.pairs.true_wers(num_systems)[differing]
    tables = check.pairs.pair_tables(check.worlds.World(0.01, 0.03, 0.0, num_seeds, 200), 500, wers)
    assert tables.any_wrong.holds
    assert tables.contradictions.share == 0


@pytest.mark.parametrize("noisy", [1, 2])
@pytest.mark.parametrize(("num_systems", "num_seeds"), [(3, 5), (8, 3), (8, 5)])
def test_systems_that_vary_ten_times_as_much_do_not_raise_false_alarms(check, num_systems, num_seeds, noisy):
    """The two that are equal vary most, and all others are far off."""
    wers = check.pairs.true_wers(num_systems)["all but two, far"]
    tables = check.pairs.pair_tables(check.worlds.World(0.01, 0.03, 0.0, num_seeds, noisy=noisy), 800, wers, seed=1)
    assert tables.any_wrong.holds


def test_systems_that_vary_more_do_not_raise_false_alarms_on_a_large_test_set(check):
    """Where the noisy pair's variance had the degrees of freedom of all systems, 8 of 100 tables were wrong."""
    world = check.worlds.World(0.003, 0.03, 0.0, 3, 50, noisy=2, words_each=20_000)
    wers = [0.15, *(0.15 + 0.1 * step for step in range(7))]
    assert check.pairs.pair_tables(world, 800, wers, seed=1).any_wrong.holds


@pytest.mark.parametrize(("num_speakers", "sizes"), [(4, "equal"), (16, "log-normal"), (100, "one long")])
@pytest.mark.parametrize("num_systems", [2, 8])
def test_few_speakers_and_speakers_of_different_sizes_do_not_raise_false_alarms(
    check, num_systems, num_speakers, sizes
):
    """Of eight systems on four speakers with tastes, 9 of 100 tables had one."""
    world = check.worlds.World(0.01, 0.03, 0.03, 5, num_speakers, sizes)
    assert check.pairs.pair_tables(world, 500, [0.15] * num_systems, seed=3).any_wrong.holds
    assert check.means.misses(world, 4000, [0.15]).holds


@pytest.mark.parametrize("num_systems", [2, 4, 8])
@pytest.mark.parametrize("step", [0.0, 0.003])
def test_the_mean_of_the_best_system_is_in_its_interval(check, num_systems, step):
    wers = [0.15 + step * place for place in range(num_systems)]
    world = check.worlds.World(0.03, 0.03, 0.03, 10)
    assert check.means.misses(world, 1000, wers).holds
    if (num_systems, step) == (8, 0.0):
        assert not check.means.misses(world, 1000, wers, corrected=False).holds


@pytest.mark.parametrize("num_seeds", [2, 3, 10])
@pytest.mark.parametrize("noisy", [0, 1])
def test_verdicts_against_the_baseline_alone_are_right_together(check, num_seeds, noisy):
    """The baseline, which is one of two equal systems, may vary more."""
    world = check.worlds.World(0.01, 0.03, 0.0, num_seeds, noisy=noisy)
    tables = check.pairs.pair_tables(world, 1000, check.pairs.true_wers(8)["all but two, far"], only_with=0)
    assert len(tables.pairs) == 7
    assert tables.any_wrong.holds


@pytest.mark.parametrize("censored", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(("num_systems", "num_seeds"), [(2, 2), (2, 3), (2, 10), (4, 3)])
def test_times_of_equal_systems_are_told_apart_in_5_of_100_at_most(check, num_systems, num_seeds, censored):
    numbers = check.seeds.Numbers("log time", censored=censored)
    assert check.seeds.any_wrong(numbers, 2000, [0.0] * num_systems, num_seeds).holds


@pytest.mark.parametrize("apart", [-0.5, 0.5])
@pytest.mark.parametrize("censored", [0.3, 0.6])
def test_systems_that_never_arrive_do_not_raise_false_alarms_among_others(check, censored, apart):
    numbers = check.seeds.Numbers("log time", censored=censored)
    assert check.seeds.any_wrong(numbers, 2000, [0.0] * 3 + [apart] * 3, 3).holds


@pytest.mark.parametrize("noisy", [0, 1])
def test_all_verdicts_and_intervals_of_times_are_right_together_if_one_system_is_far_off(check, noisy):
    """With Holm's verdicts and intervals of the level that his last step leaves, 7 of 100 were not."""
    assert check.seeds.any_wrong(check.seeds.Numbers("log time", noisy=noisy), 2000, [0.0, 0.0, 20.0], 5).holds


@pytest.mark.parametrize("grain", [0.0005, 0.01])
def test_wers_at_equal_time_that_come_in_whole_words_do_not_raise_false_alarms(check, grain):
    numbers = check.seeds.Numbers("WER", sd=0.01, grain=grain)
    found = check.seeds.any_wrong(numbers, 2000, [0.0] * 3, 5)
    assert found.holds
    assert found.share > 0.005


def test_numbers_of_runs_are_simulated_as_a_report_compares_them(check):
    drawn = check.seeds.Numbers("log time").drawn(200, [0.0] * 4, 3)
    verdicts = [
        any(one.verdict == "better" for one in SeedDifferences(named(table), 0.95, 1e-3).pairs()) for table in drawn
    ]
    assert check.seeds.any_wrong(check.seeds.Numbers("log time"), 200, [0.0] * 4, 3).share >= np.mean(verdicts) > 0


def named(table):
    return {name: dict(enumerate(row)) for name, row in zip("abcd", table.tolist(), strict=True)}


def test_one_test_of_all_systems_raises_no_false_alarm_if_some_vary_more(check):
    *_, row = check.reports.omnibus_rows(300, [5], [8])
    assert row["noisy"] == 2
    assert row["said to differ"].holds
    assert row["by F"].share > 0.07


@pytest.mark.parametrize("num_seeds", [2, 4, 9])
def test_one_test_of_all_systems_raises_no_false_alarm_with_few_seeds_or_ties(check, num_seeds):
    """Of three systems over four and nine seeds, an approximation by χ² raised them in 6.8 and 5.7 of 100."""
    rows = list(check.reports.omnibus_rows(300, [num_seeds], [3]))
    assert {row["ties"] for row in rows} == ({"none"} if num_seeds > 4 else {"none", "many"})
    assert all(row["said to differ"].holds for row in rows)


def test_runs_that_learn_nothing_do_not_raise_false_alarms(check):
    """With verdicts on systems of which no run learned, 33 of 100 comparisons of three equal ones had a false one."""
    rows = [
        *check.reports.failure_rows(60, [3], [2, 3], kinds=["nothing"]),
        *check.reports.failure_rows(20, [3], [3], [0.5], ["babble"]),
    ]
    assert len(rows) == 5
    assert all(row["found different"].holds for row in rows)


def test_runs_that_understand_nothing_rarely_seem_to_have_learned(check):
    nothing, little = check.reports.dependence_rows(100, [100], [0.0, 0.1])
    assert nothing["learned"].holds
    assert little["learned"].share > 0.9


def test_systems_that_fail_equally_often_are_not_said_to_differ(check):
    """Against the most reliable one alone, chosen after the runs, they were in 6 to 7 of 100 comparisons."""
    rows = list(check.reports.reliability_rows(1000, [10, 20], [2, 8]))
    assert all(row["found different"].holds for row in rows)
    assert max(row["found different"].share for row in rows) > 0.005


def test_where_speakers_are_unknown_no_verdict_is_without_a_warning(check):
    rows = list(check.reports.unknown_rows(40))
    assert rows[0]["found different"].share > 0.2  # too sure
    assert all(row["found different without a warning"].share == 0 for row in rows)


def test_one_better_system_of_eight_is_found_with_three_seeds(check):
    """A paired t-test of each pair alone has two degrees of freedom, and tells it from another in 17 of 100."""
    wers = [0.15, 0.12, *[0.15] * 6]
    tables = check.pairs.pair_tables(check.pairs.POWER, 300, wers)
    assert tables.apart[:, tables.true != 0].any(-1).mean() > 0.35
    baseline = check.pairs.pair_tables(check.pairs.POWER, 300, wers, only_with=0)
    given = tables.apart[:, tables.pairs.index((0, 1))]
    assert baseline.apart[:, 0].mean() > given.mean() + 0.05


@pytest.mark.parametrize("num_systems", [2, 8])
@pytest.mark.parametrize("num_seeds", [3, 5])
def test_the_difference_that_is_said_to_be_found_in_80_of_100_is(check, num_systems, num_seeds):
    world = replace(check.pairs.POWER, num_seeds=num_seeds)
    pairs = num_systems * (num_systems - 1) // 2
    variance = 2 * (world.seed_sd**2 + 0.5**2 / world.words.sum())
    difference = Design(variance, 0.0, num_systems, num_seeds, 1000.0, 0.05 / pairs).detectable()
    tables = check.pairs.pair_tables(world, 400, [0.5 - difference, *[0.5] * (num_systems - 1)])
    assert (tables.found.p_values[:, 0] <= 0.05 / pairs).mean() == pytest.approx(0.8, abs=0.07)


@pytest.mark.parametrize(("num_seeds", "num_systems"), [(2, 8), (3, 2), (5, 8), (20, 2)])
def test_studies_of_their_own_hold_the_luck_of_tuning(check, num_seeds, num_systems):
    world = replace(check.tuning.TUNED, num_seeds=num_seeds)
    assert check.cells.wrong(check.tuning.told_apart(world, 600, num_systems, num_seeds)).holds
    if num_seeds == 20:
        assert check.tuning.told_apart(world, 1000, num_systems, 1).mean() > 0.12


def test_cells_are_marked_and_decide_the_exit_code(check, capsys):
    good, bad = check.cells.wrong(np.arange(100) < 10), check.cells.wrong(np.arange(1000) < 100)
    assert (good.holds, bad.holds) == (True, False)
    assert not check.cells.Cell(0.2, 1000, at_least=0.35).holds
    assert [check.cells.Cell(share, 100, at_most=0.0).holds for share in (0.0, 0.01)] == [True, False]
    failed = check.cells.print_table("Title", [{"a": 1, "b": good}, {"a": 2, "b": bad}])
    assert failed == ["Title: | 2 | 10.0 ! |"]
    assert capsys.readouterr().out.splitlines()[-4:] == ["| a | b |", "|---|---|", "| 1 | 10.0 |", "| 2 | 10.0 ! |"]


@pytest.mark.parametrize("num", [5, 20, 40, 60])
def test_cells_of_few_comparisons_are_not_marked_for_what_chance_often_does(check, num):
    """Three normal standard errors marked 2 wrong ones of 5, which 2 of 100 simulations have if 5 % are wrong."""
    counts = np.arange(num + 1)
    marked = [not check.cells.Cell(count / num, num, at_most=0.05).holds for count in counts]
    assert 0 < stats.binom.pmf(counts, num, 0.05)[marked].sum() < 0.00135
    short = [not check.cells.Cell(count / num, num, at_least=0.9).holds for count in counts]
    assert 0 < stats.binom.pmf(counts, num, 0.9)[short].sum() < 0.00135


@pytest.mark.parametrize(("share", "code", "end"), [(0.0, 0, "Everything holds."), (1.0, 1, "| 100.0 ! |")])
def test_the_script_prints_all_tables_and_ends_with_the_answer(check, monkeypatch, capsys, share, code, end):
    row = {"found different": check.cells.Cell(share, 100, at_most=0.05)}
    for module in (check.means, check.pairs, check.reports, check.seeds, check.targets, check.tuning):
        for name in (name for name in vars(module) if name.endswith("_rows")):
            monkeypatch.setattr(module, name, lambda *_, **__: [row])
    main = runpy.run_path(str(FOLDER / "__main__.py"))["main"]
    assert main(10) == code
    out = capsys.readouterr().out
    assert "All pairs\n\n| found different |\n" in out
    assert out.splitlines()[-1].endswith(end)


@pytest.mark.parametrize("place", range(4))
def test_a_target_that_half_of_the_runs_miss_narrowly_decides_nothing(check, place):
    rng, race = np.random.default_rng(0), check.targets.RACES[place]
    found = [race.found(rng, [0.0, 0.0]) for _ in range(150)]
    assert 0.4 < np.mean([reached for *_, reached in found]) < 0.7
    assert check.cells.wrong([bool(by_wer | by_updates) for by_wer, by_updates, _ in found]).holds


def test_an_optimizer_with_half_of_the_loss_is_found_better_by_both_outcomes(check):
    rng = np.random.default_rng(0)
    found = [check.targets.RACES[0].found(rng, [0.0, 0.7]) for _ in range(20)]
    assert np.mean([check.targets.PAIR in by_wer for by_wer, *_ in found]) > 0.9
    assert np.mean([check.targets.PAIR in by_updates for _, by_updates, _ in found]) > 0.9


def test_counts_of_a_table_are_compared_without_more_false_verdicts(check):
    """Of single runs and of runs with seeds; found different also where they are."""
    rows = list(check.reports.table_of_counts_rows(60, speakers=(40,)))
    assert len(rows) == 4
    assert all(row["found different"].holds for row in rows)
    world = check.worlds.World(0.0, 0.03, 0.0, 1)
    errors = world.errors(np.random.default_rng(0), 1, np.array([0.1, 0.2]))[0]
    assert check.reports.compared_counts(errors, world.words).pairs[0].verdict == "better"
