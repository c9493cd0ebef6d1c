"""What the entries of a task and ruleset say together: asr-compare's verdicts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scipy import stats

from asr.benchmark.entries import ABOUT, DEV_LOSS, REPRODUCED, TEST, Entry, entries_of, read_entry
from asr.benchmark.rules import BASELINE, LEVEL, NEW_SEEDS
from asr.compare.compare import compare
from asr.compare.inputs.runs import Inputs
from asr.compare.report.html_and_json import json_text
from asr.compare.result import Comparison, SetComparison, TimesToTarget
from asr.compare.statistics.times import times_to_target

REPRODUCED_P = 0.05
COMPARISON = "comparison.json"
DIGITS = 9  # of its numbers


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on the entries of one task and ruleset.

    Attributes:
        folder: ``TASK/RULESET``.
        entries: by name.
        target: loss on dev whose updates are counted.
        comparison: of the error rates on test, and of the updates to the target.
    """

    folder: Path
    entries: Sequence[Entry]
    target: float
    comparison: Comparison

    @property
    def errors(self) -> SetComparison:
        """Of the test set."""
        return self.comparison.sets[0]

    @property
    def times(self) -> TimesToTarget:
        """Updates to the target."""
        return self.comparison.times[0]


def verdicts(folder: Path, entries: Sequence[Entry], target: float) -> Verdicts:
    """Compare entries of one task and ruleset.

    Args:
        folder: ``TASK/RULESET``.
        entries: the baseline among them.
        target: loss on dev.
    """
    runs = [run for entry in entries for run in entry.runs]
    failed = [run_key for entry in entries for run_key in entry.failed]
    title = f"{folder.parent.name}, {folder.name}"
    comparison = compare(Inputs(runs, failed=failed), title=title, baseline=BASELINE, level=LEVEL)
    times = times_to_target(runs, target, "updates", 1 - LEVEL, BASELINE, failed, metric=DEV_LOSS)
    assert times is not None  # every run was validated
    return Verdicts(folder, entries, target, replace(comparison, times=[times]))


def target_loss(baseline: Entry) -> float:
    """Return the loss on dev that the baseline reaches with half of its seeds: the median of the lowest of each run."""
    return statistics.median(min(run.curves[DEV_LOSS].values) for run in baseline.runs)


def status(entry: Entry) -> str:
    """Return whether an entry was reproduced with other seeds, by Welch's test of the two mean error rates.

    A run that failed counts as 100 %.
    """
    folder = entry.folder / REPRODUCED
    if not folder.is_dir() or len((again := read_entry(folder)).lines) < len(NEW_SEEDS):
        return "submitted"
    first, second = ([run.sets[TEST].wer for run in one.runs] + [1.0] * len(one.failed) for one in (entry, again))
    # the test says nothing of equal rates without any spread
    is_reproduced = first == second or stats.ttest_ind(first, second, equal_var=False).pvalue >= REPRODUCED_P
    return "reproduced" if is_reproduced else "challenged"


def benchmark_verdicts(root: Path) -> Iterator[Verdicts]:
    """Yield the verdicts of each task and ruleset that has the baseline's entry and another.

    The target of a task is the loss of the tuned baseline, and that of the one as shipped until there is one.
    """
    for folder in sorted({path.parent.parent for path in root.glob(f"*/*/{BASELINE}/{ABOUT}")}):
        entries = entries_of(folder)
        if len(entries) < 2:
            continue
        tuned = folder.parent / "tuned" / BASELINE
        baseline = read_entry(tuned if tuned.is_dir() else folder.parent / "as_shipped" / BASELINE)
        yield verdicts(folder, entries, target_loss(baseline))


def comparison_text(verdicts: Verdicts) -> str:
    """Return what ``comparison.json`` says, with as many digits as do not depend on the processor."""
    data = {"target_loss": verdicts.target, **json.loads(json_text(verdicts.comparison))}
    plain = json.loads(json.dumps(data), parse_float=lambda digits: float(f"{float(digits):.{DIGITS}g}"))
    return json.dumps(plain, indent=1, ensure_ascii=False)
