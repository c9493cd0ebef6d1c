"""The curves of one run: training and development sets on one axis."""

from __future__ import annotations

from matplotlib.figure import Figure

from asr.evaluation.training_plots import plot_curves

ROWS = {"train/loss": (45.0, 2.0, 0.3), "val/dev/loss": (30.0, 2.5, 0.9), "val/dev/ctc_loss": (9.0, 9.0, 9.0)}


def test_loss_shows_training_and_dev_on_a_logarithmic_axis(tmp_path, monkeypatch):
    rows = [f"{step},{name},{value}\n" for name, values in ROWS.items() for step, value in enumerate(values)]
    (tmp_path / "metrics.csv").write_text("step,name,value\n" + "".join(rows))
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    (path,) = plot_curves(tmp_path / "metrics.csv", tmp_path)
    (axes,) = figures[0].axes
    assert (path.name, axes.get_yscale()) == ("loss.png", "log")
    assert {line.get_label(): tuple(line.get_ydata()) for line in axes.lines} == {
        "train": ROWS["train/loss"],
        "dev": ROWS["val/dev/loss"],
    }
