"""Estimates, contrasts, and verdicts, most by hand; simulations are in test_check_statistics."""

import math
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from tests.werdict.made_comparisons import compare_runs, run_of
from tests.werdict.test_results import sclite
from werdict.runs import Texts
from werdict.statistics.contrasts import (
    FOCAL_SHARE,
    MOST_SHARE,
    MOST_TIMES_TYPICAL,
    Contrasts,
    decide,
    holm,
    may_be_best,
)
from werdict.statistics.estimate import Estimate, effective_number, estimate, matched_pairs
from werdict.statistics.judge import Judge, detectable, on_scale, reliabilities, seeds_to_find


def test_two_seeds_and_two_speakers_by_hand():
    """WERs .15 and .05. Without the first speaker .1 and 0, without the second .2 and .1: moves of .05."""
    found = estimate(np.array([[4, 2], [2, 0]]), np.array([20, 20]))
    assert found.mean == pytest.approx(0.1)
    assert found.seed_variance == pytest.approx(0.005 / 2)
    assert found.test_variance == pytest.approx((0.05 * 0.05 + 0.05 * 0.05) / 2)
    # Student's t with one degree of freedom is Cauchy's distribution: half of it lies between -1 and 1
    assert found.half_width(0.5) == pytest.approx(math.sqrt(0.0025 + 0.0025))
    assert found.p_value() == pytest.approx(1 - 2 / math.pi * math.atan(0.1 / math.sqrt(0.005)), rel=1e-6)


def test_speakers_of_different_sizes_are_left_out_one_by_one():
    errors, words = np.array([7, 2, 0, 5]), np.array([60, 10, 20, 10])
    found = estimate(errors[None], words)
    moved = [np.delete(errors, u).sum() / np.delete(words, u).sum() - 0.14 for u in range(4)]
    assert found.test_variance == pytest.approx(3 / 4 * np.square(moved).sum())
    assert found.effective_units == pytest.approx(100**2 / (3600 + 100 + 400 + 100))
    assert effective_number(np.full(7, 30)) == pytest.approx(7)


def test_many_estimates_at_once_are_those_of_each_alone():
    errors = np.random.default_rng(0).integers(-3, 9, (4, 3, 5))
    words = np.array([10, 20, 5, 0, 9])
    together = estimate(errors, words)
    for index, one in enumerate(errors):
        alone = estimate(one, words)
        for name in ("mean", "seed_variance", "test_variance"):
            assert getattr(together, name)[index] == pytest.approx(getattr(alone, name))
        assert together.p_value()[index] == pytest.approx(alone.p_value())


def test_the_p_value_is_where_the_interval_ends_at_zero():
    found = estimate(np.array([[4, 2, 5], [2, 0, 2], [3, 3, 3]]), np.array([10, 30, 20]))
    assert found.half_width(found.p_value()) == pytest.approx(abs(found.mean))


def test_no_difference_has_p_one_and_is_not_certain():
    found = estimate(np.zeros((3, 4), np.int64), np.full(4, 25))
    assert found.p_value() == pytest.approx(1)
    assert found.half_width(0.05) >= 1 / 100  # one word of the set


def test_seeds_that_agree_by_chance_are_not_certainty():
    """Two seeds, twice three words of difference: rounding to words alone allows as much."""
    found = estimate(np.array([[1, 1, 1, 0], [0, 1, 1, 1]]), np.full(4, 25))
    assert found.p_value() > 0.05


def test_one_seed_speaks_of_the_test_set_alone():
    errors, words = np.array([[4, 2, 7]]), np.array([10, 30, 20])
    found = estimate(errors, words)
    moves = (errors[0] - errors.sum() / 60 * words) / (60 - words)
    freedom = 60**2 / 1400 - 1
    assert found.half_width(0.05) == pytest.approx(stats.t.isf(0.025, freedom) * math.sqrt(2 / 3 * (moves**2).sum()))


def test_four_speakers_are_not_certain_of_a_difference_that_is_equal_on_them_by_chance():
    """What is left after the randomness of single runs is negative here; of up to twelve speakers the whole stays."""
    errors, words = np.array([[2, 0, 1, 1], [0, 2, 1, 1], [1, 1, 2, 0]]), np.full(4, 25)
    moves = (errors.mean(0) - 1) / 75
    assert estimate(errors, words).test_variance == pytest.approx(max(3 / 4 * np.square(moves).sum(), 1 / 100**2))


