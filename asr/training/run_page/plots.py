"""Plots of a run's page: curves, spectrograms, tokens over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from asr.compare.plots.drawing import Legend, Plot, draw, is_wide, label_log_axis
from asr.compare.plots.line_styles import line_styles
from asr.evaluation.formatting import shortened
from asr.evaluation.metrics_csv import Points, read_metrics
from asr.evaluation.training_plots import on_dev
from asr.training.run_page.examples import Example

MAX_POINTS = 400  # of a curve, more than a page of this width can show
MAX_LABELS = 40  # tokens that can be read below each other
TITLE_LENGTH = 44
LOSS, LR = "Loss", "Learning rate"
KINDS = {"train/loss": LOSS, "train/lr": LR, "train/gradient_norm": "Gradient norm before clipping"}


def plot_run_curves(metrics: Path, rate_name: str) -> list[Plot]:
    """Draw loss, error rates, learning rate and gradient norm against updates, as far as they were logged."""
    curves = read_metrics(metrics, lambda name: name in KINDS or name.startswith("val/"))
    drawn = {title: {"train": curves[name]} for name, title in KINDS.items() if name in curves}
    drawn[LOSS] = drawn.get(LOSS, {}) | on_dev(curves, "loss")
    drawn[f"{rate_name} on dev"] = on_dev(curves, "wer")
    labels = {LOSS: "nats per token", f"{rate_name} on dev": f"{rate_name} (%)"}
    order = [LOSS, f"{rate_name} on dev", *list(KINDS.values())[1:]]
    return [_plot_curves(title, drawn[title], labels.get(title, "")) for title in order if drawn.get(title)]


def _plot_curves(title: str, curves: Mapping[str, Points], label: str) -> Plot:
    styles = line_styles(list(curves), None)
    scale = 100 if "%" in label else 1
    thinned = {name: _thinned(steps, values, scale) for name, (steps, values) in curves.items()}

    def fill(axes: Axes) -> Legend:
        axes.set(xlabel="updates", ylabel=label)
        legend = []
        for name, (steps, values) in thinned.items():
            marker = styles[name].marker if len(steps) < 30 else ""
            (line,) = axes.plot(steps, values, marker=marker, markersize=4, **styles[name].line_options)
            legend.append((line, name))
        known = np.concatenate([values[np.isfinite(values)] for _, values in thinned.values()])
        # a schedule may end at almost 0
        is_log = len(known) and known.min() > 0 and title != LR and (title == LOSS or is_wide(known.tolist()))
        if is_log:
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, known.min(), known.max())
        return legend if len(legend) > 1 else []

    return draw(title.split()[0].lower(), title, "", fill, with_png=False)


def _thinned(steps: Sequence[float], values: Sequence[float], scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return scaled means of as many neighbors as leave ``MAX_POINTS``."""
    pairs = np.array([steps, scale * np.asarray(values)])
    size = -(-pairs.shape[1] // MAX_POINTS)
    means = np.stack([pairs[:, start : start + size].mean(axis=1) for start in range(0, pairs.shape[1], size)], axis=1)
    return means[0], means[1]


def plot_example(example: Example, number: int) -> Plot:
    """Draw features as a spectrogram, or the probabilities of tokens over time."""
    num_rows, num_columns = example.matrix.shape
    is_tokens = bool(example.rows)

    def fill(axes: Axes) -> Legend:
        options = {"vmin": 0, "vmax": 1, "cmap": "Blues"} if is_tokens else {"cmap": "magma"}
        extent = (0, num_columns * example.shift_s, -0.5, num_rows - 0.5)
        axes.imshow(example.matrix, aspect="auto", origin="lower", interpolation="nearest", extent=extent, **options)
        axes.set(xlabel="seconds", ylabel="" if is_tokens else "feature")
        axes.grid(visible=False)
        if is_tokens:
            shown = range(0, num_rows, -(-num_rows // MAX_LABELS))
            axes.set_yticks(list(shown), [example.rows[row] for row in shown], fontsize=7.5)
        return []

    height = min(6.0, max(2.0, 0.16 * num_rows)) if is_tokens else 2.2
    name = f"{'tokens' if is_tokens else 'features'}_{number}"
    return draw(name, shortened(example.id, TITLE_LENGTH), example.text, fill, height, with_png=False)
