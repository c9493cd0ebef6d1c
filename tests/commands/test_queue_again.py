"""A SLURM job whose run was told to save and to end is queued again; SLURM's programs are played by scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asr.processes import TRY_AGAIN
from asr.sweeps.jobs import queue_again


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return what makes SLURM call the job by a state; ``asked`` then holds what scontrol was told."""

    def make(state: str, scontrol: str = "") -> Path:
        asked = tmp_path / "asked"
        for name, line in (("squeue", f"echo {state}"), ("scontrol", f'echo "$@" > {asked}; {scontrol}')):
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
        return asked

    return make


def test_a_job_that_is_still_running_is_queued_again_and_leaves_no_result(slurm):
    asked = slurm("RUNNING")
    with pytest.raises(SystemExit) as left:
        queue_again()
    assert left.value.code == TRY_AGAIN
    assert asked.read_text() == "requeue 7\n"


@pytest.mark.parametrize("state", ["CANCELLED", ""])
def test_a_job_that_slurm_ends_itself_is_left_to_it(slurm, state):
    asked = slurm(state)
    queue_again()
    assert not asked.exists()


def test_a_job_that_may_not_be_queued_again_says_what_to_do(slurm, capsys):
    slurm("RUNNING", "echo Requested operation is presently disabled >&2; exit 1")
    queue_again()
    assert "job 7 again: Requested operation is presently disabled" in capsys.readouterr().out


def test_what_submitit_has_not_submitted_is_left_alone(slurm, monkeypatch):
    asked = slurm("RUNNING")
    monkeypatch.delenv("SUBMITIT_EXECUTOR")
    queue_again()
    assert not asked.exists()
