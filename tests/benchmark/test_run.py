"""Somebody enters an optimizer of their own: trained, written, checked, interrupted and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hydra._internal.utils import get_args_parser

from asr.commands import benchmark
from asr.sweeps.jobs import JobRecord
from tests.commands.conftest import TINY
from tests.commands.test_resume import data
from werdict.benchmark import check, verdicts
from werdict.benchmark.rules import BASELINE, LOOKS, VERSION, drawn_seeds
from werdict.errors import ConfigError

ROOT = Path(__file__).parents[2]
RECIPE = """\
# @package _global_
defaults:
  - digits/transformer_ctc
  - override /tokenizer: char
"""


@pytest.fixture
def place(tmp_path, monkeypatch, trained):
    """A folder with a package of an optimizer, the one in the rules, and a task that takes a second."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/benchmark/rules.md").read_text(), re.M | re.S)
    (block,) = [one for one in blocks if "class Signs" in one]
    folder = tmp_path / "benchmark" / VERSION / "as_shipped" / "signs"
    folder.mkdir(parents=True)
    (folder / "signs.py").write_text(block)
    words = ["optimizer._target_=signs.Signs", "optimizer.lr=0.001"]
    (folder / "entry.yaml").write_text(yaml.safe_dump({"author": "Ann", "overrides": words}))
    (tmp_path / "recipes" / "tiny").mkdir(parents=True)
    tiny: dict[str, object] = {}
    for word in (*TINY, "trainer.max_steps=2", "trainer.val_check_interval=1"):
        key, _, value = word.partition("=")
        if key.partition(".")[0] in ("data", "encoder", "trainer"):
            node = tiny
            *parents, last = key.split(".")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = yaml.safe_load(value)
    (tmp_path / "recipes" / "tiny" / f"benchmark_{VERSION}.yaml").write_text(RECIPE + yaml.safe_dump(tiny))
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm entry"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(benchmark, "TASKS", ("tiny",))
    monkeypatch.setattr(benchmark, "HARNESS", ("asr/models/recognizer.py",))
    monkeypatch.setattr(benchmark, "TASK_FILES", ())
    monkeypatch.setattr(verdicts, "TASKS", ("tiny",))
    monkeypatch.setattr(check, "TASKS", ("tiny",))
    return [f"recipes_dir={tmp_path / 'recipes'}", f"data.dir={data(trained)}", "hydra.launcher.n_jobs=2"]


@pytest.mark.slow
def test_an_optimizer_of_20_lines_is_entered(place, capsys):
    folder = benchmark.ROOT / "as_shipped" / "signs"
    words = [f"entry={folder}", "task=tiny", *place]
    assert benchmark.run([*words, "look=1"]) == 0
    assert "preview" in capsys.readouterr().out
    assert not (folder / "tiny.jsonl").exists()
    assert benchmark.run([*words, "look=1", "official=true"]) == 0
    shared, *lines = map(json.loads, (folder / "tiny.jsonl").read_text().splitlines())
    assert [line["seed"] for line in lines] == [*drawn_seeds(shared["commit"], "tiny")[: LOOKS[0]]]
    assert [line["updates"] for line in lines] == [[1, 2]] * LOOKS[0]
    assert {line["settings"]["optimizer.lr"] for line in lines} == {0.001}
    assert {line["cost"]["num_passes"] for line in lines} == {2}
    assert {line["baseline_cpu_seconds"] > 0 for line in lines} == {True}
    shutil.copytree(folder, folder.parent / BASELINE)
    broken = check.problems(benchmark.ROOT, lambda *_: lines[0]["settings"], [folder])
    assert [problem for problem in broken if "verdict" not in problem] == []
    before = (folder / "tiny.jsonl").read_text()
    assert benchmark.run([*words, "look=1", "official=true"]) == 0
    assert (folder / "tiny.jsonl").read_text() == before, "finished runs are not trained again"
    shutil.rmtree("runs")  # as on another machine
    assert benchmark.run([*words, "official=true"]) == 0
    again = (folder / "tiny.jsonl").read_text().splitlines()[1:]
    assert again[: LOOKS[0]] == before.splitlines()[1:], "nor are those that are stored"
    assert len(again) == LOOKS[1]
    (folder / "signs.py").write_text("# changed\n" + (folder / "signs.py").read_text())
    with pytest.raises(ConfigError, match=r"signs\.py"):
        benchmark.run([*words, "official=true"])
    (folder / "signs.py").write_text((folder / "signs.py").read_text().replace('alpha=group["lr"]', "alpha=1e38"))
    capsys.readouterr()
    assert benchmark.run([*words, "look=1"]) == 0
    assert "100.0 %, 5 runs" in capsys.readouterr().out, "no run of the former source counts, and that all diverge does"


