"""Entries of the benchmark: trained, written and checked; verdicts and tables follow from what is stored."""

import contextlib
import io
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from asr.commands import benchmark
from asr.commands.benchmark import is_of_machine
from asr.sweeps.jobs import JobRecord
from tests.commands.conftest import TINY
from tests.commands.test_resume import data
from werdict.benchmark import entries
from werdict.benchmark.entries import (
    BASELINE,
    NEW_SEEDS,
    SEEDS,
    benchmark_verdicts,
    check_override,
    comparison_text,
    problems,
    read_entry,
    status,
    target_loss,
)
from werdict.benchmark.page import write_pages
from werdict.errors import ConfigError

NUM_UTTERANCES = 60
ADAMW = "torch.optim.adamw.AdamW"


def write_entry(
    root: Path, name: str, rate: float, *, target: str = "optim.muon.Muon", seeds: tuple[int, ...] = SEEDS, **about: Any
) -> Path:
    """Write an entry whose runs have about this share of errors, and losses that fall to it."""
    task = root / "fsdd"
    folder = task / "as_shipped" / name
    folder.mkdir(parents=True)
    utterances = [f"u{place:02}\ts{place % 6}\t10\n" for place in range(NUM_UTTERANCES)]
    (task / "utterances.tsv").write_text("".join(utterances))
    fixed = {"encoder.num_layers": 6}
    known = {"name": name, "task": "fsdd", "ruleset": "as_shipped", "overrides": [f"optimizer={name}"], "fixed": fixed}
    (folder / "entry.yaml").write_text(yaml.safe_dump({**known, "references": "r", "scorer": "s", **about}))
    lines = []
    for seed in seeds:
        rng = np.random.default_rng([seed, round(1000 * rate)])
        final = rate * float(np.exp(0.05 * rng.normal()))
        line = {
            "seed": seed,
            "study": None,
            "settings": {"optimizer._target_": target, "optimizer.lr": 0.001},
            "updates": [100, 200, 300, 400],
            "dev_loss": [3.0, 2.0, (2 * final) ** 0.5, final],
            "dev_wer": [1.0, 1.0, min(1.0, 2 * final), final],
            "errors": rng.binomial(10, final, NUM_UTTERANCES).tolist(),
            "depends_on_audio": True,
            "cost": {"num_updates": 400, "num_parameters": 1000, "optimizer_state_bytes": 8000},
        }
        lines.append(json.dumps(line))
    (folder / "runs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture
def root(tmp_path):
    """A benchmark of three optimizers, of which one is far better."""
    root = tmp_path / "benchmark" / "v1"
    for name, rate in ((BASELINE, 0.4), ("muon", 0.1), ("lion", 0.41)):
        write_entry(root, name, rate, target=ADAMW if name == BASELINE else f"optim.{name}.X")
    return root


def change(folder: Path, **about: Any) -> None:
    path = folder / "entry.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **about}))


def test_verdicts_follow_from_stored_runs(root, tmp_path):
    pages = tmp_path / "docs"
    write_pages(root, pages)
    found = json.loads((root / "fsdd" / "as_shipped" / "comparison.json").read_text())
    assert [row["system"] for row in found["sets"][0]["rows"] if row["may_be_best"]] == ["muon"]
    target = target_loss(read_entry(root / "fsdd" / "as_shipped" / BASELINE))
    assert found["target_loss"] == pytest.approx(target)
    verdicts = {row["system"]: row["to_baseline"] and row["to_baseline"]["verdict"] for row in found["sets"][0]["rows"]}
    assert verdicts == {"muon": "better", BASELINE: None, "lion": "cannot distinguish"}
    (times,) = found["times_to_target"]
    assert {row["system"]: row["num_reached"] for row in times["rows"]}["muon"] == 5
    assert (pages / "fsdd_as_shipped.svg").exists()
    assert "| muon | WER, updates |" in (pages / "index.md").read_text()
    assert "muon" in (pages / "benchmark.html").read_text()
    assert problems(root) == []


def test_a_changed_count_is_noticed_where_verdicts_are_stored(root, tmp_path):
    write_pages(root, tmp_path / "docs")
    path = root / "fsdd" / "as_shipped" / "lion" / "runs.jsonl"
    first, *others = path.read_text().splitlines()
    line = json.loads(first)
    line["errors"][0] = (line["errors"][0] + 1) % 10
    path.write_text("\n".join([json.dumps(line), *others]) + "\n")
    (problem,) = problems(root)
    assert "comparison.json" in problem


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({"overrides": ["optimizer=lion", "trainer.max_steps=9"]}, "trainer.max_steps"),
        ({"overrides": ["optimizer=lion", "optimizer.lr=2e-3"]}, "optimizer.lr=2e-3"),
        ({"fixed": {"encoder.num_layers": 7}}, "encoder.num_layers"),
        ({"references": "others"}, "references"),
        ({"scorer": "other"}, "scorer"),
        ({"task": "an4"}, "an4"),
    ],
)
def test_what_breaks_a_rule_is_named(root, about, named):
    folder = root / "fsdd" / "as_shipped" / "lion"
    change(folder, **about)
    assert any(named in problem for problem in problems(root, [folder]))


def test_overrides_that_agree_with_the_runs_break_no_rule(root):
    folder = root / "fsdd" / "as_shipped" / "lion"
    change(folder, overrides=["optimizer=lion", "optimizer.lr=1e-3"])
    assert problems(root, [folder]) == []


@pytest.mark.xfail(strict=True, reason="Hydra alone knows what optimizer=NAME stands for, and checks do not use it")
def test_a_choice_that_contradicts_the_runs_is_named(root):
    folder = root / "fsdd" / "as_shipped" / "lion"
    change(folder, overrides=["optimizer=muon"])
    assert any("optimizer=muon" in problem for problem in problems(root, [folder]))


