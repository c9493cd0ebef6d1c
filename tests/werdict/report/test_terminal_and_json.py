"""A comparison for people at a terminal and for programs."""

import dataclasses
import io
import json
import math
import re

import pytest
from rich.console import Console

from tests.werdict.made_comparisons import made_comparison
from tests.werdict.made_runs import compare_runs, run_of, sweep
from werdict.from_python import compare_results
from werdict.report.pages import tables, write_errors, write_json


def printed(comparison, width=110) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    for table in tables(comparison):
        console.print(table)
    return console.export_text()


def test_the_tables_show_wers_differences_verdicts_and_costs():
    text = printed(compare_runs(sweep(), title="made", baseline="adamw", target_wer=0.2))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "test: 6 utterances, 3 speakers" in lines
    assert any(line.startswith("eve 18.33 ± ") and line.endswith("seeds and speakers 3") for line in lines)
    assert "Compared with adamw (baseline)" in lines
    assert any(line.startswith("eve better 0.31 [0.") and line.endswith(" 3") for line in lines)
    assert any(line.startswith("cain cannot distinguish ") and line.endswith(" 3") for line in lines)
    assert "eve 0.001 100 - - - - -" in lines


def test_the_answer_comes_first_and_terms_are_explained_elsewhere():
    lines = printed(compare_runs(sweep(), title="made", baseline="adamw")).splitlines()
    assert lines[0].startswith("test: ")
    assert lines[1].startswith("eve is best, ")
    assert not any("Another seed would give" in line for line in lines)


def test_the_tables_of_speed_are_whole_at_a_narrow_terminal():
    """Numbers are never cut: a name is folded instead."""
    comparison = made_comparison(4, 3, target_wer=0.06)
    row = comparison.equal_time.rows[0]
    contrast = dataclasses.replace(row.contrast, value=0.8123, low=0.6345, high=1.1234, verdict="cannot distinguish")
    rows = [dataclasses.replace(row, wer_mean=1.0, area=1.0, contrast=contrast), *comparison.equal_time.rows[1:]]
    equal = dataclasses.replace(comparison.equal_time, rows=rows)
    text = printed(dataclasses.replace(comparison, equal_time=equal), width=80)
    assert re.search(r" cannot distinguish +100\.00 ± 0\.\d\d +0\.81 \[0\.63, 1\.12\] +100\.00$", text, re.M)
    assert "≥ 6" in text
    assert "…" not in text


def test_names_are_text_not_markup():
    runs = [dataclasses.replace(run, system=run.system + " [red]x[/red]") for run in sweep()]
    assert "eve [red]x[/red]" in printed(compare_runs(runs, title="[b]made[/b]"))


def test_the_json_file_holds_all_but_curves_and_errors(tmp_path):
    comparison = compare_runs(sweep(), title="made", baseline="adamw", target_wer=0.2, problems=["p"], notes=["n"])
    data = json.loads(write_json(comparison, tmp_path).read_text())
    assert (data["title"], data["level"], data["target"]) == ("made", 0.95, {"wer": 0.2, "is_fixed": False})
    assert data["problems"][0] == "p"
    assert data["notes"] == ["n"]
    (found,) = data["sets"]
    assert (found["name"], found["num_utterances"], found["num_speakers"], found["baseline"]) == ("test", 6, 3, "adamw")
    assert found["rows"][0]["system"] == "eve"
    assert found["rows"][0]["to_baseline"]["verdict"] == "better"
    assert (data["times_to_target"], data["equal_time"]) == ([], None)
    assert len(data["runs"]) == 9
    assert set(data["runs"][0]) == {"folder", "system", "seed", "lr", "wer", "learned", "wer_by_weights", "cost"}


def test_the_json_file_holds_the_verdict_of_each_system_and_of_each_pair_if_asked(tmp_path):
    comparison = made_comparison(6, 3, pairs="all")
    data = json.loads(write_json(comparison, tmp_path).read_text())
    (found,) = data["sets"]
    assert {row["system"] for row in found["rows"] if row["to_baseline"] is None} == {found["baseline"]}
    assert {row["may_be_best"] for row in found["rows"]} == {True, False}
    names = {"num_seeds", "value", "low", "high", "p_adjusted", "verdict", "detectable", "points"}
    assert names <= set(found["rows"][0]["to_baseline"])
    assert len({frozenset((one["system"], one["other"])) for one in found["pairs"]}) == 15
    assert {one["verdict"] for one in found["pairs"]} == {"better", "cannot distinguish"}
    assert all(one["value"] <= 1 for one in found["pairs"])


def test_an_end_that_is_unknown_is_null_in_json_and_a_dash_in_tables(tmp_path):
    comparison = compare_runs([run_of("eve", seed, (one,) * 6) for seed, one in enumerate((3, 8))])
    (row,) = json.loads(write_json(comparison, tmp_path).read_text())["sets"][0]["rows"]
    assert (row["low"], row["high"]) == (None, None)
    assert any(re.match(r"eve +55.00 ± 35.36 +- seeds and", line) for line in printed(comparison).splitlines())


def test_what_is_no_number_in_json_is_null(tmp_path):
    runs = [dataclasses.replace(run, lr=math.inf) for run in sweep()]
    text = write_json(compare_runs(runs, title="made"), tmp_path).read_text()
    assert json.loads(text)["runs"][0]["lr"] is None


@pytest.mark.parametrize("seen", [False, True])
def test_stored_errors_are_judged_again_alike(tmp_path, seen):
    """By speaker, with a run that has failed; by utterance where training data have these speakers."""
    errors = [dataclasses.replace(run.sets["test"], seen_speakers=seen) for run in sweep()]
    runs = [dataclasses.replace(run, sets={"test": one}) for run, one in zip(sweep(), errors, strict=True)]
    compared = compare_runs(runs, failed=[("cain", 4), ("adamw", 4)])
    again = compare_results(str(write_errors(compared, tmp_path))).comparison
    assert again.sets[0].num_speakers == (None if seen else 3)
    for one, other in zip(compared.sets[0].rows, again.sets[0].rows, strict=True):
        assert (one.system, one.seeds, one.wers, one.to_baseline) == (
            *(other.system, other.seeds, other.wers, other.to_baseline),
        )
