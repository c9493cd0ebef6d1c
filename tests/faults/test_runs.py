"""What goes wrong around a run costs one line and no finished work: full disks, damaged files, clocks, processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asr.commands import transcribe
from asr.errors import RunFailed
from asr.run_folder import point_latest
from asr.tracking.metrics_csv import MetricsCsv
from asr.training.checkpoints import files as checkpoint_files
from asr.training.checkpoints.files import duplicate, explaining_failed_writes, update_file, write
from asr.training.report import write_summary
from tests.faults import spoken_corpus
from tests.faults.conftest import fill
from tests.faults.spoken_corpus import write_corpus


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_checkpoint_that_does_not_fit_leaves_the_former_one(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    before = contents(run_dir / "checkpoints")
    limit = (run_dir / "metrics.csv").stat().st_size + 20_000
    assert limit < len(before["update-000003.ckpt"])
    ended = small_run.run("train", f"resume={run_dir}", limits={"RLIMIT_FSIZE": limit})
    assert ended.code == 1, ended.printed
    for part in (
        "update-000006.ckpt",
        "could not be written: File too large; raise the limit of the shell on the size of files (ulimit -f)",
        f"resume={run_dir} continues from update 3",
    ):
        assert part in ended.last_line
    assert contents(run_dir / "checkpoints") == before
    ended = small_run.run("train", f"resume={run_dir}")
    assert ended.code == 0, ended.printed
    assert json.loads((run_dir / "report" / "summary.json").read_text())["checkpoint_update"] == 6


def test_a_full_disk_leaves_the_former_checkpoint_whole(small_disk):
    path = small_disk / "a.ckpt"
    write({"w": torch.ones(1000)}, path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space left") as raised:
        write({"w": torch.ones(10**6)}, path)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    assert contents(small_disk) == {"a.ckpt": before}


WRITERS = {
    "a summary": lambda folder: write_summary(folder, {"a": "x" * 2**21}),
    "metrics": lambda folder: MetricsCsv(folder).log_metrics({f"{n:01000}": 1.0 for n in range(2000)}, 1),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_on_a_full_disk_errors_name_what_could_not_be_written(small_disk, writer):
    with (
        pytest.raises(RunFailed, match=r"disk/.* could not be written: No space left on device; make room"),
        explaining_failed_writes(small_disk),
    ):
        writer(small_disk)
    assert not [path for path in small_disk.rglob("*") if path.suffix == ".tmp"]


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EROFS])
def test_why_a_checkpoint_could_not_be_written_is_told(tmp_path, monkeypatch, code):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    write({"w": 1}, update_file(folder, 7))

    def fails(path):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(checkpoint_files, "sync", fails)
    said = f"update-000008.ckpt could not be written: {os.strerror(code)}; .* continues from update 7"
    with pytest.raises(RunFailed, match=said), explaining_failed_writes(tmp_path):
        write({"w": 2}, update_file(folder, 8))
    assert [path.name for path in folder.iterdir()] == ["update-000007.ckpt"]


@pytest.mark.slow
def test_a_report_that_does_not_fit_is_written_after_resuming(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    (run_dir / "report").rename(run_dir / "old")
    limit = (run_dir / "old" / "loss.png").stat().st_size - 1  # what is printed is a file of a few kB, and must fit
    ended = small_run.run("train", f"resume={run_dir}", limits={"RLIMIT_FSIZE": limit})
    assert ended.code == 1, ended.printed
    for part in ("could not be written: File too large", f"resume={run_dir} continues from update 6"):
        assert part in ended.last_line
    assert small_run.run("train", f"resume={run_dir}").code == 0
    assert (run_dir / "report" / "wer.png").is_file()


@pytest.mark.slow
def test_transcripts_that_do_not_fit_leave_nothing(small_run, small_disk):
    fill(small_disk)
    words = (f"run={small_run.run_dir}", f"audio={small_run.audio()}", f"output={small_disk}/a.tsv")
    ended = small_run.run("transcribe", *words)
    assert ended.code == 1, ended.printed
    assert "No space left on device: " in ended.last_line
    assert [path.name for path in small_disk.iterdir()] == ["filling"]
    (small_disk / "filling").unlink()
    assert small_run.run("transcribe", *words).code == 0
    assert (small_disk / "a.tsv").is_file()


def test_transcripts_for_a_full_device_end_with_a_line(monkeypatch):
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(RunFailed, match="No space left on device; output=FILE"):
            transcribe._print("a\tb\n")


@pytest.mark.slow
def test_hypotheses_that_do_not_fit_are_named(small_run, small_disk):
    fill(small_disk)
    words = (f"run={small_run.run_dir}", f"output_dir={small_disk / 'out'}", "torch_threads=1")
    ended = small_run.run("evaluate", *words)
    assert ended.code != 0
    assert "No space left on device" in ended.last_line
    assert "test.hyp.txt" in ended.last_line
    assert list((small_disk / "out").iterdir()) == []


@pytest.mark.slow
def test_a_best_checkpoint_older_than_the_averages_decodes_with_its_own_weights(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    path = update_file(run_dir / "checkpoints", 3)
    state = torch.load(path, weights_only=True)
    del state["averages"]
    state["callbacks"]["CheckpointCallback"] |= {"best_wer": 0.0, "best_update": 3}
    torch.save(state, path)
    duplicate(path, run_dir / "checkpoints" / "best.ckpt")
    ended = small_run.run("train", f"resume={run_dir}", "weights=average")
    assert ended.code == 0, ended.printed
    said = "weights=average was asked for, but best.ckpt of update 3 has none"
    assert f"WARNING: {said}" in ended.printed
    summary = json.loads((run_dir / "report" / "summary.json").read_text())
    assert (summary["weights"], summary["weights_asked_for"], summary["checkpoint_update"]) == ("raw", "average", 3)
    assert said in summary["notes"][-1]
    assert said in (run_dir / "decode" / "test.wer.txt").read_text()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def test_a_damaged_checkpoint_costs_the_updates_after_the_one_before(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    (run_dir / "report").rename(run_dir / "old")
    cut(update_file(run_dir / "checkpoints", 6))
    ended = small_run.run("train", f"resume={run_dir}")
    assert ended.code == 0, ended.printed
    assert "left out:" in ended.printed
    assert "update-000003.ckpt" in ended.printed


@pytest.mark.slow
def test_a_reader_that_has_left_does_not_end_a_command_without_a_word(tmp_path):
    write_corpus(tmp_path)
    command = [sys.executable, "-m", "asr.commands", "prepare", *spoken_corpus.TINY]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        said = process.stderr.read() if process.stderr is not None else ""
    assert process.returncode == 1
    assert said.startswith("asr-prepare: the program that read the output has ended"), said


@pytest.mark.parametrize(("number", "passes"), [(errno.EPERM, True), (errno.ENOSPC, False)])
def test_without_links_no_run_is_called_the_latest(tmp_path, monkeypatch, number, passes):
    def refuse(path: Path, target: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with contextlib.nullcontext() if passes else pytest.raises(OSError, match="No space left"):
        point_latest(tmp_path / "run", tmp_path / "latest")
    assert not list(tmp_path.iterdir())
