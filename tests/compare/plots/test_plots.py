"""What pictures show, read from their SVG, where text is text."""

import dataclasses
from xml.etree import ElementTree

import pytest

from asr.compare.inputs.runs import Curve
from asr.compare.plots.curve_plots import curve_plots, plot_curves
from asr.compare.plots.draw_plots import draw_plots
from asr.compare.plots.interval_plots import plot_wers
from asr.compare.plots.learning_rates import families, family_of, plot_learning_rates
from asr.compare.plots.line_styles import COLORS, line_styles
from asr.compare.report.html import inline_svg
from tests.compare.made_comparisons import made_comparison
from tests.compare.made_runs import compare_runs, run_of

BAND = "fill-opacity"
ODD = ("$x$ <script>alert(1)</script>", "_hidden", 'a "b" & c', "\N{GREEK SMALL LETTER ALPHA}\x07\ud800")


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


@pytest.fixture(scope="module")
def plots():
    return draw_plots(made_comparison(6))


def by_name(plots) -> dict:
    return {plot.name: plot for plot in plots.all}


def wers_of(comparison):
    return plot_wers(comparison.sets[0], line_styles(comparison.systems, "adamw"), comparison.level)


def curves_of(comparison, name="loss_updates"):
    (spec,) = [spec for spec in curve_plots("WER") if spec.name == name]
    return plot_curves(spec, runs_of(comparison), line_styles(comparison.systems, "adamw"))


def runs_of(comparison) -> dict:
    return {name: comparison.runs_of(name) for name in comparison.systems}


def test_there_is_a_picture_of_everything_that_was_measured(plots):
    names = [spec.name for spec in curve_plots("WER")]
    assert list(by_name(plots)) == ["wer_test", "differences_test", "lr_test", *names]
    assert plots.notes == []
    for plot in plots.all:
        assert plot.png.startswith(b"\x89PNG")
        ElementTree.fromstring(plot.svg)


def test_wers_stand_best_first_with_their_intervals(plots):
    rows = made_comparison(6).sets[0].rows
    shown = [text for text in texts(plots.wers["test"].svg) if text in plots.styles]
    assert shown == [row.system for row in rows]
    best = f"{100 * rows[0].wer_mean:.2f} [{100 * rows[0].low:.2f}, {100 * rows[0].high:.2f}]"
    assert best in texts(plots.wers["test"].svg)
    assert f"best first: eve lr=0.01 {best}; eve lr=0.03" in plots.wers["test"].alt
    assert "Dashed: mean of the baseline adamw" in plots.wers["test"].caption


def test_differences_from_the_baseline_stand_with_the_intervals_that_verdicts_are_of(plots):
    found = made_comparison(6).sets[0]
    plot = plots.differences["test"]
    (row,) = (row for row in found.rows if row.system == "eve lr=0.01")
    one = row.to_baseline
    numbers = f"{100 * one.mean:+.2f} [{100 * one.low:+.2f}, {100 * one.high:+.2f}]".replace("-", "−")
    assert numbers in texts(plot.svg)
    assert f"eve lr=0.01 {numbers}, {one.verdict}" in plot.alt
    assert "adamw" not in [text for text in texts(plot.svg) if text in plots.styles]
    assert draw_plots(made_comparison(1, 1)).differences == {}


def test_the_same_comparison_gives_the_same_files(plots):
    comparison = made_comparison(6)
    for again in (wers_of(comparison), curves_of(comparison, "dev_wer_updates")):
        assert again == by_name(plots)[again.name]


def test_learning_rates_are_compared_within_a_family(plots):
    assert family_of("eve lr=0.01 schedule=eden") == "eve schedule=eden"
    comparison = made_comparison(6)
    found = families(comparison.sets[0].rows, runs_of(comparison))
    rates = {family: [rate for rate, _ in members] for family, members in found.items()}
    assert rates == {"eve": [0.01, 0.03], "cain": [0.003, 0.01]}
    (plot,) = plots.learning_rates
    assert "(best 0.01); cain 0.003: " in plot.alt
    assert "choose rates on dev" in plot.caption


def test_what_was_not_logged_is_said():
    found = draw_plots(made_comparison(2, curves=False))
    assert list(by_name(found)) == ["wer_test", "differences_test", "lr_test"]
    assert [note.split(":")[0] for note in found.notes] == [
        "WER on dev against updates",
        "WER on dev against time",
        "Training loss against updates",
        "Training loss against time",
    ]


