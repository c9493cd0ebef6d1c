"""What names a job of a sweep, how jobs share GPUs, are trained in planned looks, and are queued again by SLURM."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from asr.processes import TRY_AGAIN
from asr.run.command_line import name_sweep
from asr.sweeps.jobs import (
    LONGEST_LABEL,
    RECORDS,
    VARIABLE,
    JobRecord,
    check_sweep_name,
    claimed_gpus,
    job_name,
    queue_again,
    run_job,
    swept_keys,
)
from hydra_plugins import werdict_sweepers  # whose classes Hydra makes anew when it looks for plugins
from tests.configs import composed
from tests.werdict.run_folders import write_sweep
from werdict.errors import ConfigError
from werdict.files import flatten

CONFIG = {"seed": 1, "optimizer": {"lr": 0.1}, "data": {"dir": None}, "trainer": {"devices": 1}, "sweep": {"name": "a"}}


def named(words: Sequence[str], config: Mapping[str, Any], sweep_dir: Path = Path("none")) -> str:
    return job_name(words, config["sweep"].get("swept", ()), flatten(config), sweep_dir)


CONSTANT = [f"encoder.{name}_of_the_encoder=123456789" for name in ("width", "depth", "dropout", "heads")]


def test_a_name_begins_with_what_is_swept_and_shows_the_seed():
    swept = {**CONFIG, "sweep": {"swept": ["optimizer", "seed"]}}
    assert named([*CONSTANT, "seed=2", "optimizer=adamw"], swept).startswith("optimizer-adamw_seed-2-")
    # a sweeper that does not say what it sweeps, and values that are too long
    for config in (CONFIG, {**CONFIG, "sweep": {"swept": ["recipe", "seed"]}}):
        names = [named(["optimizer=eve", f"+recipe={'x' * 90}", f"seed={seed}", *CONSTANT], config) for seed in (1, 2)]
        assert all(f"_seed-{seed}-" in name for seed, name in enumerate(names, start=1)), names
        assert max(map(len, names)) <= LONGEST_LABEL + 9


def test_a_job_keeps_its_name_when_something_else_is_swept(tmp_path):
    words = ["optimizer=eve", "seed=1"]
    before = named(words, {**CONFIG, "sweep": {"swept": ["optimizer"]}}, tmp_path)
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / f"{before}.lock").touch()
    swept = {**CONFIG, "sweep": {"swept": ["seed"]}}
    assert named(words, swept, tmp_path) == before != named(words, swept)


def test_a_job_is_named_by_what_is_trained_not_by_where():
    name = named(["optimizer=eve", "optimizer.lr=0.01", "seed=1"], CONFIG)
    assert name.startswith("optimizer-eve_lr-0.01_seed-1-")
    moved = {**CONFIG, "data": {"dir": "/elsewhere"}, "sweep": {"name": "b"}}
    assert named(["optimizer=eve", "optimizer.lr=0.01", "seed=1", "data.dir=/elsewhere"], moved) == name


@pytest.mark.parametrize("changed", [{"optimizer": {"lr": 0.2}}, {"trainer": {"devices": 2}}, {"decode_test": False}])
def test_another_training_is_another_job(changed):
    assert named(["optimizer=eve"], {**CONFIG, **changed}) != named(["optimizer=eve"], CONFIG)


@pytest.mark.parametrize("key", ["weights", "torch_threads", "trainer.step_in_backward"])
def test_values_that_are_swept_are_different_jobs_whatever_they_change(key):
    swept = swept_keys([f"{key}=1,2", "seed=1,2"], {})
    names = {named([f"{key}={value}"], {**CONFIG, "sweep": {"swept": swept}, key: value}) for value in (1, 2)}
    assert len(names) == 2
    assert swept_keys(["seed=1,2"], {f"+{key}": "1,2"}) == swept, "the params of a sweeper are swept too"


def test_one_value_that_does_not_change_the_training_does_not_change_the_name():
    assert swept_keys(["torch_threads=1", "logger=csv", "optimizer=eve,adamw"], {}) == ["optimizer"]
    names = {named(["seed=1", f"torch_threads={n}"], {**CONFIG, "torch_threads": n}) for n in (1, 2)}
    assert len(names) == 1


def test_a_name_is_short_and_can_be_given_again_as_an_override():
    names = {named(["data.prepare.words=[a,b]", "+x/y@z={a:1}", f"recipe={'x' * 90}{end}"], CONFIG) for end in "ab"}
    assert len(names) == 2
    for name in names:
        assert not set(name) & set("=,/[]{}:@ ")
        assert len(name) < 100


def test_a_sweep_without_a_name_is_named_by_its_time():
    flag, *words, name = name_sweep(["seed=1,2", "-m", "optimizer=eve"])
    assert (flag, words, name.startswith("sweep.name=20")) == ("-m", ["seed=1,2", "optimizer=eve"], True)
    for named in (["-m", "sweep.name=x"], ["seed=1"]):
        assert name_sweep(named) == named
    check_sweep_name(2024)  # what Hydra reads of sweep.name=2024


@pytest.mark.parametrize("name", ["../elsewhere", "", ".hidden", None, "latest"])
def test_a_name_that_is_no_folder_of_a_sweep_is_refused(name):
    with pytest.raises(ConfigError, match=r"sweep\.name"):
        check_sweep_name(name)


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "3,GPU-a/b")
    monkeypatch.setattr("asr.sweeps.jobs.tempfile.gettempdir", lambda: str(tmp_path))


def test_jobs_at_the_same_time_get_gpus_of_their_own_and_wait_for_them(two_gpus):
    got: list[str] = []
    with claimed_gpus(1) as first, claimed_gpus(1) as second:
        waiting = threading.Thread(target=lambda: got.append(_visible(1)))
        waiting.start()
        assert (first[VARIABLE], second[VARIABLE]) == ("3", "GPU-a/b")
        waiting.join(0.2)
        assert not got
    waiting.join(5)
    assert got == ["3"]


def _visible(count: int) -> str:
    with claimed_gpus(count) as environment:
        return environment[VARIABLE]


def test_a_job_may_have_all_gpus_or_share_them_and_no_more_than_there_are(two_gpus):
    assert _visible(2) == "3,GPU-a/b"
    with claimed_gpus(None) as shared:
        assert shared[VARIABLE] == "3,GPU-a/b"
    with pytest.raises(ConfigError, match=r"sweep\.gpus_per_job=3"):
        _visible(3)


def test_jobs_may_share_gpus_and_go_where_the_fewest_are(two_gpus):
    got: list[str] = []

    def visible(**options) -> None:
        with claimed_gpus(**options) as environment:
            got.append(environment[VARIABLE])

    with contextlib.ExitStack() as held:
        found = [held.enter_context(claimed_gpus(None, jobs_per_gpu=2))[VARIABLE] for _ in range(4)]
        assert found == ["3", "GPU-a/b", "3", "GPU-a/b"]
        waiting = [
            threading.Thread(target=visible, kwargs=options)
            for options in ({"count": 1, "jobs_per_gpu": 2}, {"count": 1})
        ]
        for thread in waiting:
            thread.start()
        waiting[0].join(0.7)
        assert not got, "a fifth job, or one that wants a GPU alone, waits"
    for thread in waiting:
        thread.join(5)
    assert len(got) == 2
    with claimed_gpus(2, jobs_per_gpu=3) as both:
        assert both[VARIABLE] == "3,GPU-a/b"


def test_jobs_do_not_inherit_what_belongs_to_one_run(monkeypatch, tmp_path):
    of_one = (
        *("WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME", "WANDB_SWEEP_ID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
        *("SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    )
    shared = ("WANDB_PROJECT", "WANDB_TAGS", "SLURM_JOB_ID", "SLURM_TMPDIR", "PATH")
    for name in (*of_one, *shared):
        monkeypatch.setenv(name, "1")
    environments: list[Mapping[str, str]] = []
    monkeypatch.setattr(
        "subprocess.Popen", lambda *_, env, **__: environments.append(env) or Mock(**{"wait.return_value": 1})
    )
    run_job(replace(composed("seed=1"), sweep_dir=tmp_path))
    assert not environments[0].keys() & {*of_one}
    assert environments[0].keys() >= {*shared}


def test_jobs_do_not_share_an_id_that_is_given(tmp_path):
    with pytest.raises(ConfigError, match=r"logger\.wandb\.id"):
        run_job(replace(composed("+logger.wandb.id=fixed"), sweep_dir=tmp_path))


RATES = {"adamw": 0.3, "eve": 0.31, "cain": 0.9}


def sweeper(folder, looks) -> werdict_sweepers.LooksSweeper:
    made = werdict_sweepers.LooksSweeper(None, None)
    made.config = OmegaConf.create({"sweep": {"looks": looks}, "hydra": {"sweep": {"dir": str(folder)}}})
    made.launcher = made.hydra_context = object()
    return made


def test_after_a_look_only_what_is_open_is_trained_on(tmp_path, capsys):
    folder = tmp_path / "planned"
    made = sweeper(folder, [3, 5])
    made.looks = [3, 5]
    jobs = [[f"optimizer={name}", f"seed={seed}"] for name, seed in itertools.product(RATES, range(1, 6))]
    made.overrides, made.batch_index = [jobs], 0
    first = made.get_job_batch()
    assert {tuple(job) for job in first} == {
        (f"optimizer={name}", f"seed={seed}") for name in RATES for seed in (1, 2, 3)
    }
    write_sweep(folder, RATES, seeds=(1, 2, 3))
    for words in first:
        JobRecord(",".join(words), list(words), "finished").save(folder)
    assert not made.is_done()
    second = made.get_job_batch()
    assert {tuple(job) for job in second} == {
        (f"optimizer={name}", f"seed={seed}") for name in ("adamw", "eve") for seed in (4, 5)
    }
    assert made.is_done()
    assert "cain" not in capsys.readouterr().out


@pytest.mark.parametrize(("looks", "words"), [([5], ["seed=1,2"]), ([], []), ([5, 3], []), ([1, 5], [])], ids=str)
def test_looks_that_cannot_be_are_refused(tmp_path, looks, words):
    with pytest.raises(ConfigError, match=r"sweep\.looks"):
        sweeper(tmp_path, looks).sweep(words)


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
