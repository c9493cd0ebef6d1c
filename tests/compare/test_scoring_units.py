"""Runs scored by character: their comparison speaks of characters alone, and leaves out runs scored by word."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from asr.compare.compare import compare
from asr.compare.inputs.run_folders import read_runs
from asr.compare.inputs.tuning import Tuning
from asr.compare.plots.draw_plots import draw_plots
from asr.compare.report.files import write_json, write_report_files
from asr.compare.report.terminal import tables
from tests.compare.made_runs import errors_of, run_of, sweep
from tests.compare.report.parsed_page import parse
from tests.compare.run_folders import write_run

RATES = {"adamw": 0.4, "eve": 0.1, "cain": 0.3}
OF_WORDS = re.compile(r"WER|\b[Ww]ords?\b")


def free(config):
    return ("run_dir", "sweep", "data", "decode")


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
    found = read_runs([*folders, broken], free, {broken})
    trials = [Tuning("adamw", ((0.01, 0.5), (0.02, 0.3)), 0.02, True)]
    return compare(found.runs, title="made", baseline="adamw", failed=found.failed, tunings=trials, minutes=10)


def printed(comparison) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in tables(comparison):
        console.print(table)
    return console.export_text()


def of_characters(runs):
    return compare([dataclasses.replace(run, unit="character") for run in runs], title="made")


def test_the_terminal_speaks_of_characters_alone(comparison):
    text = " ".join(printed(comparison).split())
    assert not OF_WORDS.findall(text)
    sentences = ("Learned: a CER below 100 %", "to a CER below 100 %", "First at 30.00 % CER on dev", "another CER")
    for part in ("Character error rates", "Updates to 30 % CER on dev", *sentences, "count with its CER."):
        assert part in text


def test_the_page_speaks_of_characters_alone(comparison, tmp_path):
    report, *_ = write_report_files(comparison, tmp_path)
    source = report.read_text(encoding="utf-8")
    assert "WER" not in source
    (body,) = parse(source).all("body")
    text = " ".join(body.text.split())
    assert not OF_WORDS.findall(text)
    columns = ("CER % of those", "CER % on dev", "mean CER %", "P(lower CER)", "CER % on test", "last CER %")
    for part in ("Character error rates", *columns):
        assert part in text


def test_plots_speak_of_characters_alone(comparison):
    plots = draw_plots(comparison)
    shown = {plot.name: [plot.alt, plot.caption] for plot in plots.all}
    for plot in plots.all:
        shown[plot.name] += [n.text for n in ElementTree.fromstring(plot.svg).iter() if n.tag.endswith("text")]
    assert {"wer_test", "differences_test", "lr_test", "tuning", "dev_wer_updates", "loss_updates"} <= set(shown)
    for name, texts in shown.items():
        assert not OF_WORDS.findall(" ".join(texts)), name
        # in the alternative text and at an axis, or in the title
        assert name.startswith("loss") or sum("CER" in text for text in texts) > 1, name


def test_the_json_file_names_the_unit_and_keeps_its_keys(comparison, tmp_path):
    data = json.loads(write_json(comparison, tmp_path).read_text())
    assert (data["unit"], data["sets"][0]["unit"]) == ("character", "character")
    assert "wer_mean" in data["sets"][0]["rows"][0]


@pytest.mark.parametrize(
    ("systems", "seeds", "claim"),
    [
        ("ab", (1,), "had the lowest CER, but with only one seed"),
        ("ab", (1,), "of this run only: another seed may give another CER."),
        ("ab", (1, 2), "has the lowest CER: "),
        ("a", (1, 2), "has this CER: "),
    ],
)
def test_claims_that_few_runs_allow_are_of_the_cer(systems, seeds, claim):
    runs = [run_of(name, seed, (1, 2) if name == "a" else (2, 1)) for name in systems for seed in seeds]
    assert claim in printed(of_characters(runs))


@pytest.mark.parametrize(("last", "said"), [((0.5, 0.2), "is the same"), ((0.1, 0.2), "depends on the weights")])
def test_the_order_of_systems_by_weights_is_that_of_the_cer(last, said):
    rates = dict(zip(("adamw", "eve"), last, strict=True))
    runs = [
        dataclasses.replace(run, wers_by_weights={"best": {"test": run.sets["test"].wer}, "last": {"test": rate}})
        for run in sweep()
        if (rate := rates.get(run.system)) is not None
    ]
    assert f"The order of the systems by mean CER {said}" in printed(of_characters(runs))


def test_messages_on_what_cannot_be_compared_are_of_characters():
    sets = [errors_of([1] * 6), errors_of([1] * 6, words=9)]
    runs = [run_of("eve", seed, sets={"test": sets[seed == 3], "one": errors_of([1])}) for seed in (1, 2, 3)]
    assert of_characters([dataclasses.replace(run, target_wer=0.3) for run in runs]).problems == [
        "one is left out: it has a single utterance with characters, which says nothing about others",
        "test: runs/eve-3 left out: the number of characters differs for u0, u1, u2, u3, u4 and 1 more",
        "no times to a target: no run has logged its CER on the development sets",
    ]


def test_few_speakers_with_most_of_the_text_have_most_of_the_characters():
    errors = dataclasses.replace(errors_of((60, 3, 1, 1), speakers="abcc"), words=(900, 20, 20, 20))
    runs = [run_of("a", seed, sets={"test": errors}) for seed in (1, 2)]
    assert "Few of the 3 speakers have most of the characters: " in printed(of_characters(runs))


def test_runs_of_another_unit_are_left_out_with_their_curves_and_notes(tmp_path):
    words = [write_scored(tmp_path / f"b{seed}", f"seed={seed}", unit="word") for seed in (1, 2)]
    other = write_scored(tmp_path / "a", "optimizer=eve", "seed=1", notes=["error rates are of characters (CER)"])
    broken = write_scored(tmp_path / "c", "optimizer=eve", "seed=2")
    (broken / "report" / "summary.json").unlink()
    found = read_runs([other, *words, broken], free, {broken})
    assert [(run.folder, run.unit) for run in found.runs] == [(folder, "word") for folder in words]
    assert (found.notes, found.failed) == (["synthetic speech"], [])
    assert found.problems[1:] == [
        f"{other}, {broken} left out: scored by character (CER), the runs that are compared by word (WER); compare "
        "runs of each unit on their own (runs=[FOLDER,FOLDER]), or train all with the same data.scoring_unit"
    ]
    shown = draw_plots(compare(found.runs, title="made", problems=found.problems))
    assert "eve" not in shown.styles


def test_of_as_many_runs_by_word_and_by_character_the_first_decides(tmp_path):
    folders = [write_scored(tmp_path / unit, unit=unit) for unit in ("character", "word")]
    for given in (folders, folders[::-1]):
        assert [run.folder for run in read_runs(given, free).runs] == given[:1]


def test_runs_of_two_units_are_refused_where_they_were_not_told_apart_before():
    runs = sweep()
    with pytest.raises(ValueError, match="some runs are scored by word, others by character"):
        compare([dataclasses.replace(runs[0], unit="character"), *runs[1:]], title="made")


@pytest.mark.parametrize(
    ("config", "tested", "unit"),
    [
        ({}, {"wer": 0.3}, "word"),  # a run of before there was a choice
        ({"scoring_unit": "character"}, {"wer": 0.3}, "character"),
        ({}, {"unit": "character"}, "character"),
    ],
)
def test_the_unit_is_what_the_test_sets_say_or_the_config(tmp_path, config, tested, unit):
    folder = write_run(tmp_path / "a", config={"data": config}, summary={"test": {"test": tested}})
    assert [run.unit for run in read_runs([folder], free).runs] == [unit]


@pytest.mark.parametrize(
    ("config", "tested", "given"),
    [
        ({"scoring_unit": "letter"}, {"test": {}}, "letter"),
        ({}, {"test": {"unit": ["word"]}}, r"\['word'\]"),
        ({}, {"test": {"unit": "word"}, "other": {"unit": "character"}}, "word, character"),
    ],
)
def test_a_unit_that_is_none_leaves_out_its_run(tmp_path, config, tested, given):
    folder = write_run(tmp_path / "a", config={"data": config}, summary={"test": tested})
    (problem,) = read_runs([folder], free).problems
    assert re.search(rf"a is left out: its test sets must be scored all by word or all by .*, given {given}$", problem)


def test_damaged_errors_of_characters_are_of_characters(tmp_path):
    folder = write_scored(tmp_path / "a")
    file = folder / "decode" / "test.errors.tsv"
    header = file.read_text().split("\n", 1)[0]
    for rows, said in (("", "the references contain no characters"), ("\na\t\t3\t2\t2\t0\n", "2 deletions in 3 char")):
        file.write_text(f"{header}{rows}")
        assert said in read_runs([folder], free).problems[0]
