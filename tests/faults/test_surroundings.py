"""Variables of the environment and folders that vanish: each answered with a line that names them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from asr.commands.startup import explain_import
from tests.commands.test_resume import wait_for_update
from tests.small_runs import TINY


def test_a_variable_that_a_library_refuses_at_its_import_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "asr.commands", "train"],
        cwd=tmp_path,
        env={**os.environ, "TORCH_LOGS": "bogus"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "TORCH_LOGS" in done.stderr) == (2, True), done.stderr


def test_a_folder_for_temporary_files_with_a_long_path_is_named(small_run, tmp_path):
    with_room = f"/tmp/{'d' * 71}"
    os.mkdir(with_room)
    words = (*TINY, "data.workers.num_workers=1", f"run_dir={tmp_path / 'run'}")
    try:
        ended = small_run.run("train", *words, environment={"TMPDIR": with_room})
    finally:
        shutil.rmtree(with_room)
    assert (ended.code, f"TMPDIR={with_room}: " in ended.last_line) == (2, True), ended.printed


def test_a_folder_that_wandb_cannot_write_to_is_named_before_any_work(small_run, tmp_path):
    words = (*TINY, "logger=wandb", f"data.dir={tmp_path / 'data'}", f"run_dir={tmp_path / 'run'}")
    ended = small_run.run("train", *words, environment={"HOME": "/proc/nobody"})
    assert ended.code == 2, ended.printed
    assert "asr-train: wandb cannot write to /proc/nobody" in ended.last_line
    assert not list(tmp_path.iterdir())


REMOVED = {
    "the run's folder": ("run", "{here}/run, the folder of this run, was removed or renamed while it was in use"),
    "the data": ("data", "were removed while the run read them; asr-train resume={here}/run data.dir={here}/data"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "said"), REMOVED.values(), ids=REMOVED)
def test_a_folder_that_is_removed_while_training_is_named(small_run, tmp_path, folder, said):
    shutil.copytree(small_run.data_dir, tmp_path / "data")
    words = (*TINY, "trainer.max_steps=600", "trainer.val_check_interval=40", "data.dir=data", "run_dir=run")
    process = small_run.programs.start("train", *words, cwd=tmp_path)
    wait_for_update(tmp_path / "run", 2, process)
    shutil.rmtree(tmp_path / folder, ignore_errors=True)
    assert process.wait(timeout=300) == 1, (tmp_path / "log.txt").read_text()
    line = [line for line in (tmp_path / "log.txt").read_text().splitlines() if line.startswith("asr-train: ")][-1]
    assert said.format(here=tmp_path) in line
    assert ("resume" in line) == (folder == "data")


def test_a_machine_without_room_for_temporary_files_is_told_from_one_without_libraries():
    told, code = explain_import(FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']"))
    assert (code, "install the packages" in told) == (1, False)
    assert told.endswith(
        "['/tmp', '/var/tmp']: none can be written; make room in one of them, or name another by TMPDIR"
    )


@pytest.mark.slow
def test_a_folder_in_which_nothing_was_recorded_yet_can_be_used(small_run, tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".lock", "config.yaml"):  # all that a signal at the wrong moment leaves
        (tmp_path / "run" / name).touch()
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}")
    assert ended.code == 0, ended.printed
    again = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}")
    said = f"exists and is not empty; continue the run in it with resume={tmp_path / 'run'}, name another folder, or"
    assert (again.code, said in again.last_line) == (2, True)


RANKS = {
    "of torchrun": ({"RANK": "1"}, "RANK=1: by these variables this is one of several processes"),
    "of SLURM": ({"SLURM_PROCID": "3"}, "SLURM_PROCID=3: by these variables this is one of several processes"),
}


@pytest.mark.parametrize(("variables", "said"), RANKS.values(), ids=RANKS)
def test_a_rank_that_is_left_in_the_environment_is_named(small_run, tmp_path, variables, said):
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}", environment=variables)
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert not (tmp_path / "run").exists()


def test_tasks_of_slurm_that_the_trainer_does_not_know_of_are_named(small_run, tmp_path):
    tasks = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "x", "SLURM_PROCID": "1"}
    ended = small_run.run("train", *TINY, "trainer=cpu", f"run_dir={tmp_path / 'run'}", environment=tasks)
    assert ended.code == 2, ended.printed
    assert "SLURM_NTASKS=2 SLURM_JOB_NAME=x SLURM_PROCID=1: by these variables SLURM has started" in ended.last_line
    assert "but srun was not given --ntasks-per-node=N, for which -n (--ntasks) does not do" in ended.last_line
    assert "unset them, or start one process per device with srun --ntasks-per-node=N" in ended.last_line


REFUSED = {
    "machines without a number": (
        "train",
        (*TINY, "trainer=slurm"),
        "trainer.num_nodes must be given, the number of machines",
    ),
}


@pytest.mark.parametrize(("command", "words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_have_no_effect_is_refused(small_run, tmp_path, command, words, said):
    place = f"run_dir={tmp_path / 'run'}" if command in ("train", "prepare") else f"run={small_run.run_dir}"
    ended = small_run.run(command, *words, *([] if "-m" in words else [place]))
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed


@pytest.mark.parametrize(("words", "said"), [([], "no command is given"), (["traiin"], "'traiin' is no command")])
def test_a_start_without_a_command_lists_them(words, said):
    done = subprocess.run([sys.executable, "-m", "asr.commands", *words], capture_output=True, text=True, check=False)
    allowed = "prepare, train, evaluate, transcribe, align, lm, stream, demo, convert, export, compare"
    assert (done.returncode, done.stderr) == (2, f"asr.commands: {said}; allowed: {allowed}\n")
