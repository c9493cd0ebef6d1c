"""Memory that runs out in a run: which utterances it was, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from asr.data.loading.batch import Batch
from asr.error_text import first_line, is_out_of_memory
from asr.training.errors import TrainingFailed


class OutOfMemory(TrainingFailed):
    """Memory ran out; the message says what did not fit, and how to avoid it."""


@contextlib.contextmanager
def explaining_out_of_memory(explain: Callable[[], str]) -> Iterator[None]:
    """Turn an out-of-memory error into one that says what did not fit, unless its message is complete already.

    Args:
        explain: returns where memory ran out and what to do; called where it did.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, TrainingFailed) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"out of memory {explain()} ({first_line(error)})") from error


def when_training(batch: Batch | None) -> str:
    """Return what did not fit in a training step: ids, seconds of each, seconds with padding; and how to avoid it."""
    if batch is None:
        return "before the first micro-batch: lower data.workers.num_workers, or choose a smaller encoder."
    frames = batch.num_frames.tolist()
    # a batch knows its seconds in sum
    seconds = [batch.audio_s * num / max(1, sum(frames)) for num in frames]
    each = ", ".join(f"{cut} ({s:.1f} s)" for cut, s in zip(batch.ids, seconds, strict=True))
    padded = len(seconds) * max(seconds, default=0.0)
    return (
        f"at a micro-batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, {padded:.1f} s with padding: "
        f"{each}. {_advice(len(batch))}"
    )


def when_reading(name: str) -> str:
    """Return what to lower where the batches of a set do not fit while they are read."""
    return (
        f"when decoding {name}: lower batch_duration_s (data.batch.max_duration_s in a run of asr-train), or cut long "
        "audio into parts."
    )


def when_decoding(batch: Batch) -> str:
    """Return how many seconds a batch has that cannot be decoded, and what sets them."""
    longest = batch.audio_s * max(batch.num_frames.tolist()) / max(1, int(batch.num_frames.sum()))
    return (
        f"when decoding a batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, the longest of "
        f"{longest:.1f} s: lower batch_duration_s (data.batch.max_duration_s in a run of asr-train) below that sum, "
        "down to the longest; a longer utterance must be cut."
    )


def _advice(num_utterances: int) -> str:
    if num_utterances == 1:
        return "One utterance alone is too long: lower data.limits.max_duration_s, or choose a smaller encoder."
    return (
        "Lower data.batch.max_duration_s; where only batches of long utterances fail, set "
        "data.batch.quadratic_duration_s=20 so that they count more. asr-train calibrate=true measures what fits; "
        "trainer.accumulate_grad_batches keeps the size of an update."
    )
