"""Callbacks that stop a run are named at its end."""

from __future__ import annotations

import json

import pytest

from tests.small_runs import TINY

LIGHTNING = "_target_: lightning.pytorch.callbacks"
EARLY = f"{LIGHTNING}.EarlyStopping"


def test_a_run_that_a_callback_has_stopped_says_so_at_its_end(small_run, tmp_path):
    run_dir = tmp_path / "run"
    stop = f"+callbacks.stop={{{EARLY}, monitor: val/wer, stopping_threshold: 100}}"
    ended = small_run.run("train", *TINY, stop, f"run_dir={run_dir}")
    assert ended.code == 0, ended.printed
    said = "stopped at update 3 of 6: by the callback EarlyStopping: Stopping threshold reached"
    assert ended.last_line.startswith(said)
    assert any(note.startswith(said) for note in json.loads((run_dir / "report" / "summary.json").read_text())["notes"])


@pytest.mark.slow
def test_a_run_that_was_stopped_early_continues_with_the_patience_of_now(small_run, tmp_path):
    run_dir = tmp_path / "run"
    stop = f"+callbacks.stop={{{EARLY}, monitor: val/wer, min_delta: 100, patience: 1}}"
    ended = small_run.run("train", *TINY, stop, "trainer.val_check_interval=1", f"run_dir={run_dir}")
    assert "stopped at update 2 of 6: by the callback EarlyStopping" in ended.printed
    ended = small_run.run("train", f"resume={run_dir}", "callbacks.stop.patience=9", "allow_changes=true")
    assert (ended.code, "by the callback" in ended.printed) == (0, False), ended.printed
