"""Entries of the benchmark: what breaks a rule is refused, and verdicts are frozen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from asr.commands.benchmark import is_of_machine
from werdict.benchmark.check import problems
from werdict.benchmark.entries import read_entry
from werdict.benchmark.page import write_pages
from werdict.benchmark.rules import BASELINE, LOOKS, check_override, drawn_seeds
from werdict.benchmark.verdicts import freeze, read_verdict, standings
from werdict.errors import ConfigError

TASK, RULESET, COMMIT = "an4", "as_shipped", "0123abcd" * 5
NUM_UTTERANCES, BUDGET = 60, 400
SEEDS = drawn_seeds(COMMIT, TASK)
FIXED = {"encoder.num_layers": 6, "trainer.max_steps": BUDGET, "trainer.accumulate_grad_batches": 1}
KNOWN = {"data": "d", "references": "r", "scorer": "s", "fixed": FIXED}
SETTINGS = {"optimizer._target_": "optim.muon.Muon", "optimizer.lr": 0.001}
LINES = list[dict[str, Any]]


def settings_of(folder: Path, task: str, overrides: list[str], trial: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the entries below, as Hydra composes those of real ones."""
    given = dict(word.split("=", 1) for word in overrides)
    return {**SETTINGS, **{key: yaml.safe_load(value) for key, value in given.items() if "." in key}, **trial}


def write_entry(root: Path, name: str, rate: float, num: int = LOOKS[-1], **about: Any) -> Path:
    """Write an entry whose runs have about this share of errors, and losses that fall to it."""
    folder = root / RULESET / name
    folder.mkdir(parents=True)
    utterances = [f"u{place:02}\ts{place % 6}\t10\n" for place in range(NUM_UTTERANCES)]
    (root / f"{TASK}.tsv").write_text("".join(utterances))
    (root / f"{TASK}.yaml").write_text(yaml.safe_dump({**KNOWN, "harness": {"h": "of the first entry"}}))
    (folder / "entry.yaml").write_text(yaml.safe_dump({"author": "Ann", "overrides": [f"optimizer={name}"], **about}))
    lines: LINES = [{"commit": COMMIT, **KNOWN}]
    for seed in SEEDS[:num]:
        rng = np.random.default_rng([seed, round(1000 * rate), len(name)])
        final = rate * float(np.exp(0.05 * rng.normal()))
        line = {
            "seed": seed,
            "settings": SETTINGS,
            "updates": [100, 200, 300, 400],
            "dev_loss": [3.0, 2.0, (2 * final) ** 0.5, final],
            "dev_wer": [1.0, 1.0, min(1.0, 2 * final), final],
            "errors": rng.binomial(10, final, NUM_UTTERANCES).tolist(),
            "depends_on_audio": True,
            "cost": {"num_updates": BUDGET, "num_passes": BUDGET, "num_parameters": 9, "cpu_seconds": 150.0},
            "harness": "h",
            "baseline_cpu_seconds": 100.0,
        }
        lines.append(line)
    write_lines(folder, lines)
    return folder


