"""``asr-stream``: text of speech while it is spoken."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asr.data.manifests.audio_files import open_stream, packets_of_file, packets_of_standard_input
from asr.inference.streaming import Partial, StreamingRecognizer
from asr.run.options import Stream
from asr.run.restore import restore, stream_of
from werdict.console import PlainConsole, printable
from werdict.errors import ConfigError, naming_place
from werdict.files import named_path

STANDARD_INPUT = "-"

console = PlainConsole(stderr=True)


def run(options: Stream) -> None:
    """Print a line for each final text; on a terminal, the text so far, too. Ends with the times that it took."""
    live = str(options.audio) == STANDARD_INPUT
    if live and options.at_own_pace:
        raise ConfigError("at_own_pace is for files; standard input has its own pace")
    if live and (sys.stdin is None or sys.stdin.isatty()):
        problem = "is closed" if sys.stdin is None else "is this terminal"
        raise ConfigError(
            f"audio=-: standard input {problem}; give samples to it: arecord -f S16_LE -t raw | asr-stream …"
        )
    file = None if live else open_stream(named_path(options.audio))
    rate_hz = options.sampling_rate_hz if file is None else file.samplerate
    size = max(1, round(options.packet_s * rate_hz))
    restored = restore(options, None, options.torch_threads, with_lm=False)
    with naming_place("run"):
        stream = stream_of(restored, rate_hz, options.endpoint_s)
    if file is not None and file.channels > 1:
        console.print_line(f"{file.name} has {file.channels} channels; the first one is used")
    packets = packets_of_standard_input(size) if file is None else packets_of_file(file, size, options.at_own_pace)
    StreamListener(stream, rate_hz).listen(packets)


class StreamListener:
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
        """Recognize all packets, samples (N,) each, and end with the text of the last and the times."""
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
