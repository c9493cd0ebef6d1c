"""Plots of one run: loss, error rates and learning rate against updates."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import matplotlib.style

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from asr.evaluation.metrics_csv import read_metrics
from asr.safe_io import write_whole

Curve = tuple[Sequence[int], Sequence[float]]


def plot_curves(metrics: Path, folder: Path, rate_name: str = "WER") -> list[Path]:
    """Draw ``loss.png``, ``wer.png`` and ``lr.png`` from a metrics.csv, as far as they were logged; return the files.

    Args:
        metrics: the file.
        folder: of the pictures.
        rate_name: what the error rate is called.

    Raises:
        ValueError: the file is not a table of metrics.
    """
    curves = read_metrics(metrics, lambda name: name in ("train/loss", "train/lr") or name.startswith("val/"))
    folder.mkdir(parents=True, exist_ok=True)
    wer = {
        name.removeprefix("val/").removesuffix("/wer"): (steps, [100 * value for value in values])
        for name, (steps, values) in curves.items()
        if name.startswith("val/") and name.endswith("/wer") and name != "val/wer"
    }
    plots: dict[str, tuple[Mapping[str, Curve], str, str]] = {
        "loss": ({"train": curves["train/loss"]} if "train/loss" in curves else {}, "loss (nats per token)", "linear"),
        "wer": (wer, f"{rate_name} on dev (%)", "log"),
        "lr": ({"lr": curves["train/lr"]} if "train/lr" in curves else {}, "learning rate", "linear"),
    }
    # a file matplotlibrc in the current folder may be somebody else's, and ask for TeX
    with matplotlib.style.context("default"):
        return [_plot(folder / f"{name}.png", drawn, *axis) for name, (drawn, *axis) in plots.items() if drawn]


def _plot(path: Path, curves: Mapping[str, Curve], label: str, scale: str) -> Path:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    assert isinstance(axes, Axes)
    for name, (steps, values) in curves.items():
        axes.plot(steps, values, label=name, marker="o" if len(steps) < 30 else None, linewidth=1.5)
    if scale == "log" and all(value > 0 for _, values in curves.values() for value in values):
        axes.set_yscale("log")
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("updates")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    plt.close(figure)
    write_whole(path, drawn.getvalue())
    return path