def write_lines(folder: Path, lines: LINES) -> None:
    (folder / f"{TASK}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def read_lines(folder: Path) -> LINES:
    return [json.loads(line) for line in (folder / f"{TASK}.jsonl").read_text().splitlines()]


@pytest.fixture
def root(tmp_path):
    """A benchmark of three optimizers, of which one is far better; their verdicts are frozen."""
    root = tmp_path / "benchmark" / "v2"
    for name, rate in ((BASELINE, 0.4), ("lion", 0.41), ("muon", 0.1)):
        write_entry(root, name, rate)
    freeze(root, "2026-01-01")
    return root


def test_verdicts_are_frozen_and_the_best_are_shown(root, tmp_path):
    pages = tmp_path / "docs"
    write_pages(root, pages)
    muon, lion = (read_verdict(read_entry(root / RULESET / name, TASK)) for name in ("muon", "lion"))
    found = muon[f"beside {BASELINE}"]
    assert {outcome: one["verdict"] for outcome, one in found.items()} == {"errors": "better", "updates": "better"}
    assert muon["record"]
    assert not lion["record"]
    assert lion[f"beside {BASELINE}"]["errors"]["verdict"] == "cannot distinguish"
    (standing,) = standings(root)
    assert [row.system for row in standing.errors.best] == ["muon"]
    index = (pages / "index.md").read_text()
    assert "| muon | WER, updates |" in index
    assert index.index("muon is best") < index.index("Errors ÷")
    assert {path.name for path in pages.glob("*.svg")} == {
        f"{TASK}_{RULESET}_{name}.svg" for name in ("forest", "curves", "trades")
    }
    assert "muon" in (pages / "benchmark.html").read_text()
    assert problems(root, settings_of) == []


def test_junk_entries_change_no_frozen_verdict(root, tmp_path):
    before = {path: path.read_text() for path in root.rglob("*.verdict.json")}
    (best,) = [[row.system for row in one.errors.best] for one in standings(root)]
    for number in range(20):
        write_entry(root, f"junk{number}", 0.7)
    freeze(root, "2026-01-02")
    assert {path: path.read_text() for path in before} == before
    (standing,) = standings(root)
    assert [row.system for row in standing.errors.best] == best
    assert not {row.system for row in standing.errors.rows} & {f"junk{number}" for number in range(20)}
    assert problems(root, settings_of) == []


def without_errors(lines: LINES) -> None:
    for line in lines[1:]:
        line["errors"] = [0] * NUM_UTTERANCES


def other_fixed(lines: LINES) -> None:
    lines[0]["fixed"] = {**FIXED, "encoder.num_layers": 7}


def more_updates(lines: LINES) -> None:
    for line in lines[1:]:
        line["updates"] = [2 * update for update in line["updates"]]


def more_passes(lines: LINES) -> None:
    for line in lines[1:]:
        line["cost"]["num_passes"] *= 2


def best_of_many_seeds(lines: LINES) -> None:
    for number, line in enumerate(lines[1:]):
        line["seed"] = number


def without_the_worst_seed(lines: LINES) -> None:
    worst = max(lines[1:], key=lambda line: sum(line["errors"]))
    lines.remove(worst)


def better_curve(lines: LINES) -> None:
    for line in lines[1:]:
        line["dev_wer"] = [0.01] * 4


def other_settings(lines: LINES) -> None:
    for line in lines[1:]:
        line["settings"] = {**SETTINGS, "optimizer.lr": 0.002}


def one_other_setting(lines: LINES) -> None:
    lines[1]["settings"] = {**SETTINGS, "optimizer.lr": 0.002}


def fewer_utterances(lines: LINES) -> None:
    for line in lines[1:]:
        line["errors"].pop()


def a_changed_count(lines: LINES) -> None:
    lines[1]["errors"][0] = (lines[1]["errors"][0] + 1) % 10


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (without_errors, "test"),
        (lambda lines: lines[0].update(fixed={}), "encoder.num_layers"),
        (lambda lines: lines[0].pop("fixed"), "fixed"),
        (other_fixed, "encoder.num_layers"),
        (lambda lines: lines[0].update(data="other"), "data"),
        (lambda lines: lines[0].update(references="other"), "references"),
        (lambda lines: lines[0].update(scorer="other"), "scorer"),
        (lambda lines: lines[1].update(harness="other"), "harness"),
        (more_updates, "updates"),
        (more_passes, "passes"),
        (best_of_many_seeds, "seeds"),
        (without_the_worst_seed, "seeds"),
        (lambda lines: lines[0].update(commit="f" * 40), "seeds"),
        (better_curve, "dev"),
        (other_settings, "optimizer.lr"),
        (one_other_setting, "settings"),
        (fewer_utterances, "utterances"),
        (a_changed_count, "verdict"),
    ],
    ids=lambda value: value.__name__.strip("<>") if callable(value) else value,
)
def test_a_trick_is_named(root, attack: Callable[[LINES], object], named):
    folder = root / RULESET / "lion"
    lines = read_lines(folder)
    attack(lines)
    write_lines(folder, lines)
    assert any(named in problem for problem in problems(root, settings_of, [folder]))


@pytest.mark.parametrize(("former", "named"), [({"augment.copies": [None]}, []), ({}, ["augment.copies"])])
def test_an_option_that_did_not_exist_when_an_entry_was_trained_is_no_breach_if_the_task_says_so(root, former, named):
    known = {**KNOWN, "fixed": {**FIXED, "augment.copies": 1}, "harness": {"h": ""}, "former": former}
    (root / f"{TASK}.yaml").write_text(yaml.safe_dump(known))
    found = problems(root, settings_of, [root / RULESET / "lion"])
    assert len(found) == len(named)
    assert all(key in problem for key, problem in zip(named, found, strict=True))


def test_a_run_marked_failed_counts_as_lost_and_so_helps_nobody(root):
    folder = root / RULESET / "lion"
    lines = read_lines(folder)
    before = read_entry(folder, TASK).wers
    worst = max(lines[1:], key=lambda line: sum(line["errors"]))
    lines[lines.index(worst)] = {"seed": worst["seed"], "failed": "diverged"}
    write_lines(folder, lines)
    after = read_entry(folder, TASK).wers
    assert sum(after) == pytest.approx(sum(before) - max(before) + 1.0)
    assert any("verdict" in problem for problem in problems(root, settings_of, [folder]))


