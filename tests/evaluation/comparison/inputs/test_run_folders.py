"""Folders of runs, whole ones and all that can be wrong with them."""

import json
import os

import pytest
import yaml

from asr.evaluation.comparison.inputs.run_files import read_curves, read_errors
from asr.evaluation.comparison.inputs.run_folders import read_runs
from asr.evaluation.comparison.inputs.runs import Cost
from asr.evaluation.confidence import bootstrap_interval
from asr.evaluation.report import write_report
from asr.evaluation.wer import Utterance, score
from asr.plain_data import read_yaml
from tests.evaluation.comparison.run_folders import NUM_UTTERANCES, write_metrics, write_run


def free(config):
    return ("run_dir", "sweep")


def the_problem(*folders) -> str:
    (problem,) = read_runs(folders, free).problems
    return problem


def test_a_run_is_read_whole(tmp_path):
    found = read_runs([write_run(tmp_path / "a", "optimizer=eve", "seed=7", rate=0.2)], free)
    (run,) = found.runs
    assert (run.system, run.seed, run.lr, run.folder) == ("eve", 7, 0.001, tmp_path / "a")
    assert run.cost == Cost(
        num_updates=100,
        num_parameters=1000,
        seconds=50.0,
        cpu_seconds=70.0,
        seconds_per_update=0.5,
        optimizer_step_seconds=0.05,
        optimizer_step_sd=0.01,
        optimizer_share=0.1,
        optimizer_state_bytes=8000,
        peak_memory_mb=200.0,
    )
    assert 0.1 < run.sets["test"].wer < 0.3
    assert run.curves["val/wer"].updates == (50, 100)
    assert run.curves["val/wer"].seconds == (25.0, 50.0)
    assert len(run.curves["train/loss"].values) == 100
    assert (found.problems, found.notes) == ([], ["synthetic speech"])


def test_notes_that_are_no_list_are_left_out(tmp_path):
    folders = [write_run(tmp_path / str(i), summary={"notes": notes}) for i, notes in enumerate((5, "text", ["a", 3]))]
    assert read_runs(folders, free).notes == ["a"]


def test_what_a_strangers_run_says_is_of_bounded_length_and_in_lines_of_our_own(tmp_path):
    notes = ["evil\nproblem: fake", "x" * 400_000, *map(str, range(1000))]
    loud = write_run(tmp_path / "a", "seed=1", f"+{'k' * 200_000}=1", summary={"notes": notes, "data": "d" * 200_000})
    other = write_run(tmp_path / "b", "seed=1", config={"k" * 200_000: 2})
    no_seed = write_run(tmp_path / "c")
    (no_seed / "config.yaml").write_text(yaml.safe_dump({"seed": "s\n" * 100_000}))
    many = write_run(tmp_path / "d", "seed=2", summary={"test": {f"set{n}": {} for n in range(1000)}})
    found = read_runs([loud, other, no_seed, many], free)
    texts = [*found.notes, *found.problems, *(run.system for run in found.runs)]
    assert max(map(len, texts)) <= 1000
    assert len(texts) < 60
    assert not any("\n" in text for text in texts)


def test_cpu_seconds_of_a_resumed_run_are_unknown_since_killed_processes_took_some_too(tmp_path):
    training = {"seconds": 30.0, "cpu_seconds": 35.0, "resumed_after": 50}
    (run,) = read_runs([write_run(tmp_path / "a", summary={"training": training})], free).runs
    assert (run.cost.seconds, run.cost.cpu_seconds) == (50.0, None)


def test_what_a_report_wrote_is_read_back(tmp_path):
    scored = score(
        [
            Utterance("b", "one two three", "one too", 's "x'),
            Utterance('a"', "four", "four five"),
            Utterance("c", "", ""),
        ]
    )
    errors = read_errors(write_report(tmp_path, "test", scored, bootstrap_interval(scored)).errors)
    assert errors.ids == ('a"', "b", "c")
    assert errors.speakers == (None, 's "x', None)
    assert errors.words == (1, 3, 0)
    assert errors.errors == (1, 2, 0)
    assert errors.wer == scored.wer


def test_what_a_run_was_scored_against_is_read_from_its_summary_and_its_config(tmp_path):
    data = {"text": {"case": "lower", "punctuation": "keep"}}
    write_run(tmp_path / "a", config={"data": data}, summary={"test": {"test": {"references": "0123"}}})
    write_run(tmp_path / "b", config={"data": 5}, summary={"test": {"test": {"references": [1]}}})
    scored = [run.sets["test"] for run in read_runs([tmp_path / "a", tmp_path / "b"], free).runs]
    assert [one.references for one in scored] == ["0123", None]
    assert [one.text for one in scored] == [("case=lower", "punctuation=keep"), ()]