def test_a_system_without_a_curve_is_named_in_the_caption():
    comparison = made_comparison(2, 1)
    runs = [dataclasses.replace(comparison.runs[0], curves={}), *comparison.runs[1:]]
    found = curves_of(dataclasses.replace(comparison, runs=runs))
    assert "Not shown, because it was not logged: eve lr=0.01." in found.caption


def test_one_seed_has_a_dotted_interval_and_no_band():
    comparison = made_comparison(1, 1)
    wers, curves = wers_of(comparison), curves_of(comparison, "dev_wer_updates")
    assert "single run" in wers.caption
    assert " 95 %, this run only" in texts(wers.svg)
    assert curves.caption == "One seed each."
    assert BAND not in curves.svg


@pytest.mark.parametrize(("last_s", "unit"), [(50, "s"), (700, "min"), (4000, "min"), (20_000, "h"), (400_000, "h")])
def test_ticks_of_time_are_round_in_the_unit_that_is_named(last_s, unit):
    seconds = tuple(last_s * part for part in (0.1, 0.5, 1.0))
    runs = [run_of("eve", seed, curves={"val/wer": Curve((10, 20, 30), seconds, (0.9, 0.5, 0.3))}) for seed in (1, 2)]
    svg = curves_of(compare_runs(runs, title="made"), "dev_wer_seconds").svg
    assert f"training time ({unit})" in texts(svg)
    groups = [node for node in ElementTree.fromstring(svg).iter() if node.get("id", "").startswith("xtick_")]
    ticks = [node.text for group in groups for node in group.iter() if node.tag.endswith("text")]
    assert len(ticks) >= 3
    assert max(map(len, ticks)) <= 5, ticks


@pytest.mark.parametrize("counts", [(0,) * 6, (10,) * 6, (30,) * 6])
def test_odd_error_rates_are_drawn(counts):
    runs = [run_of(name, seed, counts) for name in ("eve", "eve lr=1") for seed in (1, 2)]
    runs[2:] = [dataclasses.replace(run, lr=1e-30) for run in runs[2:]]
    comparison = compare_runs(runs, title="made")
    assert wers_of(comparison)
    assert plot_learning_rates(comparison.sets[0], runs_of(comparison), line_styles(comparison.systems, None))


def test_an_interval_without_an_upper_end_is_drawn_as_far_as_it_is_known():
    comparison = made_comparison(1, 1)
    (found,) = comparison.sets
    endless = dataclasses.replace(found, rows=[dataclasses.replace(found.rows[0], high=float("inf"))])
    assert "∞" in wers_of(dataclasses.replace(comparison, sets=[endless])).alt


def test_names_are_text_whatever_they_hold():
    comparison = made_comparison(4, 1, names=ODD)
    shown = [ODD[0], ODD[1], ODD[2], "α��"]
    assert set(shown) <= set(texts(wers_of(comparison).svg))
    assert {f" {name}" for name in shown} <= set(texts(curves_of(comparison).svg))


def test_an_inlined_picture_takes_the_colors_of_the_page_and_has_names_of_its_own(plots):
    one, other = (
        ElementTree.fromstring(inline_svg(by_name(plots)[spec.name].svg, spec.name, "a < b"))
        for spec in curve_plots("WER")[:2]
    )
    assert (one.get("role"), one.get("aria-label")) == ("img", "a < b")
    assert one.get("viewBox")
    assert one.get("width") is None
    assert not {"style", "metadata"} & {node.tag for node in one.iter()}  # a style would hold for the whole page
    ids = [[node.get("id") for node in root.iter() if node.get("id")] for root in (one, other)]
    assert all(len(found) == len(set(found)) for found in ids)
    assert not set(ids[0]) & set(ids[1])
    values = [value for node in one.iter() for value in node.attrib.values()]
    assert not any(color.light in value for color in COLORS for value in values)
    assert any("var(--hue-1)" in value for value in values)
    for value in values:
        if "url(#" in value:
            assert value.removeprefix("url(#").removesuffix(")") in ids[0]
    uses = [node.get("href").removeprefix("#") for node in one.iter() if node.tag == "use"]
    assert uses
    assert set(uses) <= set(ids[0])
