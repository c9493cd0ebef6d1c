"""The result on one test set in sentences that claim no more than the runs allow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from typing import TypeVar

from asr.compare.result import Difference, Power, Row, SeedContrast, SetComparison, Verdict
from asr.evaluation.formatting import (
    UNKNOWN,
    count,
    detectable,
    interval,
    p_equation,
    percent,
    points,
    shortlist,
)

Pair = TypeVar("Pair", Difference, SeedContrast)
UNKNOWN_SPEAKERS = (
    "Speakers are unknown: verdicts and intervals assume that utterances are independent, and are overconfident if "
    "one speaker has several of them; name the speakers with speakers=FILE or speaker_pattern=REGEX."
)
UNDECIDED: tuple[Verdict, ...] = ("cannot distinguish", "better")  # of others, compared with the lowest mean
ENOUGH_SEEDS, BETTER_SEEDS = 3, 5  # see "How many seeds?" in docs/statistics.md
FEW_SPEAKERS = 5  # below, t has less than four degrees of freedom, and its quantiles are far above the normal ones


def best_of(test_set: SetComparison) -> Row:
    """Return the system that the others are compared with; not the first row, if that has a single seed."""
    others = [row.to_best.other for row in test_set.rows if row.to_best is not None]
    return next((row for row in test_set.rows if row.system in others), test_set.rows[0])


def lowest_of(test_set: SetComparison) -> str:
    """Return of which systems the best one has the lowest mean, as an end of a phrase; empty if of all."""
    best = best_of(test_set)
    lower = [row for row in test_set.rows if row.wer_mean < best.wer_mean]
    if not lower:
        return ""
    any_learned = any(row.reliability.num_learned for row in lower)
    return " of those with two seeds that learned" if any_learned else " of those that learned"


def chosen_best(test_set: SetComparison) -> list[str]:
    """Return why the interval of the best system is wider than others; empty if there was no choice, or no end."""
    num = test_set.num_candidates
    is_wider = num > 1 and math.isfinite(best_of(test_set).high)
    return [f"is wider, because its mean was picked as the lowest of {num}"] if is_wider else []


def used_runs(row: Row) -> str:
    """Return how many runs a row is of, if not all of them learned; else nothing."""
    if row.leaves_out_runs:
        return f"{row.reliability.num_learned} of {row.reliability.num_runs} runs"
    return "" if row.reliability.num_learned else f"none of {row.reliability.num_runs} learned"


def can_find(test_set: SetComparison) -> bool:
    """Return whether any difference was found, or could have been with more than two seeds and a true one below 1."""
    tested = [pair for pair in test_set.pairs if pair.p_adjusted is not None]
    if any(pair.verdict == "better" for pair in tested):
        return True
    return test_set.power is not None and test_set.power.detectable <= 1 and max(pair.num_seeds for pair in tested) > 2


def headline(test_set: SetComparison, level: float) -> list[str]:
    """Return sentences, the most important one first: the winner if there is one, else what it takes to find one."""
    best = best_of(test_set)
    covers = f"over {best.scope}"
    if best.scope == "this run only":
        covers = f"of this run only: another seed may give another {test_set.rate_name}"
    brackets = (
        "; it ".join([f"The brackets show the {100 * level:g} % interval {covers}", *chosen_best(test_set)]) + "."
    )
    if interval(best.low, best.high) == UNKNOWN:
        brackets = f"Its {100 * level:g} % interval is not known: there are too few seeds or speakers."
    notes = [*_failures(test_set), *_units(test_set)]
    if len(test_set.rows) == 1:
        alone = "There is no other system to compare it with."
        return [f"{best.system} has this {test_set.rate_name}: {_rate(best)}.", brackets, *notes, alone]
    learned = _learned(test_set)
    if not test_set.has_seeds and len(learned) > 1:
        return [*_single_runs(test_set, best), brackets, *notes, *_parts(test_set), *_against_baseline(test_set, best)]
    if len(learned) == 1:
        return [f"{best.system} is the only system of which runs have learned: {_rate(best)}.", brackets, *notes]
    if learned and not can_find(test_set):
        return [*_too_few(test_set, best), *notes, *_parts(test_set)]
    winner = _winner(test_set, best)
    first = (
        [f"{winner}: {_rate(best)}.", brackets]
        if winner
        else [*_no_winner(test_set, best), *_seeds_needed(test_set, best)]
    )
    pairs = [*_against_best(test_set, best), *_against_baseline(test_set, best)]
    pairs += other_pairs_sentence(test_set.pairs, {best.system, test_set.baseline}, has_table=True)
    power = [what_is_found(test_set.power)] if test_set.power else []
    needed = _seeds_needed(test_set, best) if winner else ()
    return [*first, *notes, *_omnibus(test_set, level), *pairs, *_parts(test_set), *power, *needed]


def _single_runs(test_set: SetComparison, best: Row) -> list[str]:
    """Return the result of single runs, which first of all says what it does not cover."""
    unit = "utterances" if test_set.num_speakers in (None, 1) else "speakers"
    limits = f"these are single runs, whose verdicts cover other {unit}, not other runs of the systems"
    if winner := _winner(test_set, best):
        return [f"{winner}: {_rate(best)}; {limits}.", *_against_best(test_set, best)]
    first, *_ = _no_winner(test_set, best)
    return [f"{first.removesuffix('.')}; {limits}.", *_against_best(test_set, best)]


def _parts(test_set: SetComparison) -> list[str]:
    """Return the best systems of parts of the set that are named after a file of training texts."""
    sentences = []
    for column, parts in test_set.subsets.items():
        for part in parts:
            best = best_of(part)
            verdict = _winner(part, best) or "no difference found" if len(part.rows) > 1 else best.system
            where = f"{column} is {part.name}, {count(part.num_utterances, 'utterance')}"
            sentences.append(f"Where {where}: {verdict}, lowest mean{lowest_of(part)} {best.system} {_rate(best)}.")
    return sentences


def _rate(row: Row) -> str:
    ends = interval(row.low, row.high)
    used = [used_runs(row)] if row.leaves_out_runs else []
    used += [f"of all: {percent(row.wer_mean_of_all)} %"] if row.leaves_out_results else []
    around = "" if ends == UNKNOWN else f" {ends}"
    return f"{percent(row.wer_mean)} %{around}" + (f" ({'; '.join(used)})" if used else "")


def _failures(test_set: SetComparison) -> list[str]:
    """Return sentences on runs that failed or learned nothing, if there are any."""
    counts = {row.system: row.reliability for row in test_set.rows} | dict(test_set.gone)
    some = [
        f"{name} {reliability.num_learned} of {reliability.num_runs}"
        + ("" if reliability.p_adjusted is None else f" ({p_equation(reliability.p_adjusted)})")
        for name, reliability in counts.items()
        if reliability.num_learned < reliability.num_runs
    ]
    if not some:
        return []
    return [
        f"Not every run has learned: {shortlist(some)}. Error rates and verdicts use only the runs that have; a system "
        f"of which none has is shown with the mean {test_set.rate_name} of all of its runs, and has no verdicts.",
        what_learned_means(test_set),
    ]


def what_learned_means(test_set: SetComparison) -> str:
    """Return a sentence on when a run has learned, which depends on what is known of it."""
    by_texts = (
        "A run has learned if its hypotheses depend on the audio: they fit their own references better than those of "
        "other utterances (permutation test, p ≤ 1 %)."
    )
    num, by_rate = test_set.num_without_texts, f"it has learned if its {test_set.rate_name} is below 100 %."
    if not num:
        return by_texts
    if num == test_set.num_runs:
        return f"Of a run of which only the numbers of errors are known, {by_rate}"
    return f"{by_texts} Of {count(num, 'run')} only the numbers of errors are known: {by_rate}"


def _units(test_set: SetComparison) -> list[str]:
    """Return a sentence if speakers are unknown or few, or if few of them have most of the words."""
    if test_set.num_speakers is None:
        return [UNKNOWN_SPEAKERS]
    if test_set.num_speakers == 1:
        return ["There is a single speaker: verdicts and intervals hold for this voice only."]
    tell = f"as informative as {test_set.effective_units:.1f} speakers of equal size"
    if test_set.num_speakers > 2 and test_set.effective_units <= test_set.num_speakers / 2:
        return [
            f"Few of the {test_set.num_speakers} speakers have most of the {test_set.unit}s: together they are {tell}, "
            "which makes the intervals wide."
        ]
    if test_set.effective_units < FEW_SPEAKERS:
        return [
            f"There are only {test_set.num_speakers} speakers, who are {tell}: intervals are wide, and say nothing "
            "about other kinds of voices."
        ]
    return []


def _winner(test_set: SetComparison, best: Row) -> str:
    """Return the claim that a system is best; empty if it is not significantly better than each with several seeds."""
    others = [row for row in _learned(test_set) if row is not best]
    several = [row for row in others if len(row.seeds) > 1 or not test_set.has_seeds]
    sure = all(row.to_best is not None and row.to_best.verdict == "worse" for row in several)
    if not several or not sure:
        return ""
    among = "" if several == others else " of the systems with several seeds"
    among = among if len(others) == len(test_set.rows) - 1 else f"{among or ' of the systems'} that have learned"
    return f"{best.system} is best{among}"


def _no_winner(test_set: SetComparison, best: Row) -> list[str]:
    """Return that there is no winner, with the mean error rates of the systems that may be the best."""
    if not _learned(test_set):
        return ["No difference found: no run has learned.", "Train for more updates, or with another learning rate."]
    near = [row for row in test_set.rows if row is best or (row.to_best and row.to_best.verdict in UNDECIDED)]
    if len(near) == 1:
        return [f"No winner: {best.system}, with {_rate(best)}, is not compared with each other system."]
    rates = f"mean {test_set.rate_name}s of {percent(near[0].wer_mean)} to {percent(near[-1].wer_mean)} %"
    baseline = ""
    if test_set.baseline not in (None, *(row.system for row in near)):
        is_worse = best.to_baseline is not None and best.to_baseline.verdict == "better"
        how = f"is worse than {best.system}" if is_worse else f"is not compared with {best.system}"
        baseline = f" The baseline, {test_set.baseline}, {how}."
    return [f"No difference found between {_named(test_set, near)}: {rates}.{baseline}"]


def _named(test_set: SetComparison, rows: Sequence[Row]) -> str:
    """Return the names of systems; that of the baseline is always among those that are listed."""
    ordered = sorted(rows, key=lambda row: (row is not rows[0], row.system != test_set.baseline))
    return shortlist(f"{row.system} (baseline)" if row.system == test_set.baseline else row.system for row in ordered)


def _too_few(test_set: SetComparison, best: Row) -> list[str]:
    """Return that nothing could be found, and what is needed, instead of verdicts that could not have been others."""
    learned = {row.system for row in _learned(test_set)}
    num = max((pair.num_seeds for pair in test_set.pairs if {pair.system, pair.other} <= learned), default=0)
    finding = "nothing can be found"
    if test_set.power is not None and test_set.power.detectable <= 1:
        finding = f"only a difference of {detectable(test_set.power.detectable)} points or more can be found"
    needed = [f"At least {ENOUGH_SEEDS} seeds of each system are needed, better {BETTER_SEEDS}."]
    if num >= ENOUGH_SEEDS:
        needed = ["More seeds, or more speakers, are needed."]
    (first, *_), names = _seeds_needed(test_set, best) or needed, _named(test_set, _learned(test_set))
    rates = shortlist(f"{row.system} {_rate(row)}" for row in test_set.rows)
    return [
        f"No difference found between {names}: with {count(num, 'seed')} in common, {finding}. {first}",
        f"Mean {test_set.rate_name}s: {rates}.",
    ]


def _learned(test_set: SetComparison) -> list[Row]:
    return [row for row in test_set.rows if row.reliability.num_learned]


def _against_best(test_set: SetComparison, best: Row) -> list[str]:
    """Return how the best system compares with each other one, by verdict."""
    templates: dict[Verdict | None, str] = {
        "better": "On the seeds that both have, {} is worse than {}.",
        "worse": "{} is better than {}.",
        "cannot distinguish": "{} cannot be distinguished from {}.",
        "not tested": "{} was not tested against {}.",
        "none learned: not compared": "{} is not compared with systems of which no run has learned: {}.",
        "one seed: not compared": "{} has only one seed in common with {}: not compared.",
        None: "{} has no seed in common with {}: not compared.",
    }
    others = {row.system: row.to_best and row.to_best.verdict for row in test_set.rows if row is not best}
    names = {verdict: [name for name, value in others.items() if value == verdict] for verdict in templates}
    return [
        text.format(best.system, shortlist(names[verdict])) for verdict, text in templates.items() if names[verdict]
    ]


def _against_baseline(test_set: SetComparison, best: Row) -> list[str]:
    if test_set.baseline == best.system:
        return [f"The system with the lowest mean{lowest_of(test_set)} is the baseline."]
    difference = best.to_baseline
    if difference is None:
        return []
    size = f"{points(difference.mean)} points {interval(difference.low, difference.high, points)}"
    (base,) = (row for row in test_set.rows if row.system == difference.other)
    common = [wer for seed, wer in zip(base.seeds, base.wers, strict=True) if seed in best.seeds]
    if any(common):
        share = 100 * difference.mean / statistics.mean(common)
        size += f", {abs(share):.0f} % {'fewer' if share < 0 else 'more'} errors"
    return [f"Compared with the baseline {difference.other}: {size}, {difference.verdict}."]


def _omnibus(test_set: SetComparison, level: float) -> list[str]:
    if test_set.omnibus is None:
        return []
    sure = test_set.omnibus.friedman_p <= 1 - level
    friedman, f = p_equation(test_set.omnibus.friedman_p), p_equation(test_set.omnibus.f_p)
    tested = test_set.omnibus.systems
    which = "the systems"
    if left_out := [row.system for row in test_set.rows if row.system not in tested]:
        which = (
            f"{len(tested)} systems with {test_set.omnibus.num_seeds} seeds in common, all but {shortlist(left_out)},"
        )
    return [
        f"Over seeds, on this test set, {which} {'differ' if sure else 'are not shown to differ'} "
        f"(Friedman {friedman}; F, if their variances are equal, {f})."
    ]


def _seeds_needed(test_set: SetComparison, best: Row) -> list[str]:
    if test_set.power is None or test_set.power.nearest is None:
        return []
    (nearest,) = (row.to_best for row in test_set.rows if row.system == test_set.power.nearest)
    if nearest is None or abs(nearest.mean) < 1e-9:
        return []  # no number of seeds would find a difference of 0, up to the rounding of means
    needed = test_set.power.seeds_needed
    seeds = "More than 100 seeds, or a larger test set," if needed is None else f"About {needed} seeds each"
    return [
        f"{seeds} would be needed to distinguish {best.system} from {test_set.power.nearest}, if the true difference "
        "is as large as the measured one."
    ]


def what_is_found(power: Power) -> str:
    """Return a sentence on the difference that most comparisons would find, with its range."""
    ends = f"{detectable(power.low)} to {detectable(power.high)}, because the spread over seeds is only estimated"
    return f"80 of 100 such comparisons would find a true difference of {detectable(power.detectable)} points ({ends})."


def other_pairs(pairs: Sequence[Pair], shown: Collection[str | None]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that differ significantly, and those that do not.

    Args:
        pairs: the better system first.
        shown: systems whose pairs are left out, because each other one is compared with them elsewhere.
    """
    tested = [pair for pair in pairs if pair.p_adjusted is not None and not {pair.system, pair.other} & {*shown}]
    significant = [pair for pair in tested if pair.verdict == "better"]
    return significant, [pair for pair in tested if pair not in significant]


def other_pairs_sentence(pairs: Sequence[Pair], shown: Collection[str | None], *, has_table: bool) -> list[str]:
    """Return a sentence that counts the pairs that differ significantly, and names them if no table does.

    Verdicts are corrected for these pairs too, so that a reader must know of them.
    """
    significant, others = other_pairs(pairs, shown)
    if not significant and not others:
        return []
    among = f"Of the {count(len(significant) + len(others), 'other pair')}"
    if not significant:
        return [f"{among}, none differs significantly."]
    named = shortlist(f"{pair.system} is better than {pair.other}" for pair in significant)
    verb = "differs" if len(significant) == 1 else "differ"
    return [f"{among}, {len(significant)} {verb} significantly: {'see their table' if has_table else named}."]