@pytest.mark.parametrize(("num_speakers", "share"), [(8, 1), (12, 1), (24, 1 / 2), (48, 1 / 4)])
def test_the_more_speakers_the_less_stays_of_a_variance_that_seeds_do_not_share(num_speakers, share):
    """Each seed errs more on some speakers and less on others, and the other seed on none of these."""
    errors = np.tile([[2, 0, 1, 1], [1, 1, 2, 0]], num_speakers // 4)
    moves = (errors.mean(0) - 1) / (25 * (num_speakers - 1))
    whole = (num_speakers - 1) / num_speakers * np.square(moves).sum()
    assert estimate(errors, np.full(num_speakers, 25)).test_variance == pytest.approx(share * whole)


def made(num_systems: int, num_seeds: int, num: int = 2000, factor: float = 1.0) -> np.ndarray:
    """Values of variance 1; the first system's seeds vary more by a factor."""
    values = np.random.default_rng(0).normal(size=(num, num_systems, num_seeds))
    values[:, 0] *= factor
    return values


def test_speakers_who_hardly_differ_leave_the_paired_t_test():
    values = made(2, 5, num=20)
    moves = np.random.default_rng(1).normal(0, 1e-6, (20, 2, 5, 30))
    found = Contrasts(values, 1e-9, moves, 30.0).estimate(0, 1)
    assert found.p_value() == pytest.approx(stats.ttest_rel(values[:, 0], values[:, 1], axis=-1).pvalue, rel=1e-4)


def test_an_unstable_system_does_not_raise_the_variances_of_others():
    own = Contrasts(made(8, 5, factor=10.0), 1e-9).own
    assert own[:, 0].mean() == pytest.approx(100, rel=0.1)
    assert own[:, 1:].mean() == pytest.approx(1, rel=0.25)


def test_a_common_part_of_each_seed_changes_nothing():
    values = made(5, 4)
    shifted = values + 10 * np.random.default_rng(1).normal(size=(len(values), 1, 4))
    one, other = (Contrasts(each, 1e-9).estimate(2, 0) for each in (values, shifted))
    assert one.mean == pytest.approx(other.mean)
    assert one.seed_variance == pytest.approx(other.seed_variance)
    assert one.seed_freedom == pytest.approx(other.seed_freedom)


@pytest.mark.parametrize(("num_systems", "num_seeds"), [(10, 3), (2, 10)])
def test_with_three_seeds_or_without_a_third_system_nothing_is_borrowed(num_systems, num_seeds):
    contrasts = Contrasts(made(num_systems, num_seeds), 1e-9)
    for noise in contrasts.noise:
        assert noise.variance == pytest.approx(contrasts.own)
        assert np.all(noise.freedom == num_seeds - 1)


def test_what_is_borrowed_is_bounded_and_less_for_the_focal_system():
    focal, other = Contrasts(made(10, 5), 1e-9).noise
    most = MOST_SHARE * 8 * 4
    assert other.freedom.max() <= 4 + most + 1e-9
    assert focal.freedom.max() <= 4 + FOCAL_SHARE * most + 1e-9
    assert np.median(other.freedom) > np.median(focal.freedom) > 4


def test_a_variance_of_many_times_the_typical_one_stands_alone():
    contrasts = Contrasts(made(8, 5, factor=10.0), 1e-9)
    alone = contrasts.own[:, 0] > 3 * MOST_TIMES_TYPICAL * np.median(contrasts.own, -1)
    assert alone.mean() > 0.9
    for noise in contrasts.noise:
        assert noise.variance[alone, 0] == pytest.approx(contrasts.own[alone, 0])
        assert np.all(noise.freedom[alone, 0] == 4)


def test_systems_with_one_value_for_all_seeds_tell_nothing_of_the_others():
    """Three runs that all failed are not three systems that vary little; 4 of 100 tables were wrong at 97.5 %."""
    values = made(6, 5)
    values[:, 3:] = 5.0
    found, alone = Contrasts(values, 1e-9), Contrasts(values[:, :3], 1e-9)
    assert found.own[:, :3].mean() == pytest.approx(1, abs=0.06)
    assert found.noise[1].freedom[:, :3].max() == pytest.approx(alone.noise[1].freedom.max())
    widths = [each.estimate(1, 0).half_width(0.05).mean() for each in (found, alone)]
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def test_values_that_agree_may_still_differ_by_their_resolution():
    found = Contrasts(np.zeros((1, 3, 2)), 0.06).estimate(1, 0)
    assert found.seed_variance == pytest.approx(2 * 0.06**2 / 12 / 2)
    assert found.p_value() == pytest.approx(1)


def test_a_contrast_of_one_seed_speaks_of_the_test_set_alone():
    moves = np.random.default_rng(0).normal(0, 0.1, (1, 3, 1, 6))
    found = Contrasts(np.array([[[1.0], [2.0], [4.0]]]), 1e-9, moves, 6.0).estimate(2, 0)
    jackknife = 5 / 6 * np.square(moves[0, 2, 0] - moves[0, 0, 0]).sum()
    assert found.half_width(0.05) == pytest.approx(stats.t.isf(0.025, 5) * np.sqrt(jackknife))


ALPHA = 0.05


def estimates(means):
    """Differences in per mille, whose standard error is one per mille over five seeds."""
    return [Estimate(np.asarray(mean) / 1000, np.asarray(1e-6), np.asarray(0.0), 5, 4, 40) for mean in means]


def test_holm_by_hand():
    assert holm(np.array([0.04, 0.01, 0.03])).tolist() == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]


