"""What a comparison found on a test set, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from asr.evaluation.comparison.matching import named
from asr.evaluation.comparison.result import Difference, Row, SetComparison, Verdict
from asr.evaluation.comparison.wording import detectable, interval, percent, points, points_interval


def best_of(found: SetComparison) -> Row:
    """Return the contestant that the others are compared with; it is not the first row if that has a single seed."""
    others = [row.to_best.other for row in found.rows if row.to_best is not None]
    return next((row for row in found.rows if row.contestant in others), found.rows[0])


def headline(found: SetComparison, level: float) -> list[str]:
    """Return sentences, the most important one first."""
    best = best_of(found)
    first = f"{best.contestant} {_claim(found, best)}: {percent(best.wer_mean)} % {interval(best.low, best.high)}."
    how = f"In brackets the {100 * level:g} % interval, over {best.scope}."
    if best.scope == "this run only":
        how = f"In brackets the {100 * level:g} % interval of this run only: another seed may give another WER."
    alone = len(found.rows) == 1
    rest = ["There is nothing to compare it with."] if alone else [*_against_best(found, best), *_baseline(found, best)]
    return [first, how, *rest, *_detectable([row.to_best for row in found.rows])]


def _claim(found: SetComparison, best: Row) -> str:
    """Say no more of the best than its runs allow."""
    if len(found.rows) == 1:
        return "has a WER"
    if len(best.seeds) == 1:
        return "had the lowest WER, with one seed"
    others = [row.to_best for row in found.rows if row is not best]
    sure = all(difference is not None and difference.verdict == "worse" for difference in others)
    among = "" if best is found.rows[0] else " of those with several seeds"
    return f"is best{among}" if sure else f"has the lowest WER{among}"


def _against_best(found: SetComparison, best: Row) -> list[str]:
    """Say how all others stand to the best."""
    beginnings: dict[Verdict, str] = {
        "better": "On the seeds that both have it is worse than",
        "worse": "It is better than",
        "cannot distinguish": "It cannot be distinguished from",
        "one seed: not compared": "One seed in common is too few to compare it with",
    }
    rows = [row for row in found.rows if row is not best]
    sentences = []
    for verdict, beginning in beginnings.items():
        names = [row.contestant for row in rows if row.to_best is not None and row.to_best.verdict == verdict]
        if names:
            sentences.append(f"{beginning} {named(names)}.")
    apart = [row.contestant for row in rows if row.to_best is None]
    return [*sentences, *([f"It has no seed in common with {named(apart)}: not compared."] if apart else [])]


def _baseline(found: SetComparison, best: Row) -> list[str]:
    if found.baseline == best.contestant:
        return ["The best is the baseline."]
    difference = best.to_baseline
    if difference is None:
        return []
    size = f"{points(difference.mean)} points {points_interval(difference.low, difference.high)}"
    sentences = [f"Against the baseline {difference.other}: {size}, {difference.verdict}."]
    if difference.verdict == "cannot distinguish" and not difference.low <= 0 <= difference.high:
        sentences.append("Its interval alone leaves out 0; corrected for all comparisons that is not enough.")
    return sentences


def _detectable(differences: Sequence[Difference | None]) -> list[str]:
    """Say how large a difference must be to be found."""
    sizes = [d.smallest_detectable for d in differences if d is not None and d.smallest_detectable is not None]
    if not sizes:
        return []
    low, high = detectable(min(sizes)), detectable(max(sizes))
    more = "" if low == high else f", with some contestants only {high}"
    return [f"The smallest difference that these runs could detect: {low} points{more}."]
