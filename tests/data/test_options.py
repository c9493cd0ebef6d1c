"""Options that cannot be meant are refused by name, before any work."""

import os
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from asr.data.features import LogMel, Waveform
from asr.data.loading.augmentation import AddNoise, Reverberate
from asr.data.loading.loader import Workers
from asr.data.preparation.cuts import Limits
from tests.configs import choice


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (AddNoise, {}, "folder"),
        (AddNoise, {"folder": "x", "snr_db": (20.0, 0.0)}, "snr_db"),
        (Reverberate, {"rt60_s": (0.0, 1.0)}, "rt60_s"),
        (LogMel, {"precomputed": True, "on_device": True}, "on_device"),
        (Waveform, {"sampling_rate_hz": 11_025}, "frame_ms"),
        (Limits, {"min_duration_s": 2.0, "max_duration_s": 1.0}, "min_duration_s"),
        (Limits, {"min_duration_s": 0.1, "max_duration_s": float("nan")}, "max_duration_s"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(make, options, name):
    with pytest.raises(ValueError, match=name):
        make(**options)


@pytest.mark.parametrize(("gpus", "cores", "workers"), [(0, 64, 1), (1, 16, 8), (2, 16, 7), (8, 16, 1), (8, 4, 1)])
def test_workers_are_as_many_as_the_cores_of_a_gpu_allow(monkeypatch, gpus, cores, workers):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert (Workers().count, Workers(3).count) == (workers, 3)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, Path("~/.cache/werdict/digits")),
        ({"XDG_CACHE_HOME": "/var/x"}, Path("/var/x/werdict/digits")),
        ({"XDG_CACHE_HOME": "/var/x", "WERDICT_CACHE": "/big"}, Path("/big/digits")),
    ],
)
def test_data_lie_in_one_cache_whatever_the_current_folder(variables, folder, monkeypatch):
    for name in ("XDG_CACHE_HOME", "WERDICT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Path(OmegaConf.merge(choice("data", "default"), {"corpus": "digits"}).dir) == folder
