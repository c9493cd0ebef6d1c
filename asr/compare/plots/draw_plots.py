"""All plots of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asr.compare.plots.curve_plots import curve_plots
from asr.compare.plots.drawing import Plot
from asr.compare.plots.interval_plots import plot_differences, plot_wers
from asr.compare.plots.learning_rates import plot_learning_rates, plot_trials
from asr.compare.plots.line_styles import LineStyle, line_styles
from asr.compare.result import Comparison


@dataclass(frozen=True)
class Plots:
    """The plots by their place in a report.

    Attributes:
        by_set: WERs and, where a pair has several seeds, differences; by test set.
        learning_rates: one per test set, if systems differ only in their rate; and the trials that chose settings.
        curves: of WER on dev and of training loss.
        notes: sentences on what could not be drawn.
        styles: of the systems, best first.
    """

    by_set: Mapping[str, Sequence[Plot]]
    learning_rates: Sequence[Plot]
    curves: Sequence[Plot]
    notes: Sequence[str]
    styles: Mapping[str, LineStyle]

    @property
    def all(self) -> tuple[Plot, ...]:
        """Every plot."""
        return (*(plot for plots in self.by_set.values() for plot in plots), *self.learning_rates, *self.curves)


def draw_plots(comparison: Comparison) -> Plots:
    """Draw everything that the runs have measured."""
    sets, level = comparison.sets, comparison.level
    styles = line_styles(comparison.systems, sets[0].baseline)
    by_set = {
        test_set.name: (plot_wers(test_set, styles, level), plot_differences(test_set, styles, level, comparison.scale))
        for test_set in sets
    }
    rates = [plot_learning_rates(comparison, test_set, styles) for test_set in sets]
    rates.append(plot_trials(comparison.tunings, styles, comparison.rate_name))
    curves, notes = curve_plots(comparison, styles)
    return Plots(
        {name: [plot for plot in plots if plot is not None] for name, plots in by_set.items()},
        [plot for plot in rates if plot is not None],
        curves,
        notes,
        styles,
    )
