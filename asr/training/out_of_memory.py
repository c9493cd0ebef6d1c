"""Memory that runs out in a training: which utterances it was, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch

from asr.data.batch import Batch
from asr.training.errors import TrainingFailed

# what torch says where it has no class of its own for it, and Python where a thread finds no room for its stack
SIGNS = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "can't start new thread")


class HoldsBatch(Protocol):
    """Has the micro-batch that it works on."""

    in_hand: Batch | None


class OutOfMemory(TrainingFailed):
    """A micro-batch did not fit into memory; the message names its utterances and says how to avoid it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out in this process; a loader's worker speaks for itself."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS) and "DataLoader worker" not in text


@contextlib.contextmanager
def explaining_out_of_memory(holder: HoldsBatch) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the utterances.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or holder.in_hand is None:
            raise
        raise OutOfMemory(explained(holder.in_hand, error)) from error


@contextlib.contextmanager
def explaining_reading(name: str) -> Iterator[None]:
    """Turn an out-of-memory error while the batches of a set are read into one that says what to lower.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory when decoding {name}: {_cause(error)}; lower batch_duration_s "
            "(data.batch.max_duration_s in a training), or cut long audio into parts"
        ) from error


@contextlib.contextmanager
def explaining_decoding(batch: Batch) -> Iterator[None]:
    """Turn an out-of-memory error while a batch is decoded into one that names its seconds and what sets them.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        longest = batch.audio_s * max(batch.num_frames.tolist()) / max(1, int(batch.num_frames.sum()))
        raise OutOfMemory(
            f"out of memory when decoding a batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, the "
            f"longest of {longest:.1f} s: lower batch_duration_s (in a training data.batch.max_duration_s) below "
            f"that sum, down to the longest; a longer utterance must be cut. ({_cause(error)})"
        ) from error


def _cause(error: BaseException) -> str:
    return f"What torch says: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}"


def explained(batch: Batch, error: BaseException) -> str:
    """Return what did not fit: ids, seconds of each, seconds with padding; and how to avoid it."""
    frames = batch.num_frames.tolist()
    # a batch knows its seconds in sum
    seconds = [batch.audio_s * num / max(1, sum(frames)) for num in frames]
    each = ", ".join(f"{cut} ({s:.1f} s)" for cut, s in zip(batch.ids, seconds, strict=True))
    padded = len(seconds) * max(seconds, default=0.0)
    return (
        f"out of memory at a micro-batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, {padded:.1f} s "
        f"with padding: {each}. {_advice(len(batch))} ({_cause(error)})"
    )


def _advice(num_utterances: int) -> str:
    if num_utterances == 1:
        return "One utterance alone is too long: lower data.limits.max_duration_s, or choose a smaller encoder."
    return (
        "Lower data.batch.max_duration_s; where only batches of long utterances fail, set "
        "data.batch.quadratic_duration_s=20 so that they count more. asr-train calibrate=true measures what fits; "
        "trainer.accumulate_grad_batches keeps the size of an update."
    )
