"""A process that gets no memory says so in one line, whatever the library calls it that found none."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from asr.errors import RunFailed
from asr.inference.decode import decode_all
from asr.training.checkpoints.loading import newest_good_checkpoint
from tests.small_runs import TINY
from tests.training.tiny import TOKENIZER, batch_of

MB = 2**20


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_mb"), [("RLIMIT_AS", 12), ("RLIMIT_DATA", 16)])  # of room
def test_a_command_that_gets_little_memory_ends_with_a_line(small_run, tmp_path, name, num_mb):
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}", limits={name: num_mb * MB})
    # how much the libraries take differs between machines; in some of them no memory is a crash of theirs
    codes = (0, -signal.SIGSEGV)
    assert ended.code in codes or (ended.code, ended.last_line[:11]) == (1, "asr-train: "), ended.printed
    assert "Traceback" not in ended.printed


@pytest.mark.slow
def test_a_command_that_cannot_be_loaded_says_that_memory_ran_out(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "asr.commands", "train"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 * MB,) * 2),
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.splitlines()[-2].startswith("asr-train: out of memory while starting: "), ended.stderr
    assert "Traceback" not in ended.stderr


NO_MEMORY = {
    "torch on a CPU": RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 9"),
    "C++": RuntimeError("std::bad_alloc"),
    "Python": MemoryError(),
}
each_error = pytest.mark.parametrize("error", NO_MEMORY.values(), ids=NO_MEMORY)


def failing_with(error):
    def fail(*_, **__):
        raise error

    return fail


class Batches:
    """A data module whose cuts are batches already."""

    tokenizer, features = TOKENIZER, None

    def evaluation_loader(self, cuts):
        return cuts


@each_error
def test_decoding_that_runs_out_of_memory_names_the_seconds_and_what_sets_them(monkeypatch, error):
    monkeypatch.setattr("asr.inference.decode.decode", failing_with(error))
    model = torch.nn.Linear(1, 1)
    with pytest.raises(RunFailed) as failed:
        decode_all(model, None, Batches(), [replace(batch_of(100, 50), audio_s=1.5)], "test")
    said = "out of memory when decoding a batch of 2 utterances, 1.5 s of audio, the longest of 1.0 s: lower "
    assert str(failed.value).startswith(f"{said}batch_duration_s")
    assert "\n" not in str(failed.value)


@each_error
def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_damaged(small_run, monkeypatch, error):
    monkeypatch.setattr("torch.load", failing_with(error))
    with pytest.raises(RunFailed, match=r"^out of memory when reading "):
        newest_good_checkpoint(small_run.run_dir)
