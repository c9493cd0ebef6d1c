"""Plots of one run: loss, error rates and learning rate against updates."""

from __future__ import annotations

import io
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
    rates = {
        name.removeprefix("val/").removesuffix("/wer"): points
        for name, points in curves.items()
        if name.startswith("val/") and name.endswith("/wer") and name != "val/wer"
    }
    loss, lr = ({name: curves[key]} if (key := f"train/{name}") in curves else {} for name in ("loss", "lr"))
    plots = {"loss": (loss, "loss (nats per token)"), "wer": (rates, f"{rate_name} on dev (%)")}
    plots["lr"] = lr, "learning rate"
    folder.mkdir(parents=True, exist_ok=True)
    # a file matplotlibrc in the current folder may be somebody else's, and ask for TeX
    with matplotlib.style.context("default"):
        return [_plot(folder / f"{name}.png", *drawn) for name, drawn in plots.items() if drawn[0]]


def _plot(path: Path, curves: dict[str, Points], label: str) -> Path:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="updates", ylabel=label)
    scale = 100 if path.stem == "wer" else 1
    for name, (steps, values) in curves.items():
        y = [scale * value for value in values]
        axes.plot(steps, y, label=name, marker="o" if len(steps) < 30 else None, linewidth=1.5)
    if path.stem == "wer" and all(value > 0 for _, values in curves.values() for value in values):
        axes.set_yscale("log")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.3)
    axes.legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    write_whole(path, drawn.getvalue())
    return path
