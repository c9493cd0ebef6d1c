"""The checks of the machine: each finds its fault, and says what to do."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from asr import commit, doctor

Usage = namedtuple("Usage", "free")


def problems(check) -> list[str]:
    return [f"{found.what} {found.advice}" for found in check() if found.status == "problem"]


def test_a_machine_with_little_shared_memory_is_told_how_to_get_more(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64e6))
    (problem,) = problems(doctor.check_memory)
    assert "0.1 GB" in problem
    assert "--shm-size" in problem


@pytest.mark.parametrize(("built_for", "named"), [(None, "CPUs"), ("12.8", "12.8")])
def test_a_driver_that_torch_cannot_use_is_a_problem(monkeypatch, built_for, named):
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", Path("/"))
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (problem,) = problems(doctor.check_torch)
    assert named in problem


def test_a_gpu_that_torch_has_no_kernels_for_is_a_problem(monkeypatch):
    values = {"is_available": True, "device_count": 1, "get_device_name": "X", "get_device_capability": (7, 0)}
    for name, value in {**values, "mem_get_info": (8e9, 10e9), "get_arch_list": ["sm_80", "sm_90"]}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    (problem,) = problems(doctor.check_torch)
    assert "7.0" in problem
    assert any("bfloat16" in found.what and "16-mixed" in found.advice for found in doctor.check_torch())


def test_a_cache_that_cannot_be_written_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("WERDICT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    (problem,) = problems(doctor.check_folders)
    assert str(tmp_path) in problem


def test_all_is_printed_and_the_exit_code_says_whether_there_is_a_problem(monkeypatch, capsys):
    def broken():
        raise ImportError("libsndfile.so")
        yield

    fine = [doctor.Finding("note", "one", "do this")]
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter(fine),))
    assert doctor.main() == 0
    assert "note    one → do this" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "CHECKS", (broken, lambda: iter(fine)))
    assert doctor.main() == 1
    printed = capsys.readouterr().out
    assert "libsndfile.so" in printed
    assert "do this" in printed


def test_the_commit_is_that_of_the_wheel_and_never_that_of_a_repository_around_it(monkeypatch, tmp_path):
    (tmp_path / "asr").mkdir()
    monkeypatch.setattr(commit, "COMMIT", tmp_path / "asr" / "COMMIT")
    assert commit.source_commit() is None
    commit.COMMIT.write_text("0123456789ab\n")
    assert commit.source_commit() == "0123456789ab"
    assert "0123456789ab" in doctor.version_lines()[0]
