"""The report of what only a GPU shows: its small form on a CPU, and how it keeps, resumes and explains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "scripts" / "gpu_report.py"


def run(*words: str, code: int = 0) -> str:
    """Run the script with one thread; return what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(REPORT), *words], env=environment, text=True, capture_output=True, timeout=1800
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def setting(script, tmp_path):
    """Return what makes the setting of a small report on a CPU."""
    return script("bench.measure").Setting("cpu", True, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        *("correct-models", "correct-optimizers", "optimizers-zipformer_s", "encoders-zipformer_s"),
        *("encoders-zipformer_s-compiled", "encoders-transformer_12x512", "encoders-conformer_12x512-compiled"),
        *("training-digits-bf16", "training-seeds", "training-loader"),
        *("exactness-bf16", "exactness-find_batch_size", "harness", "harness-checkpoints", "distributed"),
    ],
)
def test_each_part_meets_its_goals_in_small_on_a_cpu(tmp_path, part):
    printed = run("--out", str(tmp_path), "--small", "--device", "cpu", "--parts", part)
    found = json.loads((tmp_path / f"{part}.json").read_text())
    assert found["complete"], printed
    assert found["rows"]
    assert "every goal was met" in printed
    assert f"## {part}" in (tmp_path / "report.md").read_text()


def test_a_part_that_is_complete_is_kept_and_others_are_begun_anew(script, tmp_path):
    results, setting = script("bench.output"), script("bench.measure")
    key, rows = {"commit": "a", "small": True}, [setting.Row("one", "1"), setting.at_most("two", 3.0, 2.0, " ms")]
    file = results.PartFile(tmp_path, "correct")
    assert not file.is_done(key)
    written = file.write(key, {"device": "CPU"}, iter(rows))
    next(written)
    assert not file.is_done(key), "it has more rows"
    assert [row["check"] for row in file.read()["rows"]] == ["one"]
    assert list(written) == rows[1:]
    assert file.is_done(key)
    assert not file.is_done({**key, "commit": "b"})
    assert results.write_report(tmp_path, ["correct", "encoders"]) == ["correct: two"]
    assert "| two | 3 ms | at most 2 ms | NO |" in (tmp_path / "report.md").read_text()


def test_a_part_that_ends_early_is_a_missed_goal_and_keeps_its_rows(script, tmp_path):
    results, setting = script("bench.output"), script("bench.measure")
    file = results.PartFile(tmp_path, "encoders")
    file.add_failure({}, "with exit code -9")
    assert results.write_report(tmp_path, ["encoders"]) == ["encoders: the part ended"]
    next(file.write({}, {}, iter([setting.Row("one", "1")])))
    file.add_failure({}, "after 600 s")
    assert [row["check"] for row in file.read()["rows"]] == ["one", "the part ended"]
    assert not file.is_done({})


def test_an_error_is_a_missed_goal_and_what_comes_before_it_stays(script, tmp_path):
    setting = script("bench.measure")

    def rows():
        yield setting.Row("one", "1")
        raise RuntimeError("CUDA error: misaligned address\nand more")

    first, second = setting.until_error("two", rows(), setting.Setting("cpu", True, tmp_path))
    assert first.check == "one"
    assert (second.check, second.met) == ("two", False)
    assert second.value == "RuntimeError: CUDA error: misaligned address"


def test_a_goal_that_was_not_measured_is_missed_and_its_part_is_not_complete(script, tmp_path):
    results, setting = script("bench.output"), script("bench.measure")
    file = results.PartFile(tmp_path, "optimizers")
    rows = [setting.left_out("Cain", "an error", "at most 3"), setting.left_out("heavyball", "not installed")]
    assert len(list(file.write({}, {}, iter(rows)))) == 2
    assert not file.is_done({})
    assert results.write_report(tmp_path, ["optimizers"]) == ["optimizers: Cain (not measured)"]
    assert "| Cain | not measured: an error | at most 3 | NO |" in (tmp_path / "report.md").read_text()
    list(file.write({}, {}, iter(rows[1:])))
    assert file.is_done({}), "nothing was asked of what is not installed"


