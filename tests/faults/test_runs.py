"""What goes wrong around a run costs one line and no finished work: full disks, damaged files, clocks, processes."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from asr import run_folder
from asr.cli import transcribe
from asr.errors import RunFailed
from asr.run_folder import create_run_folder, lock_run_dir, point_latest
from asr.safe_io import write_new, write_whole
from asr.tracking.metrics_csv import MetricsCsv
from asr.training.checkpoints import files as checkpoint_files
from asr.training.checkpoints.files import duplicate, explaining_failed_writes, update_file, write
from asr.training.checkpoints.loading import newest_good_checkpoint
from asr.training.report import Stopwatch, write_summary
from tests.faults import spoken_corpus
from tests.faults.conftest import fill
from tests.faults.spoken_corpus import write_corpus
from tests.small_runs import TINY


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


def test_a_folder_of_checkpoints_that_may_not_be_written_ends_before_any_update(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    folder = run_dir / "checkpoints"
    if subprocess.run(["chattr", "+i", str(folder)], capture_output=True).returncode:
        pytest.skip("chattr cannot make a folder immutable here, and root may write all others")
    try:
        ended = small_run.run("train", f"resume={run_dir}")
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)
    assert ended.code == 1, ended.printed
    assert "checkpoints/writable.tmp could not be written: Operation not permitted" in ended.last_line
    assert "update 4/" not in ended.printed


def test_a_table_of_metrics_that_cannot_grow_ends_the_run_with_a_line(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    before = contents(run_dir / "checkpoints")
    with (run_dir / "metrics.csv").open("a") as file:
        file.write("0,train/other,1.0\r\n" * 1000)  # more than is printed, which is limited too
    limit = (run_dir / "metrics.csv").stat().st_size
    ended = small_run.run("train", f"resume={run_dir}", limits={"RLIMIT_FSIZE": limit - 500})
    assert ended.code == 1, ended.printed
    for part in ("metrics.csv could not be written: File too large", f"resume={run_dir} continues from update 3"):
        assert part in ended.last_line
    assert contents(run_dir / "checkpoints") == before
    assert small_run.run("train", f"resume={run_dir}").code == 0


def test_a_first_checkpoint_that_does_not_fit_says_that_the_run_begins_again(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    for path in (run_dir / "checkpoints").iterdir():
        path.unlink()
    ended = small_run.run("train", f"resume={run_dir}", limits={"RLIMIT_FSIZE": 20_000})
    assert (ended.code, "starts again: it has no checkpoint yet" in ended.last_line) == (1, True)
    assert contents(run_dir / "checkpoints") == {}


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
    "a file, whole": lambda folder: write_whole(folder / "a", "x" * 2**21),
    "a new file": lambda folder: write_new(folder / "a", "x" * 2**21),
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


CODES = {"no room": errno.ENOSPC, "a quota": errno.EDQUOT, "a read-only disk": errno.EROFS, "a broken disk": errno.EIO}


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
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


OUTPUTS = {
    "a folder": ("taken", "'taken' exists; name another file"),
    "below a file": ("file/a.tsv", "cannot be created: Not a directory; name another file"),
    "a name of 300 characters": ("a" * 300, "cannot be created: File name too long; name another file"),
    "a folder's name of 300 characters": (f"{'a' * 300}/b", "cannot be created: File name too long"),
    "a link that leads nowhere": ("dangling", "'dangling' exists; name another file"),
    "a loop of links": ("loop/a", "cannot be created: Too many levels of symbolic links"),
    "a place where nothing can be made": ("/proc/nothing/a", "cannot be created: No such file or directory"),
}


@pytest.mark.parametrize(("output", "said"), OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_that_cannot_be_made_is_refused_before_the_work(small_run, tmp_path, output, said):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("a file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    words = (f"run={small_run.run_dir}", f"audio={small_run.audio()}", f"output={output}")
    ended = small_run.programs.run("transcribe", *words, cwd=tmp_path)
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "loop", "taken"]


@pytest.mark.parametrize("name", ["a.tsv", "a" * 250])
def test_transcripts_that_do_not_fit_leave_nothing(small_run, small_disk, name):
    fill(small_disk)
    words = (f"run={small_run.run_dir}", f"audio={small_run.audio()}", f"output={small_disk / name}")
    ended = small_run.run("transcribe", *words)
    assert ended.code == 1, ended.printed
    assert "could not be written: No space left on device; no part of it was left" in ended.last_line
    assert [path.name for path in small_disk.iterdir()] == ["filling"]
    (small_disk / "filling").unlink()
    assert small_run.run("transcribe", *words).code == 0
    assert (small_disk / name).is_file()


def test_transcripts_for_a_full_device_end_with_a_line(monkeypatch):
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(RunFailed, match="printed completely: No space left on device; output=FILE"):
            transcribe._print("a\tb\n")


def test_transcripts_for_a_reader_that_has_left_end_with_a_line(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", pipe)
        with pytest.raises(RunFailed, match="printed completely: Broken pipe; output=FILE"):
            transcribe._print("a\tb\n")


def test_transcripts_without_standard_output_end_with_a_line(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        with pytest.raises(RunFailed, match="standard output is closed; say output=FILE"):
            transcribe._print("a\tb\n")


def test_hypotheses_that_do_not_fit_are_named(small_run, small_disk):
    fill(small_disk)
    words = (f"run={small_run.run_dir}", f"output_dir={small_disk / 'out'}", "torch_threads=1")
    ended = small_run.run("evaluate", *words)
    assert ended.code != 0
    assert "No space left on device" in ended.last_line
    assert "test.hyp.txt" in ended.last_line
    assert list((small_disk / "out").iterdir()) == []


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


def test_a_run_with_damaged_checkpoints_alone_is_not_begun_again(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    for update in (3, 6):
        cut(update_file(run_dir / "checkpoints", update))
    (run_dir / "checkpoints" / "best.ckpt").write_bytes(b"")
    ended = small_run.run("train", f"resume={run_dir}")
    assert (ended.code, "every checkpoint of the run is damaged" in ended.printed) == (2, True)


def test_two_processes_do_not_train_in_one_folder(small_run, tmp_path):
    run_dir = small_run.interrupted(tmp_path / "run")
    before = contents(run_dir / "checkpoints")
    with lock_run_dir(run_dir):
        for words in ((f"resume={run_dir}",), (*TINY, f"run_dir={run_dir}")):
            ended = small_run.run("train", *words)
            assert ended.code == 2
            assert f"another process is training in {run_dir}; wait for its end, or end it" in ended.last_line
    assert contents(run_dir / "checkpoints") == before


class Clock(datetime.datetime):
    """Goes backward by an hour each time that it is read."""

    reads = 0

    @classmethod
    def now(cls, tz=None):
        cls.reads += 1
        return datetime.datetime(2026, 1, 2, 12) - datetime.timedelta(hours=cls.reads // 2)


def test_a_clock_that_goes_back_gives_every_run_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder.datetime, "datetime", Clock)
    folders = [create_run_folder(tmp_path) for _ in range(6)]
    assert len(set(folders)) == 6
    assert sum(folder.name.endswith("-2") for folder in folders) >= 2


def test_a_clock_that_goes_back_changes_no_duration(monkeypatch):
    watch = Stopwatch()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= watch.read()["seconds"] < 60


def test_files_from_the_future_do_not_change_which_checkpoint_is_the_newest(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    os.utime(update_file(run_dir / "checkpoints", 3), (2**32, 2**32))
    os.utime(update_file(run_dir / "checkpoints", 6), (0, 0))
    assert newest_good_checkpoint(run_dir).update == 6
    assert small_run.run("train", f"resume={run_dir}").code == 0


def test_wandb_that_cannot_be_reached_is_said_before_training(small_run, tmp_path):
    words = (f"run_dir={tmp_path / 'run'}", "logger=wandb", "logger.wandb.mode=online")
    environment = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online"}
    environment |= {"WANDB_INIT_TIMEOUT": "2"}
    tiny = [word for word in TINY if not word.startswith("logger=")]
    ended = small_run.run("train", *tiny, *words, environment=environment, timeout_s=100)
    assert ended.code == 2, ended.printed
    for part in ("wandb could not start a run", "logger.wandb.mode=offline", "logger=csv"):
        assert part in ended.last_line
    assert ended.seconds < 30


def test_a_variable_of_wandb_that_cannot_work_is_named(small_run, tmp_path):
    words = (f"run_dir={tmp_path / 'run'}", "logger=wandb", "logger.wandb.mode=offline")
    tiny = [word for word in TINY if not word.startswith("logger=")]
    ended = small_run.run("train", *tiny, *words, environment={"WANDB_RUN_ID": "../../evil"}, timeout_s=100)
    assert ended.code == 2, ended.printed
    assert "WANDB_RUN_ID" in ended.last_line
    assert "mode=offline" not in ended.last_line


def test_a_reader_that_has_left_does_not_end_a_command_without_a_word(tmp_path):
    write_corpus(tmp_path)
    command = [sys.executable, "-m", "asr.cli", "prepare", *spoken_corpus.TINY]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        said = process.stderr.read() if process.stderr is not None else ""
    assert process.returncode == 1
    assert said.startswith("asr-prepare: the program that read the output has ended"), said


def test_a_disk_that_locks_no_files_is_named(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("asr.safe_io.fcntl.flock", refuse)
    with pytest.raises(OSError, match="its disk locks no files") as raised, lock_run_dir(tmp_path):
        pass
    assert raised.value.filename == str(tmp_path / ".lock")


@pytest.mark.parametrize(("number", "passes"), [(errno.EPERM, True), (errno.ENOSPC, False)])
def test_without_links_no_run_is_called_the_latest(tmp_path, monkeypatch, number, passes):
    def refuse(path: Path, target: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with contextlib.nullcontext() if passes else pytest.raises(OSError, match="No space left"):
        point_latest(tmp_path / "run", tmp_path / "latest")
    assert not list(tmp_path.iterdir())
