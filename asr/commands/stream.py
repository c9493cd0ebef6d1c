"""``asr-stream``: text of speech while it is spoken."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from asr.config.restore import restore
from asr.console import PlainConsole, printable
from asr.data.manifests.recordings import open_recording
from asr.data.quiet_decoder import quiet_decoder
from asr.errors import ConfigError, RunFailed
from asr.inference.streaming import Partial, StreamingRecognizer
from asr.safe_io import named_path

STANDARD_INPUT = "-"
BYTES = 2  # of a sample on standard input
# of restored parts that a stream does not use
UNUSED = {"batch_duration_s": 1.0, "num_workers": 0}

console = PlainConsole(stderr=True)


def run(options: DictConfig) -> None:
    """Print a line for each final text; on a terminal, the text so far, too. Ends with the times that it took."""
    live = str(options.audio) == STANDARD_INPUT
    if live and options.at_own_pace:
        raise ConfigError("at_own_pace is for files; standard input has its own pace")
    if live and (sys.stdin is None or sys.stdin.isatty()):
        what = "is closed" if sys.stdin is None else "is this terminal"
        raise ConfigError(
            f"audio=-: standard input {what}; give samples to it: arecord -f S16_LE -t raw | asr-stream …"
        )
    file = None if live else _open(named_path(options.audio))
    rate_hz = options.sampling_rate_hz if file is None else file.samplerate
    size = max(1, round(options.packet_s * rate_hz))
    restored = restore(OmegaConf.create({**{str(key): options[key] for key in options}, **UNUSED}), with_lm=False)
    try:
        module = restored.data_module
        parts = restored.recognizer, module.tokenizer, module.features, restored.decoder
        stream = StreamingRecognizer(*parts, rate_hz, options.endpoint_s)
    except ValueError as error:
        raise ConfigError(f"run: {error}") from error
    if file is not None and file.channels > 1:
        console.print_line(f"{file.name} has {file.channels} channels; the first one is used")
    packets = _from_standard_input(size) if file is None else _from_file(file, size, options.at_own_pace)
    _Listener(stream, rate_hz).listen(packets)


def _open(path: Path) -> soundfile.SoundFile:
    if not path.is_file():
        raise ConfigError(f"audio: {str(path)!r} is no file; give one, or - for samples on standard input")
    try:
        file = soundfile.SoundFile(path)
    except soundfile.LibsndfileError as error:
        raise ConfigError(f"audio: {path} cannot be read: {error.error_string}") from None
    _, problem = open_recording(path, str(path))
    # half a file would be taken for the whole; an empty one ends well
    if problem and file.frames:
        raise ConfigError(f"audio: {problem}")
    return file


def _from_file(file: soundfile.SoundFile, size: int, at_own_pace: bool) -> Iterator[NDArray[np.float32]]:
    """Yield samples of the first channel."""
    begin, heard_s = time.monotonic(), 0.0
    try:
        blocks = file.blocks(size, dtype="float32", always_2d=True)
        while True:
            with quiet_decoder(file.name):
                block = next(blocks, None)
            if block is None:
                return
            heard_s += len(block) / file.samplerate
            if at_own_pace:
                time.sleep(max(0.0, begin + heard_s - time.monotonic()))
            yield block[:, 0]
    except soundfile.LibsndfileError as error:
        raise RunFailed(
            f"audio: {file.name} could not be read after {heard_s:.1f} s: {error.error_string}; its text ends there"
        ) from None


def _from_standard_input(size: int) -> Iterator[NDArray[np.float32]]:
    """Yield samples as they come; half a sample at the end is left out."""
    kept = data = os.read(sys.stdin.fileno(), size * BYTES)
    while data:
        whole = len(kept) // BYTES * BYTES
        yield np.frombuffer(kept[:whole], dtype="<i2").astype(np.float32) * np.float32(2**-15)
        data = os.read(sys.stdin.fileno(), size * BYTES)
        kept = kept[whole:] + data


class _Listener:
    """Shows texts, and measures how long they take.

    Args:
        stream: the recognizer.
        rate_hz: of the samples.
    """

    def __init__(self, stream: StreamingRecognizer, rate_hz: int) -> None:
        self.stream, self.rate_hz = stream, rate_hz
        self.shown = ""  # of a line that has not ended
        self.seconds: list[float] = []  # of work for each packet that completed a chunk
        self.heard_s = 0.0
        self.first_word_s: float | None = None

    def listen(self, packets: Iterator[NDArray[np.float32]]) -> None:
        """Recognize all packets, and end with the text of the last and the times."""
        try:
            for samples in packets:
                self._hear(samples)
        finally:
            # also after a Ctrl-C, which ends most live streams
            begin = time.perf_counter()
            self._show(self.stream.finish())
            self._report(time.perf_counter() - begin)

    def _hear(self, samples: NDArray[np.float32]) -> None:
        before, begin = self.stream.state, time.perf_counter()
        try:
            partial = self.stream.accept(samples)
        except ValueError as error:
            raise ConfigError(f"audio: {error}; its text ends there") from None
        if self.stream.state is not before:
            self.seconds.append(time.perf_counter() - begin)
        self.heard_s += len(samples) / self.rate_hz
        self._show(partial)

    def _show(self, partial: Partial) -> None:
        if partial.text and self.first_word_s is None:
            self.first_word_s = self.heard_s
        on_terminal = sys.stdout.isatty()
        if on_terminal and partial.text != self.shown:
            sys.stdout.write(f"\r\x1b[K{printable(partial.text)}")
        self.shown = partial.text
        if partial.is_final and partial.text:
            sys.stdout.write("\n" if on_terminal else f"{partial.text}\n")
            self.shown = ""
        sys.stdout.flush()

    def _report(self, final_s: float) -> None:
        times = np.array(self.seconds or [0.0]) * 1000
        middle, most = np.quantile(times, [0.5, 0.95])
        first = "no word" if self.first_word_s is None else f"first word after {self.first_word_s:.2f} s of audio"
        console.print(
            f"{self.heard_s:.1f} s of audio in chunks of {self.stream.chunk_s:.2f} s, each {middle:.0f} ms of work "
            f"(95 %: {most:.0f}, most: {times.max():.0f}); {first}; last text {1000 * final_s:.0f} ms after the end",
            soft_wrap=True,
        )
