"""Decodes batches: encodings → tokens → text."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from rich.progress import Progress

from asr.console import PlainConsole, bar_title
from asr.data.loading.batch import Batch
from asr.decoding.hypothesis import Decoder
from asr.errors import explaining_lost_workers, explaining_out_of_memory
from asr.evaluation.wer import Utterance
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import Tokenizer

LIMIT = "batch_duration_s (data.batch.max_duration_s in a run of asr-train)"


@dataclass
class Decoded:
    """The hypotheses of a set.

    Attributes:
        utterances: in the order of the loader.
        unread: (id, reason) of each utterance that could not be read.
        audio_s: seconds of audio decoded.
        seconds: wall-clock time for reading, features, model and search.
    """

    utterances: list[Utterance] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    audio_s: float = 0.0
    seconds: float = 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work per second of audio; None without audio."""
        return self.seconds / self.audio_s if self.audio_s else None


def default_device() -> torch.device:
    """Return the GPU if torch can use one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def decode(recognizer: Recognizer, decoder: Decoder, tokenizer: Tokenizer, batch: Batch) -> list[Utterance]:
    """Return reference and hypothesis of every utterance of a batch."""
    with torch.inference_mode():
        found = decoder(recognizer.head, *recognizer(batch.features, batch.num_frames))
    return [
        Utterance(id=cut, reference=text, hypothesis=tokenizer.decode(best.tokens), speaker=speaker)
        for cut, text, (best, *_), speaker in zip(batch.ids, batch.texts, found, batch.speakers, strict=True)
    ]


def decode_all(
    recognizer: Recognizer,
    decoder: Decoder,
    tokenizer: Tokenizer,
    batches: Iterable[Batch],
    name: str,
    num_utterances: int | None = None,
) -> Decoded:
    """Decode every batch on the device of the recognizer, with a progress bar.

    Args:
        recognizer: features → encodings.
        decoder: encodings → tokens.
        tokenizer: tokens → text.
        batches: of the set.
        name: of the set, for the bar and for errors.
        num_utterances: of the set, if known.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """
    device = next(recognizer.parameters()).device
    recognizer.eval()
    decoded, start = Decoded(), time.monotonic()
    # on standard error, because standard output is for results
    bar = Progress(console=PlainConsole(stderr=True), transient=True)
    advice = f"when decoding {name}: lower {LIMIT}, or cut long audio into parts."
    with explaining_out_of_memory(lambda: advice), explaining_lost_workers(), bar as progress:
        task = progress.add_task(bar_title(f"decoding {name}"), total=num_utterances)
        for batch in batches:
            decoded.unread.extend(batch.skipped)
            if len(batch):
                with explaining_out_of_memory(partial(_when_decoding, batch)):
                    decoded.utterances.extend(decode(recognizer, decoder, tokenizer, batch.to(device)))
            decoded.audio_s += batch.audio_s
            progress.advance(task, len(batch) + len(batch.skipped))
    decoded.seconds = time.monotonic() - start
    return decoded


def _when_decoding(batch: Batch) -> str:
    longest = batch.audio_s * max(batch.num_frames.tolist()) / max(1, int(batch.num_frames.sum()))
    return (
        f"when decoding a batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, the longest of "
        f"{longest:.1f} s: lower {LIMIT} below that sum, down to the longest; a longer utterance must be cut."
    )
