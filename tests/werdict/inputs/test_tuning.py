"""What a sweep has tried is read for a plot, from a file that may be anybody's."""

from __future__ import annotations

import math

from asr.sweeps.tuning import Range, Trial, TunedSystem
from hydra_plugins.werdict_sweepers import report
from werdict.plots import line_styles, plot_trials
from werdict.runs import Tuning, read_tuning


def study(*trials: tuple[float, float]) -> list[TunedSystem]:
    tried = [Trial({"optimizer.lr": lr, "optimizer.weight_decay": 0.1}, wer) for lr, wer in trials]
    return [TunedSystem("adamw", "adamw", (), True, {"optimizer.lr": Range(0.01, 5)}, trials=tried)]


def test_what_a_sweep_writes_is_read_and_drawn(tmp_path):
    assert read_tuning(tmp_path) == []
    report([study((0.01, 0.5), (0.02, 0.3), (0.05, math.inf)), study((0.01, 0.2), (0.03, 0.4))], tmp_path)
    found = read_tuning(tmp_path)
    assert found == [
        Tuning("adamw", ((0.01, 0.5), (0.02, 0.3), (0.05, math.inf)), 0.02, False),
        Tuning("adamw", ((0.01, 0.2), (0.03, 0.4)), 0.01, True),
    ]
    plot = plot_trials(found, line_styles(["adamw"], None), "WER")
    assert plot.svg.count(">edge<") == 1
    # of systems that are not compared nothing is drawn
    assert plot_trials(found, line_styles(["eve"], None), "WER") is None
