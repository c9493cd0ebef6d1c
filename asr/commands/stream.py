"""``asr-stream``: text of speech while it is spoken."""

from __future__ import annotations

import sys

from asr.data.streams import open_stream, packets_of_file, packets_of_standard_input
from asr.inference.streaming import StreamListener
from asr.run.options import Stream
from asr.run.restore import restore, stream_of
from werdict.console import PlainConsole
from werdict.errors import ConfigError
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
    restored = restore(options, with_lm=False, torch_threads=options.torch_threads)
    try:
        stream = stream_of(restored, rate_hz, options.endpoint_s)
    except ValueError as error:
        raise ConfigError(f"run: {error}") from error
    if file is not None and file.channels > 1:
        console.print_line(f"{file.name} has {file.channels} channels; the first one is used")
    packets = packets_of_standard_input(size) if file is None else packets_of_file(file, size, options.at_own_pace)
    StreamListener(stream, rate_hz).listen(packets)