def test_verdicts_are_those_of_holm_and_intervals_have_an_equal_share_of_the_level():
    means = [9.0, 5.0, 0.3]
    found = decide(estimates(means), ALPHA)
    p = 2 * stats.t.sf(means, 4)
    assert found.p_values == pytest.approx(p)
    assert found.adjusted == pytest.approx([3 * p[0], 2 * p[1], p[2]])
    half = stats.t.isf(ALPHA / 6, 4) / 1000
    assert found.high == pytest.approx(np.array(means) / 1000 + half)


def test_an_interval_ends_at_0_where_holm_decides_and_bonferroni_does_not():
    given = estimates([30.0, -3.9, 0.5])
    found = decide(given, ALPHA)
    assert (found.adjusted <= ALPHA).tolist() == [True, True, False]
    assert abs(given[1].mean) < given[1].half_width(ALPHA / 3)
    assert found.high[1] == 0
    assert found.low[1] == given[1].mean - given[1].half_width(ALPHA / 3)


def test_an_interval_contains_0_inside_if_and_only_if_the_systems_do_not_differ_significantly():
    means = np.random.default_rng(0).normal(0, 4, (6, 3000))
    found = decide(estimates(means), ALPHA)
    apart = found.adjusted <= ALPHA
    assert 0.1 < apart.mean() < 0.9
    assert ((found.low < 0) & (found.high > 0)).tolist() == (~apart).tolist()


def test_what_is_worse_than_any_other_is_not_best_at_a_one_sided_level():
    """Of three, each is tested against two others, at 2.5 %."""
    limit = 1000 * float(estimates([0.0])[0].half_width(ALPHA))
    just, not_quite = limit + 0.01, limit - 0.01
    against = {"a": estimates([-just, -9.0]), "b": estimates([just, -1.0]), "c": estimates([9.0, 1.0])}
    assert may_be_best(against, ALPHA) == {"a": True, "b": False, "c": False}
    against["b"] = estimates([not_quite, -1.0])
    assert may_be_best(against, ALPHA)["b"]
    assert may_be_best({"alone": []}, ALPHA) == {"alone": True}


WORDS = np.array([40, 25, 35])
ERRORS = np.array([[[4, 2, 9], [0, 1, 0]], [[0, 0, 0], [40, 25, 35]], [[3, 0, 0], [50, 30, 40]]])


def value(errors, words, scale):
    """One run, by hand: a ratio counts half an error and at most all words."""
    return (
        errors.sum() / words.sum()
        if scale == "points"
        else np.log(np.clip(errors.sum(), 0.5, words.sum()) / words.sum())
    )


@pytest.mark.parametrize("scale", ["ratio", "points"])
def test_moves_are_those_of_leaving_each_speaker_out(scale):
    values, moves, _ = on_scale(ERRORS, WORDS, scale)
    for place in np.ndindex(values.shape):
        assert values[place] == pytest.approx(value(ERRORS[place], WORDS, scale))
        for unit in range(3):
            without = value(np.delete(ERRORS[place], unit), np.delete(WORDS, unit), scale)
            assert moves[(*place, unit)] == pytest.approx(without - values[place])


