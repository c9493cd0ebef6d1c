"""Folders of runs: what is read, under which name, and what is said of runs that cannot be compared."""

import json
import math

import pytest
import yaml

from asr.run.options import SavedRun
from asr.runs.files import RunFiles, read_curves, read_run, run_settings, system_of
from asr.runs.folders import list_runs, name_systems, read_runs
from asr.sweeps.tuning import Range, Trial, TunedSystem
from hydra_plugins.werdict_sweepers import report
from tests.werdict.run_folders import config_of, write_run
from werdict.comparison import compare
from werdict.error_files import bootstrap_interval, write_report
from werdict.plots import line_styles, plot_trials
from werdict.runs import Cost, Tuning, read_tuning
from werdict.scoring import Utterance, score


def the_problem(*folders) -> str:
    (problem,) = read_runs(folders).problems
    return problem


def test_a_run_is_read_whole(tmp_path):
    found = read_runs([write_run(tmp_path / "a", "optimizer=eve", "seed=7", rate=0.2)])
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


@pytest.mark.parametrize(("p_value", "depends"), [(0.005, True), (0.3, False), (None, None)])
def test_whether_texts_depend_on_the_audio_is_read(tmp_path, p_value, depends):
    tested = {"test": {"test": {"wer": 0.3, "dependence_p": p_value}}}
    (run,) = read_runs([write_run(tmp_path / "a", rate=0.3, summary=tested)]).runs
    assert run.sets["test"].depends_on_audio is depends
    assert run.sets["test"].has_learned is (depends is not False)


def test_system_seed_and_budget_are_those_of_the_summary(tmp_path):
    settings = {"system": {"optimizer.lr": 5}, "seed": 9, "budget": 77}
    folders = [write_run(tmp_path / "a", "optimizer=eve"), write_run(tmp_path / "b", "optimizer=eve", summary=settings)]
    first, second = read_runs(folders).runs
    assert (first.system, second.system) == ("eve #1", "eve #2")
    assert (second.seed, second.cost.num_updates) == (9, 77)


@pytest.mark.parametrize(("counts", "seen"), [({"num_seen_speakers": 2}, True), ({}, False)])
def test_whether_training_has_speakers_of_a_test_set_is_read(tmp_path, counts, seen):
    run = write_run(tmp_path / "run", summary={"data_splits": {"test": counts}})
    assert read_runs([run]).runs[0].sets["test"].seen_speakers == seen


def test_cpu_seconds_of_a_resumed_run_are_unknown_since_killed_processes_took_some_too(tmp_path):
    training = {"seconds": 30.0, "cpu_seconds": 35.0, "resumed_after": 50}
    (run,) = read_runs([write_run(tmp_path / "a", summary={"training": training})]).runs
    assert (run.cost.seconds, run.cost.cpu_seconds) == (50.0, None)


def test_what_a_report_wrote_is_read_back(tmp_path):
    utterances = [
        Utterance("b", "one two three", "one too", 's "x'),
        Utterance('a"', "four", "four five"),
        Utterance("c", "", ""),
    ]
    scored = score(utterances)
    folder = write_run(tmp_path / "run", sets=(), summary={"test": {"test": {"references": "0123"}}})
    write_report(folder / "decode", "test", scored, bootstrap_interval(scored))
    errors = read_run(folder).set_errors("test")
    assert errors.ids == ('a"', "b", "c")
    assert errors.speakers == (None, 's "x', None)
    assert errors.words == (1, 3, 0)
    assert errors.errors == (1, 2, 0)
    assert (errors.wer, errors.references) == (scored.wer, "0123")


def test_the_gpus_memory_goes_before_the_machines_and_what_was_not_measured_is_none(tmp_path):
    summary = {"peak_gpu_memory_mb": 900.0, "cost": {}}
    (run,) = read_runs([write_run(tmp_path / "a", summary=summary)]).runs
    assert run.cost.peak_memory_mb == 900.0
    assert (run.cost.seconds_per_update, run.cost.optimizer_share, run.cost.optimizer_state_bytes) == (None,) * 3
    assert run.cost.seconds == 60.0


