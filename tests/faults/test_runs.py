"""What goes wrong around a run costs one line and no finished work: full disks, damaged files, two processes."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from asr.tracking.metrics_csv import MetricsCsv
from tests import small_runs
from tests.faults.conftest import fill
from tests.faults.spoken_corpus import TINY, write_corpus


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("words", [(), ("trainer.async_checkpoints=true",)], ids=str)
def test_a_checkpoint_that_does_not_fit_leaves_the_former_one(small_run, tmp_path, words):
    run_dir = small_run.interrupted(tmp_path / "run")
    before = contents(run_dir / "checkpoints")
    limit = (run_dir / "metrics.csv").stat().st_size + 20_000
    assert limit < len(before["update-000003.ckpt"])
    ended = small_run.run("train", f"resume={run_dir}", *words, limits={"RLIMIT_FSIZE": limit}, code=1)
    for part in ("update-000006.ckpt", "ulimit -f", f"resume={run_dir} continues from update 3"):
        assert part in ended.last_line
    assert contents(run_dir / "checkpoints") == before
    small_run.run("train", f"resume={run_dir}")
    assert json.loads((run_dir / "report" / "summary.json").read_text())["checkpoint_update"] == 6


@pytest.mark.parametrize("room", [4096 * 2, 0])
def test_an_export_or_a_transcript_that_does_not_fit_leaves_nothing(small_run, small_disk, room):
    fill(small_disk, room)
    run = f"run={small_run.run_dir}"
    commands = [("export", run, f"output={small_disk}/out", "format=torch")]
    commands += [("transcribe", run, f"audio={small_run.audio}", f"output={small_disk}/a.tsv")] if not room else []
    for words in commands:
        ended = small_run.run(*words, code=1)
        assert "No space left on device" in ended.last_line, ended.printed
        assert [path.name for path in small_disk.iterdir()] == ["filling"]


def test_a_run_that_another_process_writes_to_is_not_changed(small_run, tmp_path):
    folder = small_run.copy(tmp_path / "run")
    before = contents(folder)
    words = ("resume=run", "seed=7", "allow_changes=true", "logger=csv", f"data.dir={small_run.data_dir}")
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = small_run.programs.run("train", *words, cwd=tmp_path, code=2)
    assert "another process is training in" in ended.last_line, ended.printed
    assert contents(folder) == before


def test_a_reader_that_has_left_does_not_end_a_command_without_a_word(tmp_path):
    write_corpus(tmp_path)
    command = [sys.executable, "-m", "asr.commands", "prepare", *TINY]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        said = process.stderr.read() if process.stderr is not None else ""
    assert process.returncode == 1
    assert said.startswith("asr-prepare: the program that read the output has ended"), said


def test_a_run_that_a_callback_has_stopped_says_so_at_its_end(small_run, tmp_path):
    early = "_target_: lightning.pytorch.callbacks.EarlyStopping"
    stop = f"+callbacks.stop={{{early}, monitor: val/wer, stopping_threshold: 100}}"
    ended = small_run.run("train", *small_runs.TINY, stop, f"run_dir={tmp_path / 'run'}")
    assert ended.last_line.startswith("stopped at update 3 of 6: by the callback EarlyStopping")


def test_what_a_kill_left_of_a_row_is_dropped(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,name,value\r\n0,a,1.0\r\n3,a,1.0\r\n2,a,1.")
    MetricsCsv(tmp_path).resume(3)
    assert (tmp_path / "metrics.csv").read_text() == "step,name,value\n0,a,1.0\n"