def test_points_are_known_to_one_error_and_ratios_to_one_of_the_errors():
    assert on_scale(ERRORS, WORDS, "points")[2] == pytest.approx([0.01] * 3)
    assert on_scale(ERRORS, WORDS, "ratio")[2] == pytest.approx([1 / 8, 1 / 50.25, 1 / 51.5])


FIRST, SECOND = (1.0, 3.0, 2.0, 6.0), (2.0, 5.0, 4.0, 6.5)


def table(*rows):
    return {name: dict(enumerate(row)) for name, row in zip("abcdefgh", rows, strict=False)}


def judge(values, alpha=0.05, scale="points", **options):
    return Judge(values, dict.fromkeys(values, options.pop("resolution", 1e-6)), alpha, scale, **options)


@pytest.mark.parametrize(("scale", "shown"), [("points", lambda value: value), ("ratio", np.exp)])
def test_two_systems_have_the_paired_t_test_and_its_interval(scale, shown):
    found = judge(table(FIRST, SECOND), 0.1, scale).from_baseline("b")["a"]
    expected = stats.ttest_rel(FIRST, SECOND)
    assert found.p_adjusted == found.p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(shown(end) for end in expected.confidence_interval(0.9)))
    assert (found.verdict, found.value, found.seeds_needed) == ("better", pytest.approx(shown(-1.375)), None)
    back = judge(table(FIRST, SECOND), 0.1).from_baseline("a")["b"]
    assert (back.value, back.verdict) == (1.375, "worse")


def test_each_question_has_its_own_level():
    """One pair of two: the baseline's question is two-sided, that of the best one-sided."""
    values = table(FIRST, SECOND)
    p_value = stats.ttest_rel(FIRST, SECOND).pvalue
    at = judge(values, 0.9 * p_value)
    assert at.from_baseline("b")["a"].verdict == "cannot distinguish"
    assert at.may_be_best() == {"a"}
    assert judge(values, 0.45 * p_value).may_be_best() == {"a", "b"}


def test_only_pairs_with_the_baseline_are_corrected_for():
    rng = np.random.default_rng(0)
    values = table(*(rng.normal(size=5) + mean for mean in (0, 0, 5)))
    every, alone = judge(values, 0.1), judge(values, 0.1).from_baseline("a")
    pairs = {(one.system, one.other): one for one in every.all_pairs()}
    assert [*alone] == ["b", "c"]
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == 3
    assert all(one.value <= 0 for one in pairs.values())
    assert [one.p_value for one in pairs.values()] == sorted(one.p_value for one in pairs.values())
    assert pairs["a", "c"].p_adjusted > alone["c"].p_adjusted
    assert pairs["a", "c"].high - pairs["a", "c"].low > alone["c"].high - alone["c"].low


def test_a_pair_is_compared_on_the_seeds_that_both_have():
    """Only systems with all of these seeds tell how much they vary."""
    values = table(FIRST, SECOND, (0.0, 0.0, 0.0, 0.0))
    values["b"] |= {7: 100.0}
    values["c"] = {seed: 50.0 * seed for seed in (0, 1, 7)}
    found = judge(values).from_baseline("a")
    assert (found["b"].num_seeds, found["c"].num_seeds) == (4, 2)
    assert found["b"].value == pytest.approx(1.375)
    assert found["b"].p_value == pytest.approx(stats.ttest_rel(FIRST, SECOND).pvalue)


def test_what_has_no_seed_in_common_or_one_or_is_unknown_is_not_compared():
    values = {"a": {1: 1.0, 2: 2.0}, "b": {3: 1.0}, "c": {2: 5.0}, "d": {1: 5.0, 2: 5.0}, "e": {1: 5.0, 2: 5.0}}
    given = judge(values, resolution=1e-3, unknown=("d", "e"))
    assert "b" not in given.from_baseline("a")
    assert "e" not in given.from_baseline("d")
    alone = given.from_baseline("a")["c"]
    assert (alone.verdict, alone.value, alone.p_adjusted) == ("one seed: not compared", 3.0, None)
    assert (alone.low, alone.high) == (-np.inf, np.inf)
    assert {"b", "c"} <= given.may_be_best()  # never tested


