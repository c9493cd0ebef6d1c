"""Callbacks that stop a run: refused where they could not work, named where they have stopped it."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from tests.small_runs import TINY

LIGHTNING = "_target_: lightning.pytorch.callbacks"
EARLY = f"{LIGHTNING}.EarlyStopping"
REFUSED = {
    "a metric that there is not": (
        f"{{{EARLY}, monitor: nonsense}}",
        "EarlyStopping cannot monitor 'nonsense'; allowed: val/wer, val/NAME/wer, val/NAME/cer",
    ),
    "a metric that may be missing": (f"{{{EARLY}, monitor: val/other/wer, strict: false}}", "cannot monitor"),
    "a metric of another set": (f"{{{EARLY}, monitor: val/test/wer}}", "cannot monitor 'val/test/wer'"),
    "before the first validation": (
        f"{{{EARLY}, monitor: val/wer, check_on_train_epoch_end: true}}",
        "would look for a metric too early",
    ),
    "no duration": (f"{{{LIGHTNING}.Timer, duration: soon}}", "is not a valid duration"),
}


@pytest.mark.parametrize(("callback", "said"), REFUSED.values(), ids=REFUSED)
def test_a_callback_that_could_not_work_is_refused_before_the_run(small_run, tmp_path, callback, said):
    ended = small_run.run("train", *TINY, f"+callbacks.stop={callback}", f"run_dir={tmp_path / 'run'}")
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert "Traceback" not in ended.printed
    assert not (tmp_path / "run").exists()


def test_a_callback_that_misses_a_logger_is_refused_with_a_line(small_run, tmp_path):
    callback = f"+callbacks.stats={{{LIGHTNING}.DeviceStatsMonitor}}"
    ended = small_run.run("train", *TINY, callback, "logger=none", f"run_dir={tmp_path / 'run'}")
    assert (ended.code, "DeviceStatsMonitor need a logger" in ended.last_line) == (2, True), ended.printed


@pytest.mark.skipif(find_spec("psutil") is not None, reason="psutil, which the callback needs, is installed")
def test_a_callback_that_misses_a_package_ends_with_a_line(small_run, tmp_path):
    callback = f"+callbacks.stats={{{LIGHTNING}.DeviceStatsMonitor}}"
    ended = small_run.run("train", *TINY, callback, "logger=csv", f"run_dir={tmp_path / 'run'}")
    assert (ended.code, "psutil" in ended.last_line) == (1, True), ended.printed
    assert "Traceback" not in ended.printed


@pytest.mark.parametrize("seconds", [0, -5])
def test_a_run_that_was_stopped_before_its_first_update_has_failed(small_run, tmp_path, seconds):
    timer = f"+callbacks.stop={{{LIGHTNING}.Timer, duration: {{seconds: {seconds}}}}}"
    ended = small_run.run("train", *TINY, timer, f"run_dir={tmp_path / 'run'}")
    assert ended.code == 1, ended.printed
    assert "the run made no update: stopped at update 0 of 6: the duration" in ended.last_line
    assert not (tmp_path / "run" / "report").exists()


def test_a_run_that_a_callback_has_stopped_says_so_at_its_end(small_run, tmp_path):
    run_dir = tmp_path / "run"
    stop = f"+callbacks.stop={{{EARLY}, monitor: val/wer, stopping_threshold: 100}}"
    ended = small_run.run("train", *TINY, stop, f"run_dir={run_dir}")
    assert ended.code == 0, ended.printed
    said = "stopped at update 3 of 6: by the callback EarlyStopping: Stopping threshold reached"
    assert ended.last_line.startswith(said)
    assert any(note.startswith(said) for note in json.loads((run_dir / "report" / "summary.json").read_text())["notes"])


def test_a_run_that_was_stopped_early_continues_with_the_patience_of_now(small_run, tmp_path):
    run_dir = tmp_path / "run"
    stop = f"+callbacks.stop={{{EARLY}, monitor: val/wer, min_delta: 100, patience: 1}}"
    ended = small_run.run("train", *TINY, stop, "trainer.val_check_interval=1", f"run_dir={run_dir}")
    assert "stopped at update 2 of 6: by the callback EarlyStopping" in ended.printed
    ended = small_run.run("train", f"resume={run_dir}", "callbacks.stop.patience=9", "allow_changes=true")
    assert (ended.code, "by the callback" in ended.printed) == (0, False), ended.printed


def test_a_resumed_run_without_time_left_has_failed_until_it_gets_some(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    timer = f"+callbacks.stop={{{LIGHTNING}.Timer, duration: {{seconds: 0}}}}"
    ended = small_run.run("train", f"resume={run_dir}", timer, "allow_changes=true")
    assert ended.code == 1, ended.printed
    assert "made no update: stopped at update 3 of 6: the duration 0:00:00" in ended.last_line
    ended = small_run.run("train", f"resume={run_dir}", "~callbacks.stop")
    assert (ended.code, "stopped" in ended.printed) == (0, False), ended.printed


def test_a_finished_run_with_a_timer_is_reported_again(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    timer = f"+callbacks.stop={{{LIGHTNING}.Timer, duration: {{seconds: 0}}}}"
    ended = small_run.run("train", f"resume={run_dir}", timer, "allow_changes=true")
    assert (ended.code, "stopped" in ended.printed) == (0, False), ended.printed