def test_an_entry_whose_runs_have_all_failed_has_a_verdict_and_stands_on_the_page(root, tmp_path):
    folder = write_entry(root, "lost", 0.5)
    shared, *lines = read_lines(folder)
    write_lines(folder, [shared, *({"seed": line["seed"], "failed": "exit code 77"} for line in lines)])
    freeze(root, "2026-01-02")
    write_pages(root, tmp_path / "pages")
    assert "| lost |" in (tmp_path / "pages" / "index.md").read_text()
    assert problems(root, settings_of, [folder]) == []


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({"overrides": ["optimizer=lion", "trainer.max_steps=9"]}, "trainer.max_steps"),
        ({"overrides": ["optimizer=lion", "optimizer.lr=2e-3"]}, "optimizer.lr"),
        ({"overrides": ["optimizer=lion"], "reproduces": "muon"}, "muon"),
    ],
)
def test_what_an_entry_says_of_itself_must_be_so(root, about, named):
    folder = root / RULESET / "lion"
    (folder / "entry.yaml").write_text(yaml.safe_dump(about))
    assert any(named in problem for problem in problems(root, settings_of, [folder]))


@pytest.mark.parametrize(("overrides", "is_broken"), [([], False), (["optimizer.lr=0.001"], True)])
def test_a_default_that_was_another_one_breaks_no_rule(root, overrides, is_broken):
    folder, known = root / RULESET / "lion", root / f"{TASK}.yaml"
    known.write_text(known.read_text() + yaml.safe_dump({"former": {"optimizer.lr": [0.002]}}))
    lines = read_lines(folder)
    other_settings(lines)
    write_lines(folder, lines)
    (folder / "entry.yaml").write_text(yaml.safe_dump({"overrides": ["optimizer=lion", *overrides]}))
    assert bool(problems(root, settings_of, [folder])) == is_broken


@pytest.mark.parametrize(("num_trials", "lr", "named"), [(8, 0.001, None), (9, 0.001, "trials"), (8, 0.002, "lr")])
def test_a_tuned_entry_has_its_trials_and_the_settings_of_the_best(root, num_trials, lr, named):
    folder = root / "tuned" / "muon"
    folder.parent.mkdir()
    (root / RULESET / "muon").rename(folder)
    shutil.copytree(root / RULESET / BASELINE, root / "tuned" / BASELINE)
    lines = read_lines(folder)
    trials = [{"settings": {"optimizer.lr": lr}, "wer": 0.1}, *[{"settings": {"optimizer.lr": 1}, "wer": 0.2}] * 8]
    lines[0]["tuning"] = [{"muon": {"trials": trials[:num_trials]}}]
    write_lines(folder, lines)
    (folder / f"{TASK}.verdict.json").unlink()
    freeze(root, "2026-01-02")
    found = problems(root, settings_of, [folder])
    assert found == [] if named is None else any(named in problem for problem in found)


def test_an_optimizer_of_ones_own_brings_its_source(root):
    folder = root / RULESET / "lion"
    lines = read_lines(folder)
    for line in lines[1:]:
        line["settings"] = {**SETTINGS, "optimizer._target_": "mine.Mine"}
    write_lines(folder, lines)
    (folder / "entry.yaml").write_text(yaml.safe_dump({"overrides": ["optimizer._target_=mine.Mine"]}))
    assert any("source" in problem for problem in problems(root, settings_of, [folder]))
    (folder / "mine.py").write_text("class Mine: ...\n")
    assert problems(root, settings_of, [folder]) == []


@pytest.mark.parametrize(("rate", "expected"), [(0.1, True), (0.2, False)])
def test_a_repetition_with_other_seeds_confirms_or_does_not(root, tmp_path, rate, expected):
    folder = write_entry(root, "muon_again", rate, overrides=["optimizer=muon"], reproduces="muon")
    freeze(root, "2026-01-02")
    assert read_verdict(read_entry(folder, TASK))["confirms"] is expected
    assert not read_verdict(read_entry(folder, TASK))["record"]
    assert problems(root, settings_of, [folder]) == []
    write_pages(root, tmp_path / "docs")
    said = "confirmed by muon_again" if expected else "not confirmed by muon_again"
    assert f"| {said} |" in (tmp_path / "docs" / "index.md").read_text()


def test_the_second_look_decides_what_the_first_left_open(root):
    folder = write_entry(root, "close", 0.39, num=LOOKS[0])
    freeze(root, "2026-01-02")
    first = read_verdict(read_entry(folder, TASK))
    assert first["runs"] == LOOKS[0]
    lines = read_lines(folder)
    whole = write_entry(root, "whole", 0.39)
    write_lines(folder, [*lines, *read_lines(whole)[1 + LOOKS[0] :]])
    assert problems(root, settings_of, [folder])
    freeze(root, "2026-01-03")
    assert read_verdict(read_entry(folder, TASK))["runs"] == LOOKS[-1]
    assert problems(root, settings_of, [folder]) == []


def test_seeds_follow_from_the_commit_alone():
    assert drawn_seeds(COMMIT, TASK) == drawn_seeds(COMMIT, TASK)
    assert len({*drawn_seeds(COMMIT, TASK), *drawn_seeds("x", TASK), *drawn_seeds(COMMIT, "phrases")}) == 3 * LOOKS[-1]
    assert all(0 <= seed < 2**31 for seed in SEEDS)


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
