"""What a report says of each test set, of its terms, and of its runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asr.compare.inputs.runs import Run
from asr.compare.report.headline import (
    best_of,
    can_find,
    chosen_best,
    headline,
    lowest_of,
    other_pairs,
    used_runs,
    what_is_found,
    what_learned_means,
)
from asr.compare.report.tables import SYSTEM, Cell, Column, Table, interval_cell, mean_cell, verdict_cell
from asr.compare.result import Comparison, Difference, SetComparison
from asr.evaluation.formatting import UNKNOWN, count, interval, number, p_value, percent, points
from asr.evaluation.wer import UNIT_NOTES


@dataclass(frozen=True)
class SetSection:
    """What a report says of one test set.

    Attributes:
        size: in words.
        headline: sentences, the most important one first.
        tables: WERs, runs that have not learned, differences between systems, WERs with other weights, and of parts.
    """

    name: str
    size: str
    headline: Sequence[str]
    tables: Sequence[Table]


def set_sections(comparison: Comparison) -> list[SetSection]:
    """Return a section per test set."""
    sections = []
    for test_set in comparison.sets:
        speakers = "unknown speakers" if test_set.num_speakers is None else count(test_set.num_speakers, "speaker")
        tables = [
            _wer_table(test_set, comparison.level),
            reliability_table(test_set),
            *_difference_tables(test_set, comparison.level),
            _weights_table(comparison, test_set),
            *(_part_table(column, parts, comparison.level) for column, parts in test_set.subsets.items()),
        ]
        sections.append(
            SetSection(
                test_set.name,
                f"{count(test_set.num_utterances, 'utterance')}, {speakers}",
                headline(test_set, comparison.level),
                [table for table in tables if table.rows],
            )
        )
    return sections


def _wer_table(test_set: SetComparison, level: float) -> Table:
    best, others = best_of(test_set).system, dict[str, str]()
    role = _role([test_set])
    # the tables of differences repeat the verdicts
    if len(test_set.rows) > 1:
        others[role] = best
        if test_set.baseline not in (None, best):
            others["baseline"] = str(test_set.baseline)
    any_left_out = any(row.leaves_out_results for row in test_set.rows)
    rows = []
    for row in test_set.rows:
        against = {role: row.to_best, "baseline": row.to_baseline}
        verdicts = [_verdict(test_set, against[role], role * (row.system == other)) for role, other in others.items()]
        around = Cell(interval(row.low, row.high), row.scope)
        of_all = [Cell(percent(row.wer_mean_of_all))] if any_left_out else []
        used = Cell(used_runs(row) or (str(len(row.seeds)) if test_set.has_seeds else UNKNOWN))
        rows.append([Cell(row.system), *verdicts, mean_cell(row.wer_mean, row.wer_sd), *of_all, around, used])
    columns = [
        SYSTEM,
        # on a phone two verdicts and the rate fit beside the names
        *(Column(f"vs. {role}", is_text=True, in_terminal=False) for role in others),
        Column(f"{test_set.rate_name} %"),
        *([Column(f"{test_set.rate_name} % of all runs")] if any_left_out else []),
        *(Column(f"{100 * level:g} % interval"), Column("seeds")),
    ]
    notes = [f"Reference: {best}, the lowest mean{lowest_of(test_set)}."] * (role == "reference")
    notes += [f"Each interval is for its system alone; that of {best} {chosen}." for chosen in chosen_best(test_set)]
    notes += [f"{note}." for note in UNIT_NOTES[test_set.unit]]
    return Table(f"{test_set.unit.capitalize()} error rates", columns, rows, notes)


def _role(sets: Sequence[SetComparison]) -> str:
    """Return what the system that others are compared with is called in a column."""
    return "reference" if any(map(lowest_of, sets)) else "lowest"


def reliability_table(test_set: SetComparison) -> Table:
    """Return how many runs learned; without rows if all did."""
    means = {row.system: (row.wer_mean, row.wer_mean_of_all) for row in test_set.rows}
    counts = {row.system: row.reliability for row in test_set.rows} | dict(test_set.gone)
    rows = [
        [
            Cell(name),
            Cell(f"{reliability.num_learned} of {reliability.num_runs}"),
            Cell(p_value(reliability.p_adjusted)),
            *(Cell(percent(mean)) for mean in means.get(name, (None, None))),
        ]
        for name, reliability in counts.items()
    ]
    are_all = all(reliability.num_learned == reliability.num_runs for reliability in counts.values())
    rate = test_set.rate_name
    columns = [SYSTEM, *map(Column, ("learned", "p (Holm)", f"{rate} % of those", f"{rate} % of all runs"))]
    note = (
        f"{what_learned_means(test_set)} A run that failed has not learned, and has no {rate}. p: Fisher's exact test "
        "against the system with the largest share of runs that learned, corrected for all pairs."
    )
    return Table("Runs that learned", columns, [] if are_all else rows, [note])


def _verdict(test_set: SetComparison, difference: Difference | None, default: str = "") -> Cell:
    if difference is None:
        return Cell(default or "no seed in common")
    unsure = test_set.num_speakers is None and difference.verdict in ("better", "worse")
    return verdict_cell(difference.verdict, "speakers unknown" if unsure else "")


def _difference_tables(test_set: SetComparison, level: float) -> list[Table]:
    """Return differences from the lowest, the baseline unless it is the same, and other significant ones."""
    best = best_of(test_set).system
    role = f"lowest{lowest_of(test_set)}{' and baseline' * (best == test_set.baseline)}"
    to_best = {row.system: row.to_best for row in test_set.rows}
    tables = [_differences(f"Difference from {best} ({role})", test_set, level, to_best)]
    if test_set.baseline not in (None, best):
        to_baseline = {row.system: row.to_baseline for row in test_set.rows}
        tables.append(_differences(f"Difference from {test_set.baseline} (baseline)", test_set, level, to_baseline))
    significant, others = other_pairs(test_set.pairs, {best, test_set.baseline})
    between = {f"{pair.system} minus {pair.other}": pair for pair in significant}
    note = f"Pairs without the references of the tables above; {len(others)} more cannot be distinguished."
    return [*tables, _differences("Other pairs that differ significantly", test_set, level, between, note)]


def _differences(
    title: str, test_set: SetComparison, level: float, differences: Mapping[str, Difference | None], note: str = ""
) -> Table:
    with_matched = any(pair is not None and pair.matched_pairs_p is not None for pair in differences.values())
    columns = (  # on a phone the first three fit beside the names
        *(SYSTEM, Column("verdict", is_text=True), Column(f"points [{100 * level:g} %]"), Column("p (adjusted)")),
        *(Column(f"P(lower {test_set.rate_name})"), Column("seeds")),
        *([Column("p (matched pairs)")] if with_matched else []),
    )
    rows = []
    for system, pair in differences.items():
        if pair is not None:
            probability = pair.probability_of_improvement
            cells = (
                _verdict(test_set, pair),
                interval_cell(pair.mean, pair.low, pair.high, points),
                Cell(p_value(pair.p_adjusted)),
                Cell(UNKNOWN if probability is None else f"{probability:.2f}"),
                Cell(str(pair.num_seeds) if test_set.has_seeds else UNKNOWN),
                *([Cell(p_value(pair.matched_pairs_p))] if with_matched else []),
            )
            rows.append([Cell(system), *cells])
    notes = [note] if note else [what_is_found(test_set.power)] if test_set.power and can_find(test_set) else []
    return Table(title, columns, rows, notes)


def _weights_table(comparison: Comparison, test_set: SetComparison) -> Table:
    """Return the WERs of the seeds by kind of weights; without rows if there is only one kind."""
    wers: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for row in test_set.rows:
        runs = [run.wers_by_weights for run in comparison.runs_of(row.system) if run.seed in row.seeds]
        for kind in runs[0]:
            if all(test_set.name in run.get(kind, {}) for run in runs):
                wers[kind][row.system] = [run[kind][test_set.name] for run in runs]
    rows = []
    for row in test_set.rows if len(wers) > 1 else ():
        seed_wers = [by_system.get(row.system, []) for by_system in wers.values()]
        cells = (
            mean_cell(statistics.mean(group) if group else None, statistics.stdev(group) if len(group) > 1 else None)
            for group in seed_wers
        )
        rows.append([Cell(row.system), *cells])
    columns = [SYSTEM, *(Column(f"{kind} {test_set.rate_name} %") for kind in wers)]
    note = (
        "Means over seeds ± sd. Best: the checkpoint that was best on dev. Last: the newest. Average: the mean of the "
        "weights over about the last third of training."
    )
    return Table("With other weights", columns, rows, [note])


def _part_table(column: str, parts: Sequence[SetComparison], level: float) -> Table:
    """Return the rates of all systems on each part of a set."""
    rows, role = [], _role(parts)
    for part in parts:
        best = best_of(part).system
        for row in part.rows:
            verdict = _verdict(part, row.to_best, f"lowest{lowest_of(part)}" * (row.system == best))
            around = Cell(interval(row.low, row.high), row.scope)
            size = Cell(count(part.num_utterances, "utterance"))
            rows.append(
                [Cell(f"{part.name}: {row.system}"), verdict, mean_cell(row.wer_mean, row.wer_sd), around, size]
            )
    names = (f"{parts[0].rate_name} %", f"{100 * level:g} % interval", "size") if parts else ()
    columns = [SYSTEM, Column(f"vs. {role}", is_text=True), *map(Column, names)]
    note = "Verdicts are corrected for the pairs of each part, not for the number of parts."
    return Table(f"By {column}", columns, rows, [note])


def run_table(comparison: Comparison) -> Table:
    """Return every run with its folder, by system and seed."""
    sets = [test_set.name for test_set in comparison.sets]
    rows = [
        [
            Cell(run.system),
            Cell(str(run.seed) if comparison.has_seeds else UNKNOWN),
            Cell(number(run.lr)),
            *(_run_cell(run, tested) for tested in sets),
            Cell(str(run.folder)),
        ]
        for name in comparison.systems
        for run in sorted(comparison.runs_of(name), key=lambda run: run.seed)
    ]
    columns = [Column("seed"), Column("lr"), *(Column(f"{comparison.rate_name} % on {name}") for name in sets)]
    return Table("All runs", [SYSTEM, *columns, Column("folder", is_text=True)], rows)


def _run_cell(run: Run, test_set: str) -> Cell:
    errors = run.sets.get(test_set)
    return Cell(UNKNOWN) if errors is None else Cell(percent(errors.wer), "" if errors.has_learned else "not learned")


def what_verdicts_are_about(comparison: Comparison) -> str:
    """Return whether verdicts are about settings, or about the way in which they were tuned."""
    if not comparison.has_seeds:
        return (
            "These are single runs: another run of the same system, with another seed, may have another error rate, "
            "and change the order of the systems."
        )
    tuned: dict[str, set[int]] = defaultdict(set)
    for run in comparison.runs:
        if run.study is not None:
            tuned[run.system].add(run.study)
    studies = min(map(len, tuned.values()), default=0)
    if studies > 1:
        return (
            f"Tuned systems were tuned anew in each of {studies} studies: their verdicts are about this way of tuning, "
            "including its luck."
        )
    if studies:
        return (
            "Verdicts are about the settings that one tuning has chosen: another tuning may choose others, and change "
            "the order of the systems. sweep.studies=5 includes this in the verdicts."
        )
    return (
        "Verdicts are about these settings only: with other settings the order of the systems may change"
        f"{' (asr-train -m sweep=optimizers tunes all in the same way)' * comparison.is_of_our_runs}."
    )
