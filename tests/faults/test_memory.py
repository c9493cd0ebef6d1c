"""A process that gets no memory says so in one line, whatever the library calls it that found none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from asr.inference.decode import decode_all
from asr.training.checkpoints import newest_good_checkpoint
from tests.training.tiny import TOKENIZER, batch_of
from werdict.errors import RunFailed

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

    tokenizer, features, unit = TOKENIZER, None, "word"

    def evaluation_loader(self, cuts):
        return cuts


class Encoder(torch.nn.Linear):
    """A recognizer whose encodings are its features."""

    def forward(self, features, num_frames):
        return features, num_frames


@each_error
def test_decoding_that_runs_out_of_memory_names_the_seconds_and_what_sets_them(monkeypatch, error):
    monkeypatch.setattr("asr.inference.decode.decode", failing_with(error))
    batches = [replace(batch_of(100, 50), audio_s=1.5)]
    with pytest.raises(RunFailed, match=r"2 utterances, 1\.5 s of audio, the longest of 1\.0 s: .*batch_duration_s"):
        decode_all(Encoder(1, 1), None, Batches(), batches, "test")


@each_error
def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_damaged(small_run, monkeypatch, error):
    monkeypatch.setattr("torch.load", failing_with(error))
    with pytest.raises(RunFailed, match="out of memory when reading"):
        newest_good_checkpoint(small_run.run_dir)
