"""The result on one test set in sentences that claim no more than the runs allow."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import TypeVar

from asr.compare.result import Difference, Power, Row, SeedContrast, SetComparison, Verdict
from asr.evaluation.formatting import count, detectable, interval, p_equation, percent, points, shortlist

Pair = TypeVar("Pair", Difference, SeedContrast)
UNKNOWN_SPEAKERS = (
    "Speakers are unknown: verdicts and intervals assume that utterances are independent, and are too sure if one "
    "speaker has several of them; name the speakers with speakers=FILE or speaker_pattern=REGEX."
)
FEW_SPEAKERS = 5  # below, t has less than four degrees of freedom, and its quantiles are far above the normal ones


def best_of(found: SetComparison) -> Row:
    """Return the system that the others are compared with; not the first row, if that has a single seed."""
    others = [row.to_best.other for row in found.rows if row.to_best is not None]
    return next((row for row in found.rows if row.system in others), found.rows[0])


def chosen_best(found: SetComparison) -> str:
    """Return what the interval of the best system is corrected for; empty if there was no choice."""
    return f"corrected for being chosen as the lowest of {found.num_candidates}" if found.num_candidates > 1 else ""


def headline(found: SetComparison, level: float) -> list[str]:
    """Return sentences, the most important one first."""
    best = best_of(found)
    first = f"{best.system} {_claim(found, best)}: {percent(best.wer_mean)} % {interval(best.low, best.high)}."
    covers = f"over {best.scope}."
    if best.scope == "this run only":
        covers = f"of this run only: another seed may give another {found.rate_name}."
    chosen = chosen_best(found)
    sentences = [first, f"The brackets show the {100 * level:g} % interval{f', {chosen},' if chosen else ''} {covers}"]
    sentences += [*_failures(found), *_units(found)]
    if len(found.rows) == 1:
        return [*sentences, "There is no other system to compare it with."]
    pairs = [*_against_best(found, best), *_against_baseline(found, best)]
    pairs += other_pairs_sentence(found.pairs, {best.system, found.baseline}, has_table=True)
    return [*sentences, *_omnibus(found, level), *pairs, *_power(found, best)]


def _failures(found: SetComparison) -> list[str]:
    """Return a sentence on runs that failed or never came below an error rate of 100 %, if there are any."""
    counts = {row.system: row.reliability for row in found.rows} | dict(found.gone)
    some = [
        f"{name} {one.num_learned} of {one.num_runs}" for name, one in counts.items() if one.num_learned < one.num_runs
    ]
    if not some:
        return []
    return [
        f"Not every run has learned, which takes a {found.rate_name} below 100 %: {shortlist(some)}. Error rates and "
        "verdicts use only the runs that have; if no run of a system has, they use all of its runs."
    ]


def _units(found: SetComparison) -> list[str]:
    """Return a sentence if speakers are unknown or few, or if few of them have most of the words."""
    if found.num_speakers is None:
        return [UNKNOWN_SPEAKERS]
    if found.num_speakers == 1:
        return ["There is a single speaker: verdicts and intervals hold for this voice only."]
    tell = f"as informative as {found.effective_units:.1f} speakers of equal size"
    if found.num_speakers > 2 and found.effective_units <= found.num_speakers / 2:
        return [
            f"Few of the {found.num_speakers} speakers have most of the {found.unit}s: together they are {tell}, which "
            "makes the intervals wide."
        ]
    if found.effective_units < FEW_SPEAKERS:
        return [
            f"There are only {found.num_speakers} speakers, who are {tell}: intervals are wide, and say nothing about "
            "other kinds of voices."
        ]
    return []


def _claim(found: SetComparison, best: Row) -> str:
    if len(found.rows) == 1:
        return f"has this {found.rate_name}"
    if len(best.seeds) == 1:
        return f"had the lowest {found.rate_name}, but with only one seed"
    others = [row.to_best for row in found.rows if row is not best]
    sure = all(difference is not None and difference.verdict == "worse" for difference in others)
    among = "" if best is found.rows[0] else " of the systems with several seeds"
    return f"is best{among}" if sure else f"has the lowest {found.rate_name}{among}"


def _against_best(found: SetComparison, best: Row) -> list[str]:
    """Return how the best system compares with each other one, by verdict."""
    templates: dict[Verdict | None, str] = {
        "better": "On the seeds that both have, it is worse than {}.",
        "worse": "It is better than {}.",
        "cannot distinguish": "It cannot be distinguished from {}.",
        "not tested": "It was not tested against {}.",
        "one seed: not compared": "It has only one seed in common with {}: not compared.",
        None: "It has no seed in common with {}: not compared.",
    }
    others = {row.system: row.to_best and row.to_best.verdict for row in found.rows if row is not best}
    names = {verdict: [name for name, given in others.items() if given == verdict] for verdict in templates}
    return [template.format(shortlist(names[verdict])) for verdict, template in templates.items() if names[verdict]]


def _against_baseline(found: SetComparison, best: Row) -> list[str]:
    if found.baseline == best.system:
        return ["The best system is the baseline."]
    difference = best.to_baseline
    if difference is None:
        return []
    size = f"{points(difference.mean)} points {interval(difference.low, difference.high, points)}"
    (base,) = (row for row in found.rows if row.system == difference.other)
    common = [wer for seed, wer in zip(base.seeds, base.wers, strict=True) if seed in best.seeds]
    if any(common):
        share = 100 * difference.mean / statistics.mean(common)
        size += f", {abs(share):.0f} % {'fewer' if share < 0 else 'more'} errors"
    return [f"Compared with the baseline {difference.other}: {size}, {difference.verdict}."]


def _omnibus(found: SetComparison, level: float) -> list[str]:
    if found.omnibus is None:
        return []
    sure = found.omnibus.friedman_p <= 1 - level
    friedman, f = p_equation(found.omnibus.friedman_p), p_equation(found.omnibus.f_p)
    tested = found.omnibus.systems
    which = "the systems"
    if left_out := [row.system for row in found.rows if row.system not in tested]:
        which = f"{len(tested)} systems with {found.omnibus.num_seeds} seeds in common, all but {shortlist(left_out)},"
    return [
        f"Over seeds, on this test set, {which} {'differ' if sure else 'are not shown to differ'} "
        f"(Friedman {friedman}; F, if their variances are equal, {f})."
    ]


def _power(found: SetComparison, best: Row) -> list[str]:
    if found.power is None:
        return []
    sentences = [what_is_found(found.power)]
    if found.power.nearest is not None:
        needed = found.power.seeds_needed
        seeds = "More than 100 seeds, or a larger test set," if needed is None else f"About {needed} seeds each"
        sentences.append(
            f"{seeds} would be needed to distinguish {best.system} from {found.power.nearest}, if the true difference "
            "is as large as the measured one."
        )
    return sentences


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
    tested = [one for one in pairs if one.p_adjusted is not None and not {one.system, one.other} & {*shown}]
    significant = [one for one in tested if one.verdict == "better"]
    return significant, [one for one in tested if one not in significant]


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
    named = shortlist(f"{one.system} is better than {one.other}" for one in significant)
    verb = "differs" if len(significant) == 1 else "differ"
    return [f"{among}, {len(significant)} {verb} significantly: {'see their table' if has_table else named}."]