def test_a_far_system_has_an_interval_and_one_that_is_the_same_does_not_differ():
    found = judge(table((5.0, 6.0, 7.0), (5.0, 6.0, 7.0), (50.0, 54.0, 41.0)), resolution=1e-3).from_baseline("a")
    assert found["b"].p_adjusted == 1
    assert 0 < found["c"].low < found["c"].value < found["c"].high < np.inf


def test_an_open_pair_is_told_what_would_be_found_and_with_how_many_seeds():
    rng = np.random.default_rng(1)
    found = judge(table(*(rng.normal(0.7 * place, 1, 6) for place in range(2))), scale="ratio").from_baseline("a")["b"]
    assert found.verdict == "cannot distinguish"
    assert 0 < found.detectable < 1
    assert found.seeds_needed > 6


def test_single_runs_are_judged_over_speakers():
    moves = {name: {0: shift * np.array([1.0, -1.0, 0.5, -0.5])} for name, shift in (("a", 0.001), ("b", 0.002))}
    given = {"a": {0: 0.1}, "b": {0: 0.2}}
    found = judge(given, moves=moves, effective_units=4.0, has_seeds=False).from_baseline("a")["b"]
    assert (found.verdict, found.seeds_needed) == ("worse", None)
    assert judge(given, moves=moves, effective_units=4.0).from_baseline("a")["b"].verdict == "one seed: not compared"


SEED_SD = 0.01


def pair(num_seeds, mean=0.0, test_variance=0.0, units=1000.0):
    """Two systems that vary alike, with a paired t-test."""
    variance = 2 * SEED_SD**2 / num_seeds
    return Estimate(np.asarray(mean), np.asarray(variance), np.asarray(test_variance), num_seeds, num_seeds - 1, units)


@pytest.mark.parametrize("alpha", [0.05, 0.025 / 9])
@pytest.mark.parametrize("num_seeds", [3, 5, 20])
def test_where_only_seeds_vary_it_is_students_noncentral_t(num_seeds, alpha):
    def missing(difference):
        shift = difference / np.sqrt(2 * SEED_SD**2 / num_seeds)
        return stats.nct.sf(stats.t.isf(alpha / 2, num_seeds - 1), num_seeds - 1, shift) - 0.8

    exact = optimize.brentq(missing, 1e-4, 0.3)
    assert detectable(pair(num_seeds), alpha) == pytest.approx(exact, rel=0.02)


def test_few_speakers_and_a_level_that_is_hardly_reached_find_nothing():
    assert detectable(pair(3, test_variance=0.01, units=1.1), 0.05) == np.inf


def test_the_seeds_that_are_needed_find_the_difference_and_one_less_does_not():
    given = pair(3, mean=-0.015)
    needed = seeds_to_find(given, 0.05)
    assert detectable(pair(needed), 0.05) <= 0.015 < detectable(pair(needed - 1), 0.05)
    assert seeds_to_find(replace(given, mean=np.asarray(1.0)), 0.05) == 4  # more than there are
    assert seeds_to_find(replace(given, mean=np.asarray(0.0)), 0.05) is None
    assert seeds_to_find(pair(3, mean=0.015, test_variance=0.01**2), 0.05) is None


GOOD, OTHER, SILENT = (1, 2, 3, 2, 1, 0), (2, 1, 2, 3, 0, 1), (10,) * 6
ADAMW = (OTHER, GOOD, OTHER, GOOD)


def compared(eve=(GOOD, OTHER, GOOD, SILENT), failed=(), depends=()):
    runs = [run_of("adamw", seed, counts) for seed, counts in enumerate(ADAMW)]
    runs += [run_of("eve", seed, counts) for seed, counts in enumerate(eve)]
    for place, known in enumerate(depends):
        runs[place] = replace(runs[place], sets={"test": replace(runs[place].sets["test"], depends_on_audio=known)})
    (found,) = compare_runs(runs, baseline="adamw", failed=failed).sets
    return {row.system: row for row in found.rows}


def test_shares_have_exact_intervals_and_are_tested_against_the_baseline():
    found = reliabilities({"a": (20, 20), "b": (10, 20), "c": (19, 20)}, "a", 0.05)
    exact = [stats.fisher_exact([(20, 0), (some, 20 - some)]).pvalue for some in (10, 19)]
    assert found["a"].p_adjusted is None
    assert found["b"].p_adjusted == pytest.approx(2 * exact[0])
    assert found["c"].p_adjusted == pytest.approx(exact[1])
    ends = stats.binomtest(10, 20).proportion_ci(0.95, method="exact")
    assert (found["b"].low, found["b"].high) == (pytest.approx(ends.low), pytest.approx(ends.high))