@pytest.mark.slow
def test_data_are_known_by_their_utterances_wherever_they_lie(tmp_path, trained):
    (index,) = Path(data(trained)).rglob("prepared.json")
    before, moved = benchmark.data_digest(index.parent), tmp_path / "corpus" / "spec"
    shutil.copytree(index.parent, moved)
    assert benchmark.data_digest(moved) == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["task=x"], "task"),
        (["task=an4"], "entry"),
        (["task=an4", "entry=nowhere"], "entry"),
        (["task=an4", "optimizer=muon"], "optimizer"),
        (["task=an4", "trainer.max_steps=5"], "trainer.max_steps"),
    ],
)
def test_a_wrong_word_is_named_before_anything_is_trained(tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=named):
        benchmark.run(words)
    assert not [*tmp_path.iterdir()]


def test_where_there_is_no_benchmark_nothing_is_checked_or_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("check", "page"):
        monkeypatch.setattr("sys.argv", ["asr-benchmark", command])
        with pytest.raises(SystemExit) as ended:
            benchmark.main()
        assert ended.value.code == 2
    assert not [*tmp_path.iterdir()]


def test_the_second_look_of_a_tuned_entry_has_the_settings_of_its_best_trial():
    words, best = ["optimizer=scaled_adam"], {"optimizer.lr": 0.5, "schedule.lr_batches": 0.2}
    words += benchmark._words_of_trial("an4", words, best, None)
    swept = benchmark._sweep_words("an4", "s", [7], words, is_searched=False)
    assert {"schedule=eden2", "optimizer.lr=0.5", "schedule.lr_batches=0.2", "seed=7"} <= {*swept}
    assert not [word for word in swept if "tun" in word or "trials" in word]


def test_options_of_hydra_stand_where_hydra_takes_them():
    words = ["optimizer=signs", "data.source=x", "--config-dir=y"]
    for is_searched in (False, True):
        given = get_args_parser().parse_args(benchmark._sweep_words("an4", "s", [1], words, is_searched))
        assert given.config_dir == "y"
        assert "data.source=x" in given.overrides


@pytest.mark.parametrize(
    ("ruleset", "about", "named"),
    [
        ("as_shipped", {"overrides": ["optimizer=muon", "optimizer.lr=0.1"], "author": "Ann"}, None),
        ("as_shipped", {"overrides": ["optimizer._target_=nowhere.Signs"]}, "nowhere"),
        ("as_shipped", {"overrides": ["optimizer=lion", "optimizer.rate=0.1"]}, "rate"),
        ("as_shipped", {"overrides": ["optimizer=lion"], "athor": "Ann"}, "athor"),
        ("as_shipped", {"overrides": "optimizer=lion"}, "overrides"),
        ("tuned", {"overrides": ["optimizer=lion"]}, None),
        ("tuned", {"overrides": ["optimizer=signs"]}, "signs"),
    ],
)
def test_an_entry_that_cannot_be_trained_breaks_a_rule(tmp_path, ruleset, about, named):
    folder = tmp_path / ruleset / "mine"
    folder.mkdir(parents=True)
    (folder / "entry.yaml").write_text(yaml.safe_dump(about))
    broken = check.problems(tmp_path, benchmark.settings_of, [folder])
    assert broken == [] if named is None else any(named in problem for problem in broken)


