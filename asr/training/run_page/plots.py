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
from asr.training.run_page.examples import Example

MAX_POINTS = 400  # of a curve, more than a page of this width can show
MAX_LABELS = 40  # tokens that can be read below each other
TITLE_LENGTH = 44
OF_TRAINING = ("train/loss", "train/lr", "train/gradient_norm")


def plot_run_curves(metrics: Path, rate_name: str) -> list[Plot]:
    """Draw loss, error rates, learning rate and gradient norm against updates, as far as they were logged."""
    curves = read_metrics(metrics, lambda name: name in OF_TRAINING or name.startswith("val/"))
    loss, lr, gradient_norm = ({"train": curves[name]} if name in curves else {} for name in OF_TRAINING)
    plots = (
        ("loss", "Loss", "nats per token", loss | on_dev(curves, "loss")),
        ("wer", f"{rate_name} on dev", f"{rate_name} (%)", on_dev(curves, "wer")),
        ("lr", "Learning rate", "", lr),
        ("gradient_norm", "Gradient norm before clipping", "", gradient_norm),
    )
    return [_plot_curves(name, title, label, drawn) for name, title, label, drawn in plots if drawn]


def on_dev(curves: Mapping[str, Points], metric: str) -> dict[str, Points]:
    """Return curves by the name of their development set; ``val/wer`` is the mean of all."""
    parts = {name: name.split("/") for name in curves}
    return {part[1]: curves[name] for name, part in parts.items() if part[0] == "val" and part[2:] == [metric]}


def _plot_curves(name: str, title: str, label: str, curves: Mapping[str, Points]) -> Plot:
    styles = line_styles(list(curves), None)
    scale = 100 if name == "wer" else 1
    thinned = {curve: _thinned(steps, values, scale) for curve, (steps, values) in curves.items()}

    def fill(axes: Axes) -> Legend:
        axes.set(xlabel="updates", ylabel=label)
        legend = []
        for curve, (steps, values) in thinned.items():
            marker = styles[curve].marker if len(steps) < 30 else ""
            (line,) = axes.plot(steps, values, marker=marker, markersize=4, **styles[curve].line_options)
            legend.append((line, curve))
        finite = np.concatenate([values[np.isfinite(values)] for _, values in thinned.values()])
        # a schedule may end at almost 0
        is_log = len(finite) and finite.min() > 0 and name != "lr" and (name == "loss" or is_wide(finite.tolist()))
        if is_log:
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, finite.min(), finite.max())
        return legend if len(legend) > 1 else []

    return draw(name, title, "", fill)


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
        extent = (example.start_s, example.start_s + num_columns * example.shift_s, -0.5, num_rows - 0.5)
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