def test_a_run_that_never_learned_is_counted_and_stays_in_the_means():
    eve = compared()["eve"]
    assert (eve.seeds, eve.reliability.num_learned, eve.reliability.num_runs) == ((0, 1, 2, 3), 3, 4)
    assert eve.wer_mean == pytest.approx((27 / 60 + 1) / 4)
    assert eve.wer_geomean == pytest.approx(0.15 ** (3 / 4))


def test_a_run_has_learned_if_its_texts_depend_on_the_audio_whatever_its_wer():
    """Where no texts are known, what counts is a WER below 100 %."""
    assert compared(depends=(True,) * 4 + (True, True, False, True))["eve"].reliability.num_learned == 3
    assert compared(depends=(True,) * 4 + (True, False))["eve"].reliability.num_learned == 2


def test_a_failed_run_is_as_bad_as_one_that_recognizes_nothing_unless_it_was_started_again():
    eve = compared(eve=(GOOD, OTHER, GOOD), failed=[("eve", 3), ("eve", 3), ("eve", 0)])["eve"]
    silent = compared()["eve"]
    assert (eve.wers, eve.reliability) == (silent.wers, silent.reliability)
    assert eve.to_baseline == silent.to_baseline


NUM_UTTERANCES, NUM_WORDS = 60, 12


def made_texts(seed: int) -> Texts:
    """Words that occur once in an utterance; errors are substitutions and deletions, so that there is one alignment."""
    rng = np.random.default_rng(seed)
    references, hypotheses = [], []
    for utterance in range(NUM_UTTERANCES):
        words = [f"w{utterance}x{place}" for place in range(NUM_WORDS)]
        kept = []
        for word in words:
            drawn = rng.random()
            kept += [word] if drawn > 0.2 else [f"{word}bad"] if drawn > 0.05 else []
        references.append(" ".join(words))
        # a word deleted beside a substituted one can be aligned in two ways, of equal costs
        hypotheses.append(" ".join(kept))
    return Texts(tuple(references), tuple(hypotheses))


def test_segments_are_separated_by_two_right_words_of_both_systems():
    one = Texts(("a b c d e f g", "a b"), ("x b c d e f g", "a b c"))
    other = Texts(("a b c d e f g", "a b"), ("a b y d e z z", "a b"))
    # a..c are one segment (b alone is right in between), f and g another, the insertion at the end a third
    differences = [0, -2, 1]
    p_value = 2 * stats.norm.sf(abs(np.mean(differences)) / stats.sem(differences))
    assert matched_pairs(one, other) == pytest.approx(p_value)
    assert matched_pairs(one, one) is None
    assert matched_pairs(Texts(("a",), ("a",)), Texts(("a",), ("a",))) is None


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_sclite(seed, tmp_path):
    if (program := sclite()) is None:
        pytest.skip("sclite is not installed: apt-get install sctk")
    texts = [made_texts(10 * seed), made_texts(10 * seed + 1)]
    for name, lines in (("ref", texts[0].references), ("one", texts[0].hypotheses), ("two", texts[1].hypotheses)):
        (tmp_path / f"{name}.trn").write_text("".join(f"{line} (s-{place})\n" for place, line in enumerate(lines)))
    for name in ("one", "two"):
        words = [program, "-r", "ref.trn", "trn", "-h", f"{name}.trn", "trn", name, "-i", "rm", "-o", "sgml"]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    graphs = "".join((tmp_path / f"{name}.trn.sgml").read_text() for name in ("one", "two"))
    words = [program.replace("sclite", "sc_stats"), "-p", "-t", "mapsswe", "-u", "-n", "result"]
    subprocess.run(words, cwd=tmp_path, input=graphs, check=True, capture_output=True, text=True)
    printed = (tmp_path / "result.stats.unified").read_text()
    bound, p_value = re.search(r"MP +\|\| +one +\|[ |]+ \S+ +(<?) *([\d.]+)", printed).groups()
    # sclite looks up z in a table of two digits, and cuts the others off
    z = np.floor(100 * stats.norm.isf(matched_pairs(*texts) / 2)) / 100
    expected = 2 * stats.norm.sf(z)
    assert expected < float(p_value) if bound else expected == pytest.approx(float(p_value), abs=6e-4)