def test_the_gpus_memory_goes_before_the_machines_and_what_was_not_measured_is_none(tmp_path):
    summary = {"peak_gpu_memory_mb": 900.0, "cost": {"seconds_per_update": None, "optimizer_share": "much"}}
    (run,) = read_runs([write_run(tmp_path / "a", "seed=1", summary=summary)], free).runs
    assert run.cost.peak_memory_mb == 900.0
    assert (run.cost.seconds_per_update, run.cost.optimizer_share, run.cost.optimizer_state_bytes) == (None,) * 3
    assert run.cost.seconds == 60.0


def test_curves_without_a_clock_have_no_seconds(tmp_path):
    write_metrics(tmp_path / "metrics.csv", {50: 0.5}, seconds_per_update=None)
    assert read_curves(tmp_path / "metrics.csv")["val/wer"].seconds == ()


def test_a_torn_row_and_rows_of_a_stranger_are_passed_over(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text(
        "step,name,value\n0,train/loss,5.0\nx,train/loss,1\n1,train/loss,\0\n2,val/dev/wer,0.5\n2,other,1\n-3,val/dev/wer,0.1\n3,tr"
    )
    curves = read_curves(file)
    assert {name: (curve.updates, curve.values) for name, curve in curves.items()} == {
        "train/loss": ((1,), (5.0,)),
        "val/dev/wer": ((3,), (0.5,)),
    }


def test_a_validation_between_two_logged_updates_has_the_time_of_the_one_before(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("step,name,value\n0,train/elapsed_s,1.5\n9,train/elapsed_s,15.0\n6,val/wer,0.5\n")
    assert read_curves(file)["val/wer"].seconds == (1.5,)


def test_a_run_without_a_summary_is_named_and_counts_only_if_it_failed_by_itself(tmp_path):
    whole, half, broken = (write_run(tmp_path / name, f"seed={seed}") for seed, name in enumerate("abc", start=1))
    for folder in (half, broken):
        (folder / "report" / "summary.json").unlink()
    found = read_runs([whole, half, broken], free, {broken})
    assert [run.folder for run in found.runs] == [whole]
    assert found.failed == [(found.runs[0].system, 3)]
    assert found.problems == [
        f"{half} is left out: the run has not finished: report/summary.json does not exist",
        f"{broken} is left out: the run has failed: report/summary.json does not exist",
    ]


def test_missing_errors_of_a_set_are_said(tmp_path):
    run = write_run(tmp_path / "a", "seed=1", sets=("test", "other"))
    (run / "decode" / "other.errors.tsv").unlink()
    found = read_runs([run], free)
    assert list(found.runs[0].sets) == ["test"]
    assert found.problems == [f"{run}: there is no file {run}/decode/other.errors.tsv"]


def test_missing_curves_are_said(tmp_path):
    run = write_run(tmp_path / "a", "seed=1")
    (run / "metrics.csv").unlink()
    assert "no curves: " in the_problem(run)


@pytest.mark.parametrize("content", [b"x" * 200_000, bytes(range(256)), b"step,value\n1,2\n"])
def test_what_is_no_table_of_metrics_leaves_out_curves_and_is_said(tmp_path, content):
    run = write_run(tmp_path / "a", "seed=1")
    (run / "metrics.csv").write_bytes(content)
    assert "no curves: " in (said := the_problem(run))
    assert "is not a table of metrics" in said


def test_different_data_is_said_but_not_a_tokenizer_of_its_own(tmp_path):
    first, second = write_run(tmp_path / "a", "seed=1", data="x/1"), write_run(tmp_path / "b", "seed=2", data="x/2")
    assert read_runs([first, second], free).problems == []
    other = write_run(tmp_path / "c", "seed=3", data="y/1")
    assert (
        f"different data; they are compared on the test sets that they share (x: {first}; y: {other})"
        in the_problem(first, other)
    )


def test_noise_that_was_replaced_between_runs_is_said_but_not_noise_of_their_own(tmp_path):
    def run(seed, digest, noise="rain"):
        config = {"augment": {"audio": {"noise": {"folder": noise}, "room": None}}}
        words = f"seed={seed}", f"augment.audio.noise.folder={noise}"
        return write_run(tmp_path / f"{noise}{seed}", *words, config=config, summary={"noise": digest})

    first, same, own, older = run(1, "1"), run(2, "1"), run(1, "2", "cars"), run(3, None)
    assert read_runs([first, same, own, older], free).problems == []
    other = run(4, "3")
    assert the_problem(first, same, own, older, other) == (
        "augment.audio.noise.folder=rain: noise and rooms changed between runs, which are compared as if they had used "
        f"the same ({first}, {same}; {other})"
    )


def test_a_run_that_could_not_read_all_is_said(tmp_path):
    whole = write_run(tmp_path / "a", "seed=1")
    part = write_run(tmp_path / "b", "seed=2", summary={"training": {"seconds": 1, "num_unreadable": 3}})
    assert read_runs([whole], free).problems == []
    assert the_problem(whole, part).endswith(f"left out, which other runs may have heard ({part}: 3)")


def test_a_run_that_was_resumed_with_other_options_is_said(tmp_path):
    runs = [write_run(tmp_path / name, f"seed={seed}") for seed, name in enumerate("ab", start=1)]
    for folder, change in zip(runs, ("seed: 1", "run_dir: elsewhere"), strict=True):
        text = (folder / "config.yaml").read_text()
        (folder / "config.backup1.yaml").write_text(f"{text}\n{change}\n" if change not in text else text)
    assert read_runs(runs, free).problems == []
    before = yaml.safe_load((runs[1] / "config.yaml").read_text())
    before["optimizer"]["lr"], before["trainer"]["max_steps"], before["seed"] = 0.5, 50, 7
    (runs[1] / "config.backup2.yaml").write_text(yaml.safe_dump(before))
    (runs[1] / "config.backup3.yaml").write_bytes(b"\xff")
    assert the_problem(*runs) == (
        f"{runs[1]} was resumed with other options than it was begun with, and is compared by the last "
        "(optimizer.lr: 0.5 / 0.001; seed: 7 / 2; trainer.max_steps: 50 / 100; config.backup3.yaml: it cannot be read)"
    )


def mixture(weight):
    return {"data": {"sources": [{"source": "x" * 200, "weight": weight}, {"source": "y" * 200}]}}


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"augment": {"features": {"num_time_masks": 2}}}, "augment.features.num_time_masks: 2 / absent"),
        ({"augment": {}}, "augment: {} / absent; augment.audio: absent / None"),
        (mixture(1), "data.sources: …1}, {'source': 'yyy"),
        ({"later": 1}, "later: 1 / absent"),
    ],
)
def test_what_one_of_two_configs_lacks_is_a_change_too(tmp_path, before, said):
    folder = write_run(tmp_path / "a", "seed=1", config={"augment": {"audio": None}, **mixture(2)})
    (folder / "config.backup1.yaml").write_text(yaml.safe_dump(before))
    assert said in the_problem(folder)