def test_an_entry_has_all_seeds_one_config_its_source_and_a_limit(root):
    folder = write_entry(root, "mine", 0.3, target="mypkg.mine.Mine", seeds=(1, 2, 3, 4))
    assert {what.split(": ")[1].split()[0] for what in problems(root, [folder])} == {"runs.jsonl", "lacks"}
    (folder / "mine.py").write_text("x = 1\n" * 100_000)
    assert any("300000" in problem for problem in problems(root, [folder]))
    folder = write_entry(root, "other", 0.3)
    text = (folder / "runs.jsonl").read_text()
    (folder / "runs.jsonl").write_text(text.replace('"optimizer.lr": 0.001', '"optimizer.lr": 0.002', 1))
    assert any("different settings" in problem for problem in problems(root, [folder]))


@pytest.mark.parametrize(
    "word",
    [
        *("optimizer.lr=0.1", "schedule=wsd", "trainer.gradient_clip_val=1", "data.source=x", "hydra/launcher=slurm"),
        *("++sweep.optimizers.x={around: {lr: 1}, usual: wsd}", "--config-dir=x", "sweep.jobs_per_gpu=3"),
    ],
)
def test_an_entry_may_choose_what_the_rules_leave_free(word):
    assert is_of_machine(word) or check_override(word) is None


@pytest.mark.parametrize(
    "word",
    [
        *("trainer.max_steps=9", "encoder=transformer_s", "data.batch.max_duration_s=3", "seed=7", "sweep.trials=50"),
        *("head=transducer", "init=x", "augment=none", "recipe=digits/transformer_ctc", "sweep.name=x"),
        *("decode_test=false", "resume=x", "run_dir=x"),
    ],
)
def test_an_entry_may_not_choose_what_the_rules_fix(word):
    assert not is_of_machine(word)
    with pytest.raises(ConfigError, match=word.split("=")[0].replace(".", r"\.")):
        check_override(word)


@pytest.mark.parametrize(("rate", "expected"), [(0.4, "reproduced"), (0.2, "challenged")])
def test_a_reproduction_with_other_seeds_confirms_or_challenges(root, tmp_path, rate, expected):
    folder = root / "fsdd" / "as_shipped" / BASELINE
    assert status(read_entry(folder)) == "submitted"
    write_entry(tmp_path / "again", BASELINE, rate, target=ADAMW, seeds=NEW_SEEDS).rename(folder / "reproduced")
    assert status(read_entry(folder)) == expected
    assert problems(root, [folder / "reproduced"]) == []
    change(folder / "reproduced", overrides=[f"optimizer={BASELINE}", "optimizer.lr=1"])
    assert any("overrides" in problem for problem in problems(root, [folder / "reproduced"]))
    runs = folder / "reproduced" / "runs.jsonl"
    runs.write_text("".join(runs.read_text().splitlines(keepends=True)[:4]))
    assert status(read_entry(folder)) == "submitted"


def fail(folder: Path, num: int) -> None:
    """Let the first runs of an entry have failed."""
    lines = (folder / "runs.jsonl").read_text().splitlines()
    failed = [json.dumps({"seed": json.loads(line)["seed"], "failed": "diverged"}) for line in lines[:num]]
    (folder / "runs.jsonl").write_text("".join(f"{line}\n" for line in [*failed, *lines[num:]]))


def test_runs_that_failed_count_as_lost(root, tmp_path):
    fail(write_entry(root, "never", 0.05), 5)
    fail(write_entry(root, "often", 0.05), 4)
    write_pages(root, tmp_path / "docs")
    (found,) = benchmark_verdicts(root)
    rows = {row.system: row for row in found.errors.rows}
    assert rows["never"].wers == (1.0,) * 5
    assert rows["never"].to_baseline.verdict == "worse"
    assert rows["often"].reliability.num_learned == 1
    assert rows["often"].wers[:4] == (1.0,) * 4
    assert "| never | – | 100.00 ± 0.00 |" in (tmp_path / "docs" / "index.md").read_text()


def test_a_reproduction_whose_runs_fail_challenges(root, tmp_path):
    folder = root / "fsdd" / "as_shipped" / BASELINE
    write_entry(tmp_path / "again", BASELINE, 0.4, target=ADAMW, seeds=NEW_SEEDS).rename(folder / "reproduced")
    fail(folder / "reproduced", 4)
    assert status(read_entry(folder)) == "challenged"


def test_where_test_speakers_are_in_training_recordings_are_drawn(root):
    (found,) = benchmark_verdicts(root)
    assert found.errors.seen_speakers
    assert found.errors.effective_units == NUM_UTTERANCES
    root.joinpath("fsdd").rename(root / "an4")
    for folder in root.glob("an4/*/*"):
        change(folder, task="an4")
    (found,) = benchmark_verdicts(root)
    assert found.errors.effective_units == 6


def test_stored_numbers_do_not_depend_on_the_last_bits(root):
    (found,) = benchmark_verdicts(root)
    nudged = replace(found, target=float(np.nextafter(found.target, 1)))
    assert comparison_text(nudged) == comparison_text(found)


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


def test_the_table_of_the_study_on_phrases_follows_from_its_stored_rates(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "recipes" / "phrases" / "RESULTS.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(block, {})
    best, *lines = printed.getvalue().splitlines()
    assert len(lines) == 7
    for line in lines:
        name, numbers, verdict = re.match(r"(\w+) (.*\]) (.*)", line).groups()
        row = next(row for row in text.splitlines() if row.startswith(f"| `{name}` |"))
        assert f"| {numbers} |" in row
        assert verdict in row
        assert row.endswith("| yes |") == (name in best.split("'"))