def test_what_there_is_no_time_for_is_not_begun_and_counts_as_missed(script, tmp_path):
    setting = script("bench.measure")
    late = setting.Setting("cpu", True, tmp_path, begun=-1e9)
    (row,) = setting.until_error("two", iter([setting.Row("one", "1")]), late)
    assert (row.check, row.met, row.measured) == ("two", False, False)
    assert row.goal


PEERS = """
import torch

class Raising(torch.optim.SGD):
    def step(self):
        raise KeyError("capturable")

class Dropping(torch.optim.SGD):
    def step(self):
        assert all(param.grad is not None for param in self.param_groups[0]["params"])
        super().step()
        self.zero_grad(set_to_none=True)
"""


@pytest.fixture
def contests(script, setting, tmp_path, monkeypatch):
    """Return what times some optimizers, of which two are other people's: one raises, one takes gradients away."""
    optimizers, bench = script("bench.optimizers"), script("bench.peers")
    (tmp_path / "peers_of_a_test.py").write_text(PEERS)
    monkeypatch.syspath_prepend(tmp_path)
    peers = [bench.Spec(name, "peers_of_a_test", name) for name in ("Raising", "Dropping")]
    monkeypatch.setattr(optimizers, "ROWS", (*bench.ROWS, *peers))

    def timed(**most_ratios: float) -> dict:
        monkeypatch.setattr(optimizers, "MOST_RATIOS", most_ratios)
        return {row.check.split(": ")[1]: row for row in optimizers.rows(setting, "zipformer_s")}

    return timed


def test_a_peer_that_raises_is_a_row_and_one_that_drops_gradients_is_timed_with_them(contests):
    rows = contests(Raising=0, Dropping=0, Eve=0)
    assert list(rows) == ["torch_adamw_fused", "Raising", "Dropping", "Eve"]
    assert (rows["Raising"].value, rows["Raising"].met) == ("KeyError: 'capturable'", None)
    for name in ("Dropping", "Eve"):
        assert " × torch_adamw_fused" in rows[name].value
    assert "; captured " in rows["Eve"].value


def test_eager_steps_are_held_to_their_goals_on_a_gpu_whether_or_not_they_supports_cuda_graphs(
    script, setting, contests, monkeypatch
):
    optimizers = script("bench.optimizers")
    monkeypatch.setattr(type(setting), "on_gpu", True)
    monkeypatch.setattr(optimizers, "num_kernels", lambda step: (step(), 7)[1])
    monkeypatch.setattr(optimizers, "captured", lambda step, device: 1 / 0)
    rows = contests(Eve=1e9, SOAP=1e-9, Raising=0)
    goals = {"Eve": True, "SOAP": False, "time of ScaledAdam, of icefall_scaled_adam": False}
    assert {name: row.met for name, row in rows.items() if row.goal} == goals
    assert "7 kernels" in rows["SOAP"].value
    assert "; not captured: ZeroDivisionError" in rows["Eve"].value


def test_parts_are_listed_and_chosen_by_the_beginnings_of_their_names(script, tmp_path):
    report = script("gpu_report")
    small = ("--out", str(tmp_path), "--small", "--device", "cpu")
    assert report.parsed(small).parts == list(report.PARTS)
    chosen = report.parsed((*small, "--parts", "exactness,training-seeds")).parts
    assert chosen == [part for part in report.PARTS if part.startswith("exactness") or part == "training-seeds"]
    printed = run("--help")
    assert all(part in printed for part in report.PARTS)


def test_parts_begin_nothing_new_some_time_before_they_are_ended_within_eight_minutes(script):
    report = script("gpu_report")
    assert 60 * script("bench.measure").MINUTES < report.MOST_SECONDS <= 480
    assert all(60 * minutes <= report.MOST_SECONDS for minutes, _ in report.PARTS.values())