def test_what_a_later_version_of_the_program_adds_to_a_config_is_no_change(tmp_path):
    folder = write_run(tmp_path / "a", "seed=1", config={"weights": "raw"})
    before = yaml.safe_load((folder / "config.yaml").read_text())
    del before["weights"]
    (folder / "config.backup1.yaml").write_text(yaml.safe_dump(before))
    assert read_runs([folder], free).problems == []


def test_other_data_and_files_that_were_accepted_on_the_way_are_said(tmp_path):
    first, other = write_run(tmp_path / "a", "seed=1"), write_run(tmp_path / "b", "seed=2")
    (first / "accepted.yaml").write_text("['data: 1/2 in the run, 3/4 now', 'run_dir: 1 in the run, 2 now', 3]")
    (first / "accepted.backup1.yaml").write_text("['files of augment.audio: 1 in the run, 2 now']")
    assert f"{first} was resumed with other options than it was begun with" in (said := the_problem(first, other))
    for change in ("data: 1/2 in the run, 3/4 now", "files of augment.audio: 1 in the run, 2 now"):
        assert change in said
    assert "run_dir" not in said
    (first / "accepted.yaml").write_text("- {")
    assert "accepted.yaml: it cannot be read" in the_problem(first)


def test_a_model_to_start_from_that_was_replaced_between_runs_is_said(tmp_path):
    def run(name, content):
        folder = write_run(tmp_path / name, f"seed={len(name)}", config={"init": {"path": "first"}})
        (folder / "init_source.json").write_text(content)
        return folder

    first, same, other = run("a", '{"sha256": "1"}'), run("aa", '{"sha256": "1"}'), run("aaa", '{"sha256": "2"}')
    damaged = [run("b" * i, content) for i, content in enumerate(("[]", "{"), 1)]
    assert read_runs([first, same, *damaged], free).problems == []
    assert "init.path=first: the model that they start from changed between runs, " in (
        said := the_problem(first, same, other)
    )
    assert f"({first}, {same}; {other})" in said


