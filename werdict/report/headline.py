"""The result on one test set in sentences that claim no more than the runs allow.

First which systems may be best, then which differ from the baseline, then what it takes to decide the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from werdict.formatting import count, interval, number, percent, points, ratio, shortlist
from werdict.result import Contrast, Row, Scale, SetComparison, TimesToTarget

UNKNOWN_SPEAKERS = (
    "Speakers are unknown: verdicts and intervals assume that utterances are independent, and are overconfident if "
    "one speaker has several of them; name the speakers with speakers=FILE or speaker_pattern=REGEX."
)
ENOUGH_SEEDS, BETTER_SEEDS = 3, 5  # see "How many seeds?" in docs/statistics.md
FEW_SPEAKERS = 5  # below, t has less than four degrees of freedom, and its quantiles are far above the normal ones
MOST_SEEDS = 30  # that are proposed


def headline(test_set: SetComparison, level: float, scale: Scale, looks: Sequence[int] = ()) -> list[str]:
    """Return sentences, the most important ones first."""
    lowest = test_set.rows[0]
    if len(test_set.rows) == 1:
        covers = f"over {lowest.scope}"
        if lowest.scope == "this run only":
            covers = f"of this run only: another seed may give another {test_set.rate_name}"
        brackets = f"The brackets show the {100 * level:g} % interval {covers}."
        alone = "There is no other system to compare it with."
        unlearned = [*_unlearned(test_set)]
        return [f"{lowest.system} has this {test_set.rate_name}: {_rate(lowest)}.", brackets, *unlearned, alone]
    sentences = [*_may_be_best(test_set, level), *_from_baseline(test_set, scale), *_look(test_set, looks)]
    return [*sentences, *_unlearned(test_set), *_units(test_set), *_parts(test_set, scale), *next_step(test_set)]


def _rate(row: Row) -> str:
    return f"{percent(row.wer_mean)} % {interval(row.low, row.high)}"


def _look(test_set: SetComparison, looks: Sequence[int]) -> Iterator[str]:
    """Yield which of several planned looks this is: each has its part of the level."""
    if looks:
        have = max(len(row.seeds) for row in test_set.rows)
        place = next((place for place, seeds in enumerate(looks, 1) if seeds >= have), len(looks))
        of = f"look {place} of {len(looks)}, planned after {' and '.join(map(str, looks))} seeds"
        yield f"This is {of}; with {have} seeds now. Each look has an equal part of the permitted false verdicts."


def _may_be_best(test_set: SetComparison, level: float) -> Iterator[str]:
    """Yield which systems may be the best."""
    best, all_rows = test_set.best, test_set.rows
    sure = f"with {100 * level:g} % confidence"
    if not test_set.has_seeds:
        unit = "utterances" if test_set.num_speakers in (None, 1) else "speakers"
        sure += f" (these are single runs: verdicts cover other {unit}, not other runs)"
    if not any(row.reliability.num_learned for row in all_rows):
        yield "No run has learned, so there is nothing to compare yet."
    elif not any(row.to_baseline and row.to_baseline.p_value is not None for row in all_rows):
        yield (
            f"Which system is best cannot be told from one seed. At least {ENOUGH_SEEDS} seeds of each are needed, "
            f"better {BETTER_SEEDS}. Lowest {test_set.rate_name}: {all_rows[0].system}, {_rate(all_rows[0])}."
        )
    elif len(best) == 1:
        yield f"{best[0].system} is best, {sure}: no other system may be; {_rate(best[0])}."
    elif len(best) == len(all_rows):
        yield f"Any of the {len(best)} systems may be best, {sure}; the lowest is {best[0].system}, {_rate(best[0])}."
    else:
        named = shortlist(f"{row.system} {_rate(row)}" for row in best)
        yield f"Best is one of {len(best)} of {len(all_rows)} systems, {sure}: {named}."


def _from_baseline(test_set: SetComparison, scale: Scale) -> Iterator[str]:
    """Yield which systems differ from the baseline, and how much."""
    contrasts = [row.to_baseline for row in test_set.rows if row.to_baseline is not None]
    named = {
        verdict: [contrast for contrast in contrasts if contrast.verdict == verdict]
        for verdict in ("better", "worse", "cannot distinguish", "one seed: not compared")
    }
    of = "typical runs (geometric means)" if scale == "ratio" else "mean rates"
    differ = [
        f"{verdict}: {shortlist(sized(contrast, scale) for contrast in named[verdict])}"
        for verdict in ("better", "worse")
        if named[verdict]
    ]
    if open_ones := [contrast.system for contrast in named["cannot distinguish"]]:
        differ.append(f"not shown to differ: {shortlist(open_ones)}")
    if named["better"] or named["worse"]:
        yield f"Compared with the baseline {test_set.baseline}, by {of}: {'; '.join(differ)}."
    elif open_ones:
        yield f"No system differs significantly from the baseline {test_set.baseline}: {shortlist(open_ones)}."
    if single := [contrast.system for contrast in named["one seed: not compared"]]:
        yield f"With one seed in common, not compared with the baseline {test_set.baseline}: {shortlist(single)}."


def sized(contrast: Contrast, scale: Scale) -> str:
    """Return a system with its difference from another in words: ``soap 0.40 [0.26, 0.61], 60 % fewer errors``."""
    if scale == "points":
        return f"{contrast.system} {points(contrast.value)} points {interval(contrast.low, contrast.high, points)}"
    how = f"{100 * abs(1 - contrast.value):.0f} % {'fewer' if contrast.value < 1 else 'more'} errors"
    return f"{contrast.system} {ratio(contrast.value)} {interval(contrast.low, contrast.high, ratio)}, {how}"


def _unlearned(test_set: SetComparison) -> Iterator[str]:
    """Yield how often runs failed or learned nothing, if any has."""
    some = [row for row in test_set.rows if row.reliability.num_learned < row.reliability.num_runs]
    if some:
        named = shortlist(f"{row.system} {row.reliability.num_learned} of {row.reliability.num_runs}" for row in some)
        rate = test_set.rate_name
        yield (
            f"Not every run has learned: {named}. A run that failed counts with a {rate} of 100 %. If a system fails "
            f"sometimes, how often it does is the finding, more than its mean {rate}."
        )
        yield what_learned_means(test_set)


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


def _units(test_set: SetComparison) -> Iterator[str]:
    """Yield a sentence if speakers are unknown, seen in training or few, or if few of them have most of the words."""
    if test_set.seen_speakers:
        yield (
            "Speakers of this set are in the training data: verdicts and intervals are about other recordings of these "
            "speakers, not about other speakers."
        )
    elif test_set.num_speakers is None:
        yield UNKNOWN_SPEAKERS
    elif test_set.num_speakers == 1:
        yield "There is a single speaker: verdicts and intervals hold for this voice only."
    else:
        tell = f"as informative as {test_set.effective_units:.1f} speakers of equal size"
        if test_set.num_speakers > 2 and test_set.effective_units <= test_set.num_speakers / 2:
            yield (
                f"Few of the {test_set.num_speakers} speakers have most of the {test_set.unit}s: together they are "
                f"{tell}, which makes the intervals wide."
            )
        elif test_set.effective_units < FEW_SPEAKERS:
            yield (
                f"There are only {test_set.num_speakers} speakers, who are {tell}: intervals are wide, and say nothing "
                "about other kinds of voices."
            )


def _parts(test_set: SetComparison, scale: Scale) -> Iterator[str]:
    """Yield which systems may be best on parts of the set."""
    for column, parts in test_set.subsets.items():
        for part in parts:
            where = f"{column} is {part.name}, {count(part.num_utterances, 'utterance')}"
            best = shortlist(f"{row.system} {_rate(row)}" for row in part.best)
            yield f"Where {where}, best {'is' if len(part.best) == 1 else 'may be'} {best}."
            yield from _from_baseline(part, scale) if len(part.rows) > 1 else ()


def next_step(test_set: SetComparison) -> Iterator[str]:
    """Yield how many seeds would decide which of the other systems differ from the baseline."""
    contrasts = [row.to_baseline for row in test_set.rows if row.to_baseline is not None]
    open_ones = [one for one in contrasts if one.verdict == "cannot distinguish"]
    if not test_set.has_seeds or not open_ones:
        return
    by_need = sorted((one.seeds_needed, one.system) for one in open_ones if one.seeds_needed is not None)
    near = [f"{system} {seeds}" for seeds, system in by_need if seeds <= MOST_SEEDS]
    if near:
        yield (
            f"Seeds that would probably decide whether these differ from {test_set.baseline}, if the measured ratio is "
            f"the true one: {shortlist(near)}."
        )
    rest = len(open_ones) - len(near)
    if rest:
        yield f"{count(rest, 'other system')} would need more than {MOST_SEEDS} seeds, or a larger test set."


def times_sentence(times: TimesToTarget) -> str:
    """Return which systems may reach a target first."""
    best = [row.system for row in times.rows if row.may_be_best]
    shown = number(times.budget)
    if not best:
        return f"No system reached the target within {shown} {times.axis}."
    return f"First to reach the target {'is' if len(best) == 1 else 'may be'}: {shortlist(best)}."
