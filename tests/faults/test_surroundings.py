"""Variables of the environment and folders that vanish: each answered with a line that names them."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from asr.commands.startup import explain_import
from tests.commands.test_resume import wait_for_update
from tests.small_runs import TINY
from werdict.files import named_path


def test_a_folder_for_temporary_files_with_a_long_path_is_named(small_run, tmp_path):
    with_room = f"/tmp/{'d' * 71}"
    os.mkdir(with_room)
    words = (*TINY, "data.workers.num_workers=1", f"run_dir={tmp_path / 'run'}")
    try:
        ended = small_run.run("train", *words, environment={"TMPDIR": with_room}, code=2)
    finally:
        shutil.rmtree(with_room)
    assert f"TMPDIR={with_room}: " in ended.last_line, ended.printed


def test_a_user_without_a_home_folder_is_told_to_name_one(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(RuntimeError) as caught:  # as lhotse does when it is imported
        Path.home()
    assert "HOME" in explain_import(caught.value)[0]
    with pytest.raises(ValueError, match="HOME"):
        named_path("~/x")


def test_a_run_folder_that_is_removed_while_training_is_named(small_run, tmp_path):
    words = (*TINY, "trainer.max_steps=600", "trainer.val_check_interval=40", "run_dir=run")
    process = small_run.programs.start("train", *words, f"data.dir={small_run.data_dir}", cwd=tmp_path)
    wait_for_update(tmp_path / "run", 2, process)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert process.wait(timeout=300) == 1, (tmp_path / "log.txt").read_text()
    line = [line for line in (tmp_path / "log.txt").read_text().splitlines() if line.startswith("asr-train: ")][-1]
    assert f"{tmp_path}/run, the folder of this run, was removed" in line


# variables, words, what the last lines say: each is found before any work
LEFT = {
    "a home for wandb": ({"HOME": "/proc/nobody"}, ("logger=wandb",), "wandb cannot write to /proc/nobody"),
    "a rank": ({"SLURM_PROCID": "3"}, (), "SLURM_PROCID=3: these variables say that this is one of several processes"),
    "tasks of SLURM": (
        {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "x", "SLURM_PROCID": "1"},
        ("trainer=cpu",),
        "start one process per device with srun --ntasks-per-node=N",
    ),
    "machines": ({}, ("trainer=slurm",), "trainer.num_nodes"),
}


@pytest.mark.parametrize(("variables", "words", "said"), LEFT.values(), ids=LEFT)
def test_what_the_environment_lacks_or_holds_too_much_is_named_before_any_work(
    small_run, tmp_path, variables, words, said
):
    places = (f"data.dir={tmp_path / 'data'}", f"run_dir={tmp_path / 'run'}")
    ended = small_run.run("train", *TINY, *words, *places, environment=variables, code=2)
    assert said in ended.printed
    assert not list(tmp_path.iterdir())
