"""Runs scored by character: their comparison speaks of characters alone, and leaves out runs scored by word."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from asr.runs.folders import read_runs
from tests.werdict.made_runs import compare_runs
from tests.werdict.report.parsed_page import parse
from tests.werdict.run_folders import write_run
from werdict.plots import draw_plots
from werdict.report.pages import tables, write_report_files
from werdict.runs import Tuning

RATES = {"adamw": 0.4, "eve": 0.1, "cain": 0.3}
OF_WORDS = re.compile(r"WER|\b[Ww]ords?\b")


def write_scored(folder: Path, *words: str, unit: str = "character", rate: float = 0.3, **report) -> Path:
    config = {"data": {"scoring_unit": unit}, "sweep": {"target_wer": 0.3}, "decode": ["best", "last"]}
    summary = {
        "test": {"test": {"wer": rate, "unit": unit}},
        "other_weights": {"last": {"test": {"test": {"wer": 0.9 * rate}}}},
        **report,
    }
    return write_run(folder, *words, rate=rate, config=config, summary=summary)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A comparison with every table and plot: runs that never learned and that failed, rates, weights and trials."""
    folder = tmp_path_factory.mktemp("runs")
    typed = [(f"optimizer={name}", rate, seed) for name, rate in RATES.items() for seed in (1, 2, 3)]
    typed += [("optimizer=adamw optimizer.lr=0.01", 0.5, seed) for seed in (1, 2, 3)]
    folders = [
        write_scored(folder / str(place), *name.split(), f"seed={seed}", rate=rate)
        for place, (name, rate, seed) in enumerate([*typed, ("optimizer=cain", 1.0, 4)])
    ]
    broken = write_scored(folder / "broken", "optimizer=eve", "seed=4")
    (broken / "report" / "summary.json").unlink()
    found = read_runs([*folders, broken], {broken})
    trials = [Tuning("adamw", ((0.01, 0.5), (0.02, 0.3)), 0.02, True)]
    return compare_runs(found.runs, title="made", baseline="adamw", failed=found.failed, tunings=trials, minutes=10)


def printed(comparison) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in tables(comparison):
        console.print(table)
    return console.export_text()


def test_the_terminal_speaks_of_characters_alone(comparison):
    text = " ".join(printed(comparison).split())
    assert not OF_WORDS.findall(text)
    sentences = ("it has learned if its CER is below 100 %",)
    for part in ("Character error rates", "Updates to 30 % CER on dev", *sentences, "count with its CER."):
        assert part in text


def test_the_page_speaks_of_characters_alone(comparison, tmp_path):
    report, *_ = write_report_files(comparison, tmp_path)
    source = report.read_text(encoding="utf-8")
    assert "WER" not in source
    (body,) = parse(source).all("body")
    text = " ".join(body.text.split())
    assert not OF_WORDS.findall(text)
    columns = ("points of CER", "CER % on dev", "mean CER %", "CER % on test", "last CER %")
    for part in ("Character error rates", *columns):
        assert part in text


def test_plots_speak_of_characters_alone(comparison):
    plots = draw_plots(comparison)
    shown = {plot.name: [plot.title, plot.caption] for plot in plots.all}
    for plot in plots.all:
        shown[plot.name] += [n.text for n in ElementTree.fromstring(plot.svg).iter() if n.tag.endswith("text")]
    assert {"wer_test", "differences_test", "lr_test", "tuning", "dev_wer_updates", "loss_updates"} <= set(shown)
    for name, texts in shown.items():
        assert not OF_WORDS.findall(" ".join(texts)), name
        assert name.startswith("loss") or sum("CER" in text for text in texts) > 1, name