def test_a_validation_between_two_logged_updates_has_the_time_of_the_one_before(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("step,name,value\n0,train/elapsed_s,1.5\n9,train/elapsed_s,15.0\n6,val/wer,0.5\n")
    assert read_curves(file)["val/wer"].seconds == (1.5,)


def test_a_row_that_a_kill_has_cut_is_no_point(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("step,name,value\n0,train/loss,5.0\n1,train/loss,4.")
    assert read_curves(file)["train/loss"].values == (5.0,)


def test_wers_with_other_weights_are_read(tmp_path):
    other = {"last": {"test": {"test": {"wer": 0.25}}}}
    folder = write_run(tmp_path / "a", config={"decode": ["best", "last", "average"]}, summary={"other_weights": other})
    first, second = read_runs([folder, write_run(tmp_path / "b", "seed=2")]).runs
    assert first.wers_by_weights == {"best": {"test": first.sets["test"].wer}, "last": {"test": 0.25}}
    assert second.wers_by_weights == {}


def test_a_run_without_a_summary_is_named_and_counts_only_if_it_failed_by_itself(tmp_path):
    whole, half, broken = (write_run(tmp_path / name, f"seed={seed}") for seed, name in enumerate("abc", start=1))
    for folder in (half, broken):
        (folder / "report" / "summary.json").unlink()
    found = read_runs([whole, half, broken], {broken, tmp_path / "never"})
    assert [run.folder for run in found.runs] == [whole]
    assert found.failed == [(found.runs[0].system, 3)]
    assert [problem.split(" is left out: ")[0] for problem in found.problems] == [str(half), str(broken), "never"]


def test_missing_files_are_said_and_the_rest_is_compared(tmp_path):
    run = write_run(tmp_path / "a", sets=("test", "other"))
    (run / "decode" / "other.errors.tsv").unlink()
    (run / "metrics.csv").unlink()
    no_config = write_run(tmp_path / "b")
    (no_config / "config.yaml").unlink()
    found = read_runs([run, no_config])
    assert [(list(one.sets), one.curves) for one in found.runs] == [(["test"], {})]
    assert [name in problem for name, problem in zip(("config", "other"), found.problems, strict=True)] == [True] * 2


def test_different_data_is_said_but_not_a_tokenizer_of_its_own(tmp_path):
    first, second = write_run(tmp_path / "a", "seed=1", data="x/1"), write_run(tmp_path / "b", "seed=2", data="x/2")
    assert read_runs([first, second]).problems == []
    other = write_run(tmp_path / "c", "seed=3", data="y/1")
    assert f"(x: {first}; y: {other})" in the_problem(first, other)


def test_a_run_that_could_not_read_all_is_said(tmp_path):
    training = {"seconds": 1, "cpu_seconds": 1, "num_unreadable": 3}
    whole = write_run(tmp_path / "a", "seed=1")
    part = write_run(tmp_path / "b", "seed=2", summary={"training": training})
    assert the_problem(whole, part).endswith(f"({part}: 3)")


def test_a_run_that_was_resumed_with_other_options_is_said(tmp_path):
    runs = [write_run(tmp_path / name, f"seed={seed}") for seed, name in enumerate("ab", start=1)]
    for folder in runs:
        before = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.backup1.yaml").write_text(yaml.safe_dump({**before, "run_dir": "elsewhere"}))
    assert read_runs(runs).problems == []
    before["optimizer"]["lr"], before["trainer"]["max_steps"], before["seed"] = 0.5, 50, 7
    (runs[1] / "config.backup2.yaml").write_text(yaml.safe_dump(before))
    changes = "(optimizer.lr: 0.5 / 0.001, seed: 7 / 2, trainer.max_steps: 50 / 100)"
    assert the_problem(*runs).endswith(changes)


def test_other_data_and_files_that_were_accepted_on_the_way_are_said(tmp_path):
    first, other = write_run(tmp_path / "a", "seed=1"), write_run(tmp_path / "b", "seed=2")
    (first / "accepted.yaml").write_text("[{key: data, before: 1/2, now: 3/4}, {key: run_dir, before: 1, now: 2}]")
    (first / "accepted.backup1.yaml").write_text("[{key: files of augment.audio, before: 1, now: 2}]")
    said = the_problem(first, other)
    assert "data: 1/2 / 3/4" in said
    assert "files of augment.audio: 1 / 2" in said
    assert "run_dir" not in said


def test_runs_that_chose_settings_on_dev_are_no_systems(tmp_path):
    trial = write_run(tmp_path / "a", "optimizer=eve", "seed=1", config={"decode_test": False})
    run = write_run(tmp_path / "b", "optimizer=eve", "seed=2")
    found = read_runs([trial, run])
    assert [run.folder for run in found.runs] == [run]
    assert found.problems == []
    assert any(note.startswith("left out: 1 run ") for note in found.notes)


@pytest.mark.parametrize("units", [("character", "word", "word"), ("word", "character")])
def test_runs_of_another_unit_than_most_are_left_out_with_their_notes(tmp_path, units):
    folders = [
        write_run(
            tmp_path / str(seed), f"seed={seed}", config={"data": {"scoring_unit": unit}}, summary={"notes": [unit]}
        )
        for seed, unit in enumerate(units)
    ]
    found = read_runs(folders)
    assert {run.unit for run in found.runs} == {"word"}
    assert found.notes == ["word"]
    assert len(found.problems) == 1


DAMAGE = {
    "empty config": ("config.yaml", ""),
    "config that is a list": ("config.yaml", "[a]"),
    "config without a seed": ("config.yaml", "{decode: [best], decode_test: true, weights: raw, callbacks: {}}"),
    "config that decodes nothing": (
        "config.yaml",
        "{seed: 1, decode: [], decode_test: true, weights: raw, callbacks: null}",
    ),
    "empty overrides": ("overrides.yaml", ""),
    "overrides that are no words": ("overrides.yaml", "[{seed: 1}]"),
    "empty errors": ("decode/test.errors.tsv", ""),
    "errors with a header alone": ("decode/test.errors.tsv", "id\tspeaker\twords\n"),
    "errors of other columns": ("decode/test.errors.tsv", "id\nutt1\n"),
    "errors without words": ("decode/test.errors.tsv", "id\nutt1\ts\t0\t0\t0\t0\n"),
    "summary that is a list": ("report/summary.json", "[1]"),
    "summary that is null": ("report/summary.json", "null"),
    "metrics of other columns": ("metrics.csv", "step,name,value\n1,val/wer\n"),
    "binary metrics": ("metrics.csv", "step,name,value\n\0\0,val/wer,\0\n"),
    "backup of another shape": ("config.backup1.yaml", "[1]"),
    "accepted changes of another shape": ("accepted.yaml", "[1]"),
    **{
        f"summary with another {key}": (key, value)
        for key, value in (
            *(("test", None), ("test", {"test": None}), ("test", {"test": {}}), ("training", {}), ("cost", None)),
            *(("notes", None), ("other_weights", {"last": 1}), ("budget", "many"), ("system", None)),
        )
    },
}


@pytest.mark.parametrize(("place", "content"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_named_and_stops_neither_the_comparison_nor_the_list(tmp_path, place, content):
    whole, bad = (write_run(tmp_path / name, f"seed={seed}") for seed, name in enumerate(("whole", "bad")))
    if "." in place:
        (bad / place).write_text(content)
    else:
        (bad / "config.yaml").write_text(yaml.safe_dump(config_of(["seed=1"], decode=["best", "last"])))
        summary = json.loads((bad / "report" / "summary.json").read_text())
        (bad / "report" / "summary.json").write_text(json.dumps({**summary, place: content}))
    found = read_runs([bad, whole])
    rows, problems = list_runs([tmp_path], "")
    assert whole in [run.folder for run in found.runs if run.sets]
    assert str(whole) in [row.run for row in rows]
    assert any(str(bad) in problem for problem in [*found.problems, *problems])
    assert compare(found, title="").sets[0].rows


def names_of(*lines: str, **changes) -> tuple[list[str], list[str]]:
    """Name the runs of command lines; each of the changes of their configs has a value per run."""
    runs = []
    for place, line in enumerate(lines):
        config = config_of(line.split(), **{key: values[place] for key, values in changes.items()})
        runs.append(RunFiles(f"run{place}", line.split(), SavedRun(**config), {}))
    return name_systems(runs)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["optimizer=eve seed=1", "optimizer=cain seed=1"], ["eve", "cain"]),
        (["optimizer=eve optimizer.lr=0.01", "optimizer=eve"], ["eve lr=0.01", "eve"]),
        (["optimizer=eve optimizer.lr=0.01", "optimizer=eve optimizer.lr=0.02"], ["eve lr=0.01", "eve lr=0.02"]),
        (["", "optimizer=eve"], ["AdamW", "eve"]),
        (["optimizer.lr=0.01", "optimizer.lr=0.02"], ["AdamW lr=0.01", "AdamW lr=0.02"]),
        (["seed=1", "seed=2"], ["AdamW", "AdamW"]),
        (["optimizer=eve run_dir=a ~logger.x=csv", "optimizer=cain run_dir=b logger=csv"], ["eve", "cain"]),
        (["optimizer=eve trainer.devices=1", "optimizer=cain weights=raw"], ["eve", "cain"]),
        (["optimizer=eve recipe=a/b sweep.name=s", "optimizer=cain recipe=a/b sweep.name=s"], ["eve", "cain"]),
        (["recipe=a/b", "recipe=a/c"], ["recipe=a/b", "recipe=a/b"]),
        (["+a.b=1 optimizer=eve", "optimizer=eve ++a.b=1"], ["eve", "eve"]),
        (["optimizer=eve optimizer=cain", "optimizer=eve"], ["cain", "eve"]),
        (["optimizer=eve", "optimizer=eve optimizer.lr=0.001", "optimizer=cain"], ["eve", "eve", "cain"]),
        ([], []),
    ],
)
def test_a_name_is_the_overrides_that_differ(lines, expected):
    assert names_of(*lines) == (expected, [])


def test_a_tuned_system_of_two_sweeps_is_told_by_what_their_commands_differ_in():
    line = "optimizer=eve schedule=eden2 schedule.lr_batches={} optimizer.lr={} recipe=a/{}"
    lines = [line.format(0.1, 0.01, "b"), line.format(0.2, 0.02, "c"), line.format(0.1, 0.01, "b")]
    tuned = {"tuned": {"system": "eve", "keys": ["optimizer.lr"]}}
    names, problems = names_of(*lines, sweep=(tuned,) * 3, encoder__d_model=(48, 96, 48))
    assert (names, problems) == (["eve recipe=a/b", "eve recipe=a/c", "eve recipe=a/b"], [])
    assert names_of(lines[0], lines[0], sweep=(tuned,) * 2) == (["eve", "eve"], [])


def test_one_name_with_two_configs_is_numbered_and_the_keys_are_shown():
    names, (problem,) = names_of(*["optimizer=eve"] * 3, seed=(1, 2, 3), encoder__d_model=(48, 48, 96))
    assert names == ["eve #1", "eve #1", "eve #2"]
    assert "encoder.d_model: 48 / 96" in problem


def test_a_budget_on_the_command_line_is_another_system():
    names, problems = names_of(
        "trainer.max_steps=100",
        "trainer.max_steps=200",
        trainer__max_steps=(100, 200),
        schedule__max_steps=(100, 200),
    )
    assert (names, problems) == (["trainer.max_steps=100", "trainer.max_steps=200"], [])


STOP = {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "val/wer"}
AVERAGING = {"_target_": "asr.training.callbacks.checkpoints.WeightAveraging", "ema_decay": 0.9}
STALL = {"_target_": "asr.training.callbacks.progress.StallWarning"}
TUNED = {"keys": ["optimizer.lr"], "studies": 3}


def saved(changes):
    return SavedRun(**config_of([], **changes))


@pytest.mark.parametrize(
    ("former", "later", "is_same"),
    [
        ({"weights": "raw"}, {"weights": "average"}, False),
        ({"decode": ["best"]}, {"decode": ["last"]}, False),
        ({}, {"decode": ["best", "last"]}, True),
        (
            {"decode": ["average"], "callbacks": {"averaging": AVERAGING}},
            {"decode": ["average"], "callbacks": {"averaging": {**AVERAGING, "every": 2}}},
            False,
        ),
        ({"callbacks": {}}, {"callbacks": {"stop": STOP}}, False),
        ({"callbacks": {"stop": STOP}}, {"callbacks": {"stop": {**STOP, "patience": 9}}}, False),
        ({"callbacks": {}}, {"callbacks": {"new": {"_target_": "their.Callback"}}}, False),
        (
            {"weights": "ema", "callbacks": {"averaging": AVERAGING}},
            {"weights": "ema", "callbacks": {"averaging": {**AVERAGING, "ema_decay": 0.99}}},
            False,
        ),
        ({}, {"trainer__devices": 2}, False),
        ({}, {"trainer__num_nodes": 2}, False),
        ({}, {"callbacks": {"averaging": AVERAGING, "stall_warning": STALL, "none": None}}, True),
        ({"torch_threads": 1, "logger": {}}, {"torch_threads": 2, "sweep": {"name": "b"}, "seed": 9}, True),
        ({"trainer__devices": [0]}, {"trainer__devices": [1]}, True),
        ({"optimizer__lr": 1, "sweep": {"tuned": TUNED}}, {"optimizer__lr": 2, "sweep": {"tuned": TUNED}}, True),
        ({"optimizer__lr": 1, "sweep": {"tuned": {**TUNED, "studies": 1}}}, {"optimizer__lr": 2}, False),
        ({"trainer__max_steps": 100}, {"trainer__max_steps": 103}, False),
    ],
    ids=str,
)
def test_what_changes_the_result_makes_another_system_and_nothing_else_does(former, later, is_same):
    assert (system_of(saved(former)) == system_of(saved(later))) == is_same


def test_a_budget_converted_from_epochs_may_depend_on_the_seed():
    configs = [
        saved({"trainer": {"max_steps": steps, "max_epochs": -1}, "schedule__max_steps": steps}) for steps in (100, 103)
    ]
    first, second = map(run_settings, configs)
    assert first["system"] == second["system"]
    assert (first["budget"], second["budget"]) == (100, 103)


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
