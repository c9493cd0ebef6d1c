"""A comparison as tables in a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from asr.evaluation.comparison.headline import best_of
from asr.evaluation.comparison.result import Comparison, Difference, Row, SetComparison
from asr.evaluation.comparison.runs import Cost, Run
from asr.evaluation.comparison.wording import (
    UNKNOWN,
    detectable,
    interval,
    number,
    p_value,
    percent,
    points,
    points_interval,
)

# every terminal has these characters, and programs that read the tables know them
PLAIN = str.maketrans({"–": "-", "−": "-", "\N{NO-BREAK SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": "", "∞": "inf"})


def tables(comparison: Comparison) -> Iterator[Group | Text]:
    """Yield, per test set, WERs and differences to the best and the baseline; then what the trainings took."""
    for found in comparison.sets:
        yield _wers(found, comparison.level)
        best = best_of(found).contestant
        if len(found.rows) > 1:
            what = "the best and the baseline" if best == found.baseline else "the best"
            yield _differences(f"{found.name}: minus {best}, {what}", found, comparison, lambda row: row.to_best)
        if found.baseline not in (None, best):
            title = f"{found.name}: minus {found.baseline}, the baseline"
            yield _differences(title, found, comparison, lambda row: row.to_baseline)
    if comparison.target_wer is not None:
        yield _times(comparison, comparison.target_wer)
    yield _costs(comparison)
    yield Text(_legend(comparison))


def _legend(comparison: Comparison) -> str:
    false_alarms = f"{100 * (1 - comparison.level):.3g}"
    return (
        "Differences are in points of WER, below 0 in favour of the contestant. An interval is of its row alone, and "
        "with one seed of these runs only. p and verdict are corrected for all comparisons on their test set: where "
        f"nothing differs, at most {false_alarms} of 100 such sets of verdicts raise false alarm. found: a true "
        "difference of that size would be found in 80 of 100 such comparisons; smaller ones need more seeds. P(lower): "
        "that a training of the contestant ends with a lower WER than one of the other."
    )


def _wers(found: SetComparison, level: float) -> Group:
    speakers = "unknown speakers" if found.num_speakers is None else f"{found.num_speakers} speakers"
    table = _table("seeds", "WER %", "sd", f"{100 * level:g} % interval")
    table.add_column("over")
    for row in found.rows:
        rates = percent(row.wer_mean), percent(row.wer_sd), interval(row.low, row.high)
        _add(table, row.contestant, str(len(row.seeds)), *rates, row.scope)
    return _titled(f"{found.name}: {found.num_utterances} utterances, {speakers}", table)


def _differences(
    title: str, found: SetComparison, comparison: Comparison, pick: Callable[[Row], Difference | None]
) -> Group:
    table = _table("seeds", f"points [{100 * comparison.level:g} %]", "P(lower)", "p", "found")
    table.add_column("verdict", min_width=len("distinguish"))
    for row in found.rows:
        difference = pick(row)
        if difference is not None:
            _add(table, row.contestant, *_difference_cells(difference))
    return _titled(title, table)


def _difference_cells(found: Difference) -> tuple[str, ...]:
    return (
        str(found.num_seeds),
        f"{points(found.mean)} {points_interval(found.low, found.high)}",
        UNKNOWN if found.probability_of_improvement is None else f"{found.probability_of_improvement:.2f}",
        p_value(found.p_adjusted),
        detectable(found.smallest_detectable),
        found.verdict,
    )


def _times(comparison: Comparison, target_wer: float) -> Group:
    table = _table("runs that did", "updates", "seconds")
    for name, time in comparison.times_to_target().items():
        num_runs = len(comparison.runs_of(name))
        _add(table, name, f"{time.num_reached} of {num_runs}", number(time.updates), number(time.seconds))
    return _titled(f"When the WER on dev came down to {100 * target_wer:g} % (medians over seeds)", table)


def _costs(comparison: Comparison) -> Group:
    table = _table("lr", "updates", "ms/update", "optimizer", "peak MB", "state MB")
    for name in dict.fromkeys(row.contestant for found in comparison.sets for row in found.rows):
        runs = comparison.runs_of(name)
        _add(table, name, _lr(runs), _median(runs, lambda cost: cost.num_updates), *_cost_cells(runs))
    return _titled("What the trainings took (medians over seeds)", table)


def _cost_cells(runs: Sequence[Run]) -> tuple[str, str, str, str]:
    return (
        _median(runs, lambda cost: cost.seconds_per_update, 1e3),
        _median(runs, lambda cost: cost.optimizer_share, 100, " %"),
        _median(runs, lambda cost: cost.peak_memory_mb),
        _median(runs, lambda cost: cost.optimizer_state_bytes, 2**-20),
    )


def _lr(runs: Sequence[Run]) -> str:
    rates = {run.lr for run in runs}
    return number(rates.pop()) if len(rates) == 1 else "several"


def _median(runs: Sequence[Run], pick: Callable[[Cost], float | None], scale: float = 1, unit: str = "") -> str:
    known = [value for value in (pick(run.cost) for run in runs) if value is not None]
    return number(scale * statistics.median(known)) + unit if known else UNKNOWN


def _table(*numbers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("contestant")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _titled(title: str, table: Table) -> Group:
    return Group(Text(title, style="bold"), table)


def _add(table: Table, name: str, *cells: str) -> None:
    table.add_row(Text(name), *(Text(cell.translate(PLAIN)) for cell in cells))
