"""All pictures of a comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asr.evaluation.comparison.curve_plots import COURSES, plot_course
from asr.evaluation.comparison.drawing import Plot
from asr.evaluation.comparison.forest_plot import plot_wers
from asr.evaluation.comparison.learning_rates import plot_learning_rates
from asr.evaluation.comparison.looks import Look, looks
from asr.evaluation.comparison.result import Comparison
from asr.evaluation.comparison.runs import Run


@dataclass(frozen=True)
class Plots:
    """The pictures, by where they belong.

    Attributes:
        wers: one per test set, by its name.
        courses: of WER on dev and loss.
        learning_rates: one per test set where something was trained with several rates.
        notes: sentences on what could not be drawn.
        looks: of the contestants, best first.
    """

    wers: Mapping[str, Plot]
    courses: Sequence[Plot]
    learning_rates: Sequence[Plot]
    notes: Sequence[str]
    looks: Mapping[str, Look]

    @property
    def all(self) -> tuple[Plot, ...]:
        """Every picture."""
        return (*self.wers.values(), *self.learning_rates, *self.courses)


def draw_plots(comparison: Comparison) -> Plots:
    """Draw what the runs allow."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in comparison.runs:
        runs[run.contestant].append(run)
    given = looks(contestants(comparison), next((found.baseline for found in comparison.sets if found.baseline), None))
    courses = [plot_course(course, runs, given) for course in COURSES]
    rates = [plot_learning_rates(found, runs, given) for found in comparison.sets]
    return Plots(
        wers={found.name: plot_wers(found, given, comparison.level) for found in comparison.sets if found.rows},
        courses=[plot for plot in courses if isinstance(plot, Plot)],
        learning_rates=[plot for plot in rates if plot is not None],
        notes=[note for note in courses if isinstance(note, str)],
        looks=given,
    )


def contestants(comparison: Comparison) -> list[str]:
    """Return all names: by their rank on the first test set, then those that it lacks."""
    ranked = [row.contestant for found in comparison.sets for row in found.rows]
    return list(dict.fromkeys([*ranked, *(run.contestant for run in comparison.runs)]))
