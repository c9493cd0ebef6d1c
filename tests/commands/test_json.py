"""``--json``: standard output is one document, whatever else a command says."""

import json
import subprocess
import sys

import pytest

from asr.commands import evaluate
from tests.configs import composed
from tests.werdict.run_folders import write_run
from werdict.errors import ConfigError


def parsed(command: str, *words: str, folder) -> tuple[int, object, str]:
    """Run a command with ``--json``; return its exit code, what standard output holds, and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "asr.commands", command, *words, "--json"], cwd=folder, capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_a_comparison_is_the_json_that_its_folder_holds(tmp_path):
    lines = [f"{system},u{number},a b,{'a b' if system == 'x' else 'a'}" for system in "xy" for number in range(6)]
    (tmp_path / "r.csv").write_text("\n".join(["system,id,reference,hypothesis", *lines]))
    code, found, said = parsed("compare", "results=r.csv", "out=c", folder=tmp_path)
    assert code == 0, said
    assert found.pop("folder") == str(tmp_path / "c")
    assert found == json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert "report:" in said


def test_runs_are_a_list_and_problems_go_to_standard_error(tmp_path):
    write_run(tmp_path / "runs" / "a", "optimizer=eve")
    damaged = write_run(tmp_path / "runs" / "b", "optimizer=eve")
    (damaged / "report" / "summary.json").write_text("{")
    code, found, said = parsed("runs", folder=tmp_path)
    assert code == 0, said
    assert "a" in [run["run"].split("/")[-1] for run in found]
    assert "problem" in said


def test_a_refused_command_line_prints_no_document(tmp_path):
    code, found, said = parsed("compare", "results=nowhere.csv", folder=tmp_path)
    assert (code, found) == (2, None)
    assert "nowhere.csv" in said


def test_an_evaluation_is_the_rates_of_each_set_by_name(small_run, tmp_path, capsys):
    run = small_run.copy(tmp_path / "run")
    table = tmp_path / "mine.tsv"
    table.write_text(f"audio\ttext\n{small_run.audio}\tone two\n{small_run.audio}.missing\tone\n")
    words = (f"run={run}", f"manifest={table}", f"output_dir={tmp_path}/out", "num_workers=0", "torch_threads=1")
    evaluate.run(composed(*words, "output_format=json", command="evaluate").options)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["folder"] == f"{tmp_path}/out"
    assert found["sets"]["mine"]["num_words"] == 2
    assert found["update"] == 6
    assert "left out" in printed.err  # what is printed before the sets are decoded, too


def test_it_is_an_option_of_commands_with_results_alone(tmp_path):
    assert composed("run=r", command="evaluate").options.output_format == "table"
    with pytest.raises(ConfigError, match="output_format"):
        _ = composed("run=r", "output_format=yaml", command="evaluate").options
    code, _, said = parsed("export", folder=tmp_path)
    assert code == 2
    assert "--json" in said