def test_a_mistake_in_the_source_or_the_range_is_found_before_anything_is_trained(tmp_path):
    folder = tmp_path / "tuned" / "own"
    (folder / "optimizer").mkdir(parents=True)
    (folder / "own_steps.py").write_text(
        "import torch\nclass Own(torch.optim.SGD):\n    def step(self, closure=None):\n        return self.mistake\n"
    )
    (folder / "optimizer" / "mine.yaml").write_text("_target_: own_steps.Own\n_partial_: true\nlr: 0.1\n")
    words = ["optimizer=mine", "++sweep.optimizers.mine={around: {lr: 0.1, rate: 0.1}, usual: warmup_cosine}"]
    with pytest.raises(ConfigError, match=r"optimizer\.rate"):
        benchmark.settings_of(folder, "an4", words, {})
    with pytest.raises(AttributeError, match="mistake"):
        benchmark.settings_of(folder, "an4", [words[0], words[1].replace(", rate: 0.1", "")], {})
    with pytest.raises(ConfigError, match="optimizer=NAME"):
        benchmark.settings_of(folder, "an4", ["optimizer._target_=own_steps.Own"], {})


def test_the_baseline_of_an_interrupted_entry_is_resumed(tmp_path, monkeypatch):
    run_dir, started = tmp_path / "runs" / "beside", list[tuple[str, ...]]()

    def start(command: str, *words: str, **_: object) -> subprocess.Popen[bytes]:
        started.append(words)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(benchmark, "_asr", start)
    for _ in range(2):
        with benchmark._baseline_beside("an4", 1, ["data.source=x"], run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            (run_dir / "config.yaml").touch()
    assert f"run_dir={run_dir}" in started[0]
    assert started[1] == (f"resume={run_dir}", "data.source=x")


@pytest.mark.parametrize("optimizer", ["muon", "scaled_adam", "lion"])
def test_settings_are_those_that_a_run_records(optimizer):
    found = benchmark.settings_of(Path(), "an4", [f"optimizer={optimizer}", "optimizer.lr=0.5"], {})
    assert found["optimizer.lr"] == 0.5
    assert "schedule._target_" in found
    assert not [key for key in found if key.startswith("encoder")]


def test_the_settings_of_a_tuned_entry_follow_from_its_trial_and_the_schedule_of_its_range():
    trial = {"optimizer.lr": 0.5, "schedule.lr_batches": 0.2}
    found = benchmark.settings_of(Path(), "an4", ["optimizer=scaled_adam"], trial)
    assert found["schedule._target_"] == "optim.Eden2"
    assert {key: found[key] for key in trial} == trial
    rules = benchmark.settings_of(Path(), "an4", ["optimizer=muon"], {"optimizer.lr": 0.5})["parameter_rules.rules"]
    assert rules[0]["optimizer"]["lr"] == 0.5


def test_of_jobs_with_a_seed_the_one_asked_for_last_counts(tmp_path):
    (tmp_path / "jobs").mkdir()
    jobs = {"old": ["seed=1", "optimizer.lr=-1"], "new": ["seed=1"], "other": ["seed=2"]}
    for age, (name, words) in enumerate({**jobs, "trial": ["seed=2", "decode_test=false"]}.items()):
        JobRecord(name, words, "finished").save(tmp_path)
        lock = tmp_path / "jobs" / f"{name}.lock"
        lock.touch()
        os.utime(lock, (age, age))
    assert {seed: job.name for seed, job in benchmark.jobs_by_seed(tmp_path).items()} == {1: "new", 2: "other"}


@pytest.mark.parametrize(("source", "expected"), [(None, {"package": "mypkg==1.0"}), ("{}", {})])
def test_what_is_installed_from_a_folder_is_no_package_of_an_index(tmp_path, monkeypatch, source, expected):
    info = tmp_path / "mypkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("mypkg\n")
    if source is not None:
        (info / "direct_url.json").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert benchmark._package("mypkg.signs.Signs") == expected
