"""What plots show, read from their SVG, where text is text, and colors that everybody can tell apart."""

import dataclasses
import itertools
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes

from tests.werdict.made_comparisons import compare_runs, made_comparison, run_of
from werdict.plots import FAINT, HUES, INK, PAPER, draw_plots, families, line_styles
from werdict.runs import Curve

BAND = "fill-opacity"
ODD = ("$x$ <script>alert(1)</script>", "_hidden", 'a "b" & c', "\N{GREEK SMALL LETTER ALPHA}\x07\ud800")
CURVES = ["dev_wer_updates", "dev_wer_seconds", "loss_updates", "loss_seconds"]


def texts(plot) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(plot.svg).iter() if node.tag.endswith("text")]


def plots_of(comparison) -> dict:
    return {plot.name: plot for plot in draw_plots(comparison).all}


@pytest.fixture(scope="module")
def plots():
    return plots_of(made_comparison(6))


def test_there_is_a_plot_of_everything_that_was_measured_and_always_the_same(plots):
    assert list(plots) == ["wer_test", "differences_test", "lr_test", *CURVES]
    assert all(plot.png.startswith(b"\x89PNG") for plot in plots.values())
    assert plots_of(made_comparison(6)) == plots


def test_wers_stand_best_first_with_their_intervals(plots):
    rows = made_comparison(6).sets[0].rows
    names = [row.system for row in rows]
    shown = texts(plots["wer_test"])
    assert [text for text in shown if text in names] == names
    assert f"{100 * rows[0].wer_mean:.2f} [{100 * rows[0].low:.2f}, {100 * rows[0].high:.2f}]" in shown
    assert shown[-1] == " adamw"  # the baseline's line, in the legend


def test_differences_from_the_baseline_stand_with_the_intervals_that_verdicts_are_of(plots):
    (row,) = (row for row in made_comparison(6).sets[0].rows if row.system == "eve lr=0.01")
    one, shown = row.to_baseline, texts(plots["differences_test"])
    assert f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" in shown
    assert "adamw" not in shown
    assert "differences_test" not in plots_of(made_comparison(1, 1))


def test_learning_rates_are_compared_within_a_family(plots):
    comparison = made_comparison(6)
    found = families(comparison, comparison.sets[0].rows)
    rates = {family: [rate for rate, _ in members] for family, members in found.items()}
    assert rates == {"eve": [0.01, 0.03], "cain": [0.003, 0.01]}
    assert {" eve", " cain"} <= set(texts(plots["lr_test"]))


def test_what_was_not_logged_is_said():
    found = draw_plots(made_comparison(2, curves=False))
    assert found.curves == []
    assert [note.split(":")[0] for note in found.notes] == [
        "WER on dev against updates",
        "WER on dev against time",
        "Training loss against updates",
        "Training loss against time",
    ]


def test_a_system_without_a_curve_is_named_in_the_caption():
    comparison = made_comparison(2, 1)
    runs = [dataclasses.replace(comparison.runs[0], curves={}), *comparison.runs[1:]]
    found = plots_of(dataclasses.replace(comparison, runs=runs))["loss_updates"]
    assert "not logged: eve lr=0.01." in found.caption


def test_one_seed_has_a_dotted_interval_and_no_band():
    found = plots_of(made_comparison(1, 1))
    assert " 95 %, this run only" in texts(found["wer_test"])
    assert found["dev_wer_updates"].caption == "One seed each."
    assert BAND not in found["dev_wer_updates"].svg


@pytest.mark.parametrize(("last_s", "unit"), [(50, "s"), (700, "min"), (400_000, "h")])
def test_ticks_of_time_are_round_in_the_unit_that_is_named(last_s, unit):
    seconds = tuple(last_s * part for part in (0.1, 0.5, 1.0))
    runs = [run_of("eve", seed, curves={"val/wer": Curve((10, 20, 30), seconds, (0.9, 0.5, 0.3))}) for seed in (1, 2)]
    plot = plots_of(compare_runs(runs))["dev_wer_seconds"]
    assert f"training time ({unit})" in texts(plot)
    groups = [node for node in ElementTree.fromstring(plot.svg).iter() if node.get("id", "").startswith("xtick_")]
    ticks = [node.text for group in groups for node in group.iter() if node.tag.endswith("text")]
    assert len(ticks) >= 3
    assert max(map(len, ticks)) <= 5, ticks


@pytest.mark.parametrize("counts", [(0,) * 6, (10,) * 6, (30,) * 6])
def test_odd_error_rates_are_drawn(counts):
    runs = [run_of(name, seed, counts) for name in ("eve", "eve lr=1") for seed in (1, 2)]
    runs[2:] = [dataclasses.replace(run, lr=1e-30) for run in runs[2:]]
    assert {"wer_test", "lr_test"} <= plots_of(compare_runs(runs)).keys()


@pytest.mark.parametrize(
    ("unknown", "num_lines", "num_arrows"), [((), 1, 0), (("high",), 1, 1), (("low",), 1, 1), (("low", "high"), 0, 0)]
)
def test_an_unknown_end_of_an_interval_is_an_arrow_to_the_edge_and_without_ends_there_is_no_line(
    unknown, num_lines, num_arrows, monkeypatch
):
    lines, arrows = [], []
    plot, annotate = Axes.plot, Axes.annotate
    monkeypatch.setattr(Axes, "plot", lambda axes, x, *args, **kw: lines.append(x) or plot(axes, x, *args, **kw))
    monkeypatch.setattr(Axes, "annotate", lambda *args, **kw: arrows.append(kw["xy"][0]) or annotate(*args, **kw))
    comparison = made_comparison(1, 1, curves=False)
    (found,) = comparison.sets
    ends = {"low": -math.inf, "high": math.inf}
    row = dataclasses.replace(found.rows[0], **{name: ends[name] for name in unknown})
    shown = plots_of(dataclasses.replace(comparison, sets=[dataclasses.replace(found, rows=[row])]))["wer_test"]
    known = [100 * end if math.isfinite(end) else 100 * row.wer_mean for end in (row.low, row.high)]
    assert [x for x in lines if len(x) == 2] == [pytest.approx(known)] * num_lines
    assert arrows == [float(unknown == ("high",))] * num_arrows
    assert any(text.endswith("∞]") for text in texts(shown)) == (unknown == ("high",))


def test_names_are_text_whatever_they_hold():
    found = plots_of(made_comparison(4, 1, names=ODD))
    shown = [*ODD[:3], "α\\x07\\ud800"]
    assert set(shown) <= set(texts(found["wer_test"]))
    assert {f" {name}" for name in shown} <= set(texts(found["loss_updates"]))


# Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color vision deficiency": what
# is seen without one kind of cone, as linear RGB
VISION = {
    "full": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines have it."""
    low, high = sorted(float(linear(color) @ TO_XYZ[1]) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_every_color_stands_out_from_the_paper():
    assert contrast(INK, PAPER) > 7
    assert all(contrast(hue, PAPER) >= 3 for hue in HUES)
    assert contrast(FAINT, PAPER) < 2


@pytest.mark.parametrize("vision", VISION)
def test_colors_differ_for_every_kind_of_color_vision(vision):
    seen = [lab(np.array(VISION[vision]) @ linear(color)) for color in (INK, *HUES)]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 20


def test_forty_systems_look_different():
    names = [str(number) for number in range(40)]
    found = line_styles(names, "7")
    assert list(found) == names
    assert len(set(found.values())) == 40
    assert found["7"].color is INK
    assert all(found[name].color is not INK for name in names if name != "7")