HEADER = "id\tspeaker\twords\tsubstitutions\tdeletions\tinsertions\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: the columns must be id, speaker"),
        ("id\tspeaker\n", "line 1: the columns must be"),
        (HEADER, "contain no words"),
        (HEADER + "a\t\t0\t0\t0\t1\n", "contain no words"),
        (HEADER + "a\t\t3\t0\t0\n", "line 2: expected"),
        (HEADER + "a\t\t3\t0\t0\t-1\n", "line 2: expected"),
        (HEADER + "a\t\t3\t2\t2\t0\n", "line 2: 2 substitutions and 2 deletions in 3 words"),
        (HEADER + "a\t\t3\t0\t0\t٣\n", "line 2: expected"),
        (HEADER + f"a\t\t{10**30}\t0\t0\t1\n", "line 2: expected"),
        (HEADER + "a\t\t3\t0\t0\t1\na\t\t3\t0\t0\t1\n", "line 3: expected a new id"),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_damaged_errors_name_the_line(tmp_path, text, complaint):
    run = write_run(tmp_path / "a", "seed=1")
    (run / "decode" / "test.errors.tsv").write_bytes(text if isinstance(text, bytes) else text.encode())
    problems = read_runs([run], free).problems
    assert complaint in problems[0]
    assert problems[1] == f"{run}: no test set that could be compared"


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("config.yaml", "!!python/object/apply:os.system [touch hacked]", "is not plain YAML"),
        ("config.yaml", "a: [", "is not plain YAML"),
        ("config.yaml", "- a", "is not a mapping"),
        ("config.yaml", "seed: yes", "seed must be an integer in config.yaml, given True"),
        ("overrides.yaml", "a: b", "not a list of overrides"),
        ("overrides.yaml", "- 3", "not a list of overrides"),
        ("report/summary.json", "{", "is not JSON"),
        ("report/summary.json", "[]", "is not a mapping"),
    ],
)
def test_damaged_or_hostile_files_leave_out_one_run(tmp_path, monkeypatch, file, text, complaint):
    monkeypatch.chdir(tmp_path)
    whole, bad = write_run(tmp_path / "a", "seed=1"), write_run(tmp_path / "b", "seed=2")
    (bad / file).write_text(text)
    found = read_runs([whole, bad], free)
    assert [run.folder for run in found.runs] == [whole]
    assert complaint in found.problems[0]
    assert not (tmp_path / "hacked").exists()


def test_a_summary_that_names_sets_without_end_leaves_out_its_run(tmp_path):
    folder = write_run(tmp_path / "a", "seed=1", summary={"test": {f"test{n}": {} for n in range(1000)}})
    assert the_problem(folder).endswith("report/summary.json names 1000 test sets; at most 100 are compared")


def test_names_that_lead_to_one_table_do_not_multiply_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("asr.evaluation.comparison.inputs.run_folders.MAX_UTTERANCES", 2 * NUM_UTTERANCES)
    folder = write_run(tmp_path / "a", "seed=1", sets=("a", "b", "c"))
    assert "c.errors.tsv, line 2: the test sets of a run may have" in the_problem(folder)
    assert list(read_runs([folder], free).runs[0].sets) == ["a", "b"]


def test_a_set_name_cannot_lead_out_of_the_folder(tmp_path):
    run = write_run(tmp_path / "a", "seed=1")
    os.rename(run / "decode" / "test.errors.tsv", tmp_path / "secret.errors.tsv")
    (run / "report" / "summary.json").write_text(json.dumps({"test": {"../../secret": {}}}))
    assert "set name '../../secret'" in read_runs([run], free).problems[0]


def test_numbers_that_are_none_are_not_known(tmp_path):
    run = write_run(tmp_path / "a", "seed=1", config={"optimizer__lr": "large"}, summary={"peak_memory_mb": 10**400})
    (read,) = read_runs([run], free).runs
    assert (read.lr, read.cost.peak_memory_mb) == (None, None)


def test_what_hydra_writes_has_no_aliases(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"a": [1, {"b": None}], "c": "x"}))
    assert read_yaml(tmp_path / "a.yaml") == {"a": [1, {"b": None}], "c": "x"}


def test_runs_that_chose_settings_on_dev_are_no_systems(tmp_path):
    folders = [write_run(tmp_path / name, "optimizer=eve", f"seed={seed}") for seed, name in enumerate("ab")]
    config = read_yaml(folders[0] / "config.yaml")
    (folders[0] / "config.yaml").write_text(yaml.safe_dump({**config, "decode_test": False}))
    found = read_runs(folders, free)
    assert [run.folder for run in found.runs] == [folders[1]]
    assert found.problems == []
    what = "without results on test sets (decode_test=false), as those are that choose settings"
    assert f"left out: 1 run {what}" in found.notes
