"""Somebody enters an optimizer of their own: trained, written, checked, interrupted and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from asr.commands import benchmark
from asr.sweeps.jobs import JobRecord
from tests.commands.conftest import TINY
from tests.commands.test_resume import data
from werdict.benchmark import entries
from werdict.benchmark.entries import BASELINE, SEEDS
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
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "signs.py").write_text(block)
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
    (tmp_path / "recipes" / "tiny" / "benchmark_v1.yaml").write_text(RECIPE + yaml.safe_dump(tiny))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (benchmark, entries):
        monkeypatch.setattr(module, "TASKS", ("tiny",))
    return [f"recipes_dir={tmp_path / 'recipes'}", f"data.dir={data(trained)}", "hydra.launcher.n_jobs=2"]


@pytest.mark.slow
def test_an_optimizer_of_20_lines_is_entered(place):
    words = ["task=tiny", "optimizer._target_=mypkg.signs.Signs", "optimizer.lr=0.001", "name=signs", "author=Ann"]
    assert benchmark.run([*words, *place]) == 0
    folder = Path("benchmark/v1/tiny/as_shipped/signs")
    about = yaml.safe_load((folder / "entry.yaml").read_text())
    assert about["author"] == "Ann"
    assert about["overrides"] == ["optimizer._target_=mypkg.signs.Signs", "optimizer.lr=0.001"]
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == list(SEEDS)
    assert [line["updates"] for line in lines] == [[1, 2]] * len(SEEDS)
    assert {line["settings"]["optimizer.lr"] for line in lines} == {0.001}
    assert "class Signs" in (folder / "signs.py").read_text()
    shutil.copytree(folder, folder.parent / BASELINE)
    assert entries.problems(benchmark.ROOT, [folder]) == []
    before = (folder / "runs.jsonl").read_text()
    assert benchmark.run([*words, *place]) == 0
    assert (folder / "runs.jsonl").read_text() == before, "finished runs are not trained again"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["task=x"], "task"),
        (["task=fsdd"], "optimizer"),
        (["task=fsdd", "ruleset=x", "optimizer=muon"], "ruleset"),
        (["task=fsdd", "ruleset=tuned", "optimizer._target_=mypkg.X"], "optimizer"),
        (["task=fsdd", "optimizer=muon", "trainer.max_steps=5"], "trainer.max_steps"),
    ],
)
def test_a_wrong_word_is_named_before_anything_is_trained(tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=named):
        benchmark.run(words)
    assert not [*tmp_path.iterdir()]


def test_of_jobs_with_a_seed_the_one_asked_for_last_counts(tmp_path):
    (tmp_path / "jobs").mkdir()
    jobs = {"old": ["seed=1", "optimizer.lr=-1"], "new": ["seed=1"], "other": ["seed=2"]}
    for age, (name, words) in enumerate({**jobs, "trial": ["seed=2", "decode_test=false"]}.items()):
        JobRecord(name, words, "finished").save(tmp_path)
        lock = tmp_path / "jobs" / f"{name}.lock"
        lock.touch()
        os.utime(lock, (age, age))
    assert {seed: job.name for seed, job in benchmark.jobs_by_seed(tmp_path).items()} == {1: "new", 2: "other"}


@pytest.mark.parametrize("words", [["name=signs"], ["reproduces=mine"]])
def test_an_entry_of_others_is_not_replaced_and_what_is_reproduced_exists(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    entry = tmp_path / "benchmark/v1/fsdd/as_shipped/signs/entry.yaml"
    entry.parent.mkdir(parents=True)
    entry.write_text("name: signs\n")
    with pytest.raises(ConfigError, match=words[0].partition("=")[2]):
        benchmark.run(["task=fsdd", "optimizer=muon", *words])
    assert entry.read_text() == "name: signs\n"


@pytest.mark.parametrize(("source", "expected"), [(None, {"package": "mypkg==1.0"}), ("{}", {})])
def test_what_is_installed_from_a_folder_is_no_package_of_an_index(tmp_path, monkeypatch, source, expected):
    info = tmp_path / "mypkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("mypkg\n")
    if source is not None:
        (info / "direct_url.json").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    origin = benchmark._origin("mypkg.signs.Signs")
    assert {key: value for key, value in origin.items() if key != "commit"} == expected
