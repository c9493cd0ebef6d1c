"""All plots of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asr.compare.plots.curve_plots import curve_plots, plot_curves
from asr.compare.plots.drawing import Plot
from asr.compare.plots.interval_plots import plot_differences, plot_wers
from asr.compare.plots.learning_rates import plot_learning_rates, plot_trials
from asr.compare.plots.line_styles import LineStyle, line_styles
from asr.compare.result import Comparison


@dataclass(frozen=True)
class Plots:
    """The plots by their place in a report.

    Attributes:
        wers: one per test set, by its name.
        differences: the same; none of a set on which no pair has several seeds.
        curves: of WER on dev and of training loss.
        learning_rates: one per test set, if systems differ only in their learning rate.
        tuning: of the trials that chose settings; None if there were none.
        notes: sentences on what could not be drawn.
        styles: of the systems, best first.
    """

    wers: Mapping[str, Plot]
    differences: Mapping[str, Plot]
    curves: Sequence[Plot]
    learning_rates: Sequence[Plot]
    tuning: Plot | None
    notes: Sequence[str]
    styles: Mapping[str, LineStyle]

    @property
    def all(self) -> tuple[Plot, ...]:
        """Every plot."""
        tuning = [self.tuning] if self.tuning else []
        return (*self.wers.values(), *self.differences.values(), *self.learning_rates, *tuning, *self.curves)


def draw_plots(comparison: Comparison) -> Plots:
    """Draw everything that the runs have measured."""
    runs = {name: comparison.runs_of(name) for name in comparison.systems}
    baseline = next((found.baseline for found in comparison.sets if found.baseline), None)
    styles = line_styles(comparison.systems, baseline)
    curves = [plot_curves(spec, runs, styles) for spec in curve_plots(comparison.rate_name)]
    rates = [plot_learning_rates(found, runs, styles) for found in comparison.sets]
    differences = {found.name: plot_differences(found, styles, comparison.level) for found in comparison.sets}
    return Plots(
        wers={found.name: plot_wers(found, styles, comparison.level) for found in comparison.sets},
        differences={name: plot for name, plot in differences.items() if plot is not None},
        curves=[plot for plot in curves if isinstance(plot, Plot)],
        learning_rates=[plot for plot in rates if plot is not None],
        tuning=plot_trials(comparison.tunings, styles, comparison.rate_name),
        notes=[note for note in curves if isinstance(note, str)],
        styles=styles,
    )
