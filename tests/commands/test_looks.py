"""A sweep whose seeds are trained in planned looks."""

import itertools

import pytest
from omegaconf import OmegaConf

from asr.sweeps.jobs import JobRecord
from hydra_plugins import werdict_sweepers  # whose classes Hydra makes anew when it looks for plugins
from tests.werdict.run_folders import write_sweep
from werdict.errors import ConfigError

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
