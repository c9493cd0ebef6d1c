"""Plots of one run: loss, error rates and learning rate against updates."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from asr.evaluation.metrics_csv import Points, read_metrics
from asr.safe_io import write_whole


def plot_curves(metrics: Path, folder: Path, rate_name: str = "WER") -> list[Path]:
    """Draw ``loss.png``, ``wer.png`` and ``lr.png`` from a metrics.csv, as far as they were logged; return the files.

    Args:
        metrics: the file.
        folder: of the pictures.
        rate_name: what the error rate is called.
    """
    curves = read_metrics(metrics, lambda name: name.startswith(("train/loss", "train/lr", "val/")))
    of_training = {name: {"train": curves[f"train/{name}"]} for name in ("loss", "lr") if f"train/{name}" in curves}
    loss = of_training.get("loss", {}) | on_dev(curves, "loss")
    plots = {"loss": (loss, "loss (nats per token)"), "wer": (on_dev(curves, "wer"), f"{rate_name} on dev (%)")}
    plots["lr"] = of_training.get("lr", {}), "learning rate"
    folder.mkdir(parents=True, exist_ok=True)
    # a file matplotlibrc in the current folder may be somebody else's, and ask for TeX
    with matplotlib.style.context("default"):
        return [_plot(folder / f"{name}.png", *drawn) for name, drawn in plots.items() if drawn[0]]


def on_dev(curves: Mapping[str, Points], metric: str) -> dict[str, Points]:
    """Return curves by the name of their development set; ``val/wer`` is the mean of all."""
    parts = {name: name.split("/") for name in curves}
    return {part[1]: curves[name] for name, part in parts.items() if part[0] == "val" and part[2:] == [metric]}


def _plot(path: Path, curves: dict[str, Points], label: str) -> Path:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="updates", ylabel=label)
    scale = 100 if path.stem == "wer" else 1
    for name, (steps, values) in curves.items():
        y = [scale * value for value in values]
        axes.plot(steps, y, label=name, marker="o" if len(steps) < 30 else None, linewidth=1.5)
    # on a linear axis all that comes after the first updates would look flat
    if path.stem in ("loss", "wer") and not any(value <= 0 for _, values in curves.values() for value in values):
        axes.set_yscale("log")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.3)
    axes.legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    write_whole(path, drawn.getvalue())
    return path
