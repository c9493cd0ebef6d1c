"""Variables of the environment and folders that vanish: each answered with a line that names them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from asr.cli.startup import explain_import
from tests.cli.test_resume import wait_for_update
from tests.small_runs import TINY

IMPORTS = {
    "a backend of matplotlib": ("compare", {"MPLBACKEND": "bogus"}, "Key backend: 'bogus' is not a valid value"),
    "logs of torch": ("train", {"TORCH_LOGS": "bogus"}, "correct or unset the variable TORCH_LOGS"),
    "several logs of torch": ("train", {"TORCH_LOGS": "+all,bogus"}, "correct or unset the variable TORCH_LOGS"),
}


@pytest.mark.parametrize(("command", "variable", "said"), IMPORTS.values(), ids=IMPORTS)
def test_a_variable_that_a_library_refuses_at_its_import_is_named(tmp_path, command, variable, said):
    done = subprocess.run(
        [sys.executable, "-m", "asr.cli", command],
        cwd=tmp_path,
        env={**os.environ, **variable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"asr-{command}: a library cannot be imported: "), done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_matplotlibrc_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe\n")
    command = [sys.executable, "-m", "asr.cli", "compare"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "remove the file matplotlibrc from the current folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_matplotlibrc_of_the_current_folder_does_not_run_tex(tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\ntext.latex.preamble: theirs\n")
    (tmp_path / "latex").write_text("#!/bin/sh\ntouch started\nexit 1\n")
    (tmp_path / "latex").chmod(0o755)
    (tmp_path / "metrics.csv").write_text("step,name,value\n1,train/loss,2.0\n2,train/loss,1.0\n")
    code = (
        "import matplotlib, pathlib, asr.evaluation.curves as c; assert matplotlib.rcParams['text.usetex']; "
        "print(c.plot_curves(pathlib.Path('metrics.csv'), pathlib.Path('drawn')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "loss.png" in done.stdout) == (0, True), done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("length", "code"), [(76, 2), (75, 0)])
def test_a_folder_for_temporary_files_with_a_long_path_is_named(small_run, tmp_path, length, code):
    with_room = f"/tmp/{'d' * (length - len('/tmp/'))}"
    os.mkdir(with_room)
    words = (*TINY, "data.workers.num_workers=1", f"run_dir={tmp_path / 'run'}")
    try:
        ended = small_run.run("train", *words, environment={"TMPDIR": with_room})
    finally:
        shutil.rmtree(with_room)
    assert ended.code == code, ended.printed
    assert (f"TMPDIR={with_room}: this path has 76 bytes" in ended.last_line) == (code == 2)


@pytest.mark.parametrize("variable", ["HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"])
def test_a_folder_that_wandb_cannot_write_to_is_named_before_any_work(small_run, tmp_path, variable):
    words = (*TINY, "logger=wandb", f"data.dir={tmp_path / 'data'}", f"run_dir={tmp_path / 'run'}")
    ended = small_run.run("train", *words, environment={variable: "/proc/nobody"})
    assert ended.code == 2, ended.printed
    assert "asr-train: wandb cannot write to /proc/nobody" in ended.last_line
    assert not list(tmp_path.iterdir())


REMOVED = {
    "the run's folder": ("run", "{here}/run, the folder of this run, was removed or renamed while it was in use"),
    "the data": ("data", "were removed while the run read them; asr-train resume={here}/run data.dir={here}/data"),
}


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


@pytest.mark.parametrize("budget", ["trainer.max_steps=2", "trainer.max_epochs=2"])
def test_an_epoch_without_a_whole_update_is_refused_before_the_run_begins(small_run, tmp_path, budget):
    words = ("trainer.accumulate_grad_batches=500", budget, f"run_dir={tmp_path / 'run'}")
    ended = small_run.run("train", *(word for word in TINY if not word.startswith("trainer.max_steps")), *words)
    assert "accumulate_grad_batches=500 in each of 1 processes are 500 micro-batches for an update" in ended.last_line
    assert (ended.code, (tmp_path / "run").exists()) == (2, False), ended.printed


def test_a_machine_without_room_for_temporary_files_is_told_from_one_without_libraries():
    told, code = explain_import(FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']"))
    assert (code, "install the packages" in told) == (1, False)
    assert told.endswith(
        "['/tmp', '/var/tmp']: none can be written; make room in one of them, or name another by TMPDIR"
    )


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
    "of nothing": ({"RANK": "x", "LOCAL_RANK": "0"}, "RANK=x: this variable must be a whole number; correct or unset"),
    "of a number of tasks": ({"SLURM_NTASKS": "abc"}, "SLURM_NTASKS=abc: this variable must be a whole number"),
}


@pytest.mark.parametrize(("variables", "said"), RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_rank_that_is_left_in_the_environment_is_named(small_run, tmp_path, variables, said, devices):
    words = (*TINY, f"trainer.devices={devices}", f"run_dir={tmp_path / 'run'}")
    ended = small_run.run("train", *words, environment=variables)
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert not (tmp_path / "run").exists()


def test_the_first_of_several_processes_does_not_train_alone(small_run, tmp_path):
    first = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}", environment=first)
    said = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2: by these variables this is one of several processes"
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed
    assert not (tmp_path / "run").exists()


def test_tasks_of_slurm_that_the_trainer_does_not_know_of_are_named(small_run, tmp_path):
    tasks = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "x", "SLURM_PROCID": "1"}
    ended = small_run.run("train", *TINY, "trainer=cpu", f"run_dir={tmp_path / 'run'}", environment=tasks)
    assert ended.code == 2, ended.printed
    assert "SLURM_NTASKS=2 SLURM_JOB_NAME=x SLURM_PROCID=1: by these variables SLURM has started" in ended.last_line
    assert "but srun was not given --ntasks-per-node=N, for which -n (--ntasks) does not do" in ended.last_line
    assert "unset them, or start one process per device with srun --ntasks-per-node=N" in ended.last_line


def test_a_rank_that_a_library_cannot_read_is_named(tmp_path):
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "x"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "asr.cli", "train", "recipe=digits/transformer_ctc"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "SLURM_PROCID" in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


REFUSED = {
    "a number without end": (
        "train",
        (*TINY, "trainer.num_sanity_val_steps=999999999999999999999"),
        "trainer.num_sanity_val_steps must be at most 9007199254740992, given 999999999999999999999",
    ),
    "a name of the run's own sets": (
        "evaluate",
        ("name=mine",),
        "name=mine names the set of a manifest; add manifest=",
    ),
    "machines without a number": (
        "train",
        (*TINY, "trainer=slurm"),
        "trainer.num_nodes must be given, the number of machines",
    ),
    "an update that never ends": (
        "train",
        (*TINY, f"trainer.accumulate_grad_batches={2**63 - 1}"),
        "trainer.accumulate_grad_batches must be a whole number of at least 1 and at most 10000",
    ),
}


@pytest.mark.parametrize(("command", "words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_have_no_effect_is_refused(small_run, tmp_path, command, words, said):
    place = f"run_dir={tmp_path / 'run'}" if command in ("train", "prepare") else f"run={small_run.run_dir}"
    ended = small_run.run(command, *words, *([] if "-m" in words else [place]))
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed


@pytest.mark.parametrize(("words", "said"), [([], "no command is given"), (["traiin"], "'traiin' is no command")])
def test_a_start_without_a_command_lists_them(words, said):
    done = subprocess.run([sys.executable, "-m", "asr.cli", *words], capture_output=True, text=True, check=False)
    allowed = "prepare, train, evaluate, transcribe, align, lm, stream, demo, convert, export, compare"
    assert (done.returncode, done.stderr) == (2, f"asr.cli: {said}; allowed: {allowed}\n")


def test_a_current_folder_that_is_gone_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    command = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec {sys.executable} -m asr.cli transcribe"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "asr-transcribe: the current folder no longer exists; change to one that does\n",
    )
