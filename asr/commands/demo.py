"""``asr-demo``: a page in the browser to try a recognizer with, by Gradio."""

from __future__ import annotations

import importlib.util
import signal

from asr.inference.demo_page import demo_page
from asr.run.options import Demo
from asr.run.restore import restore, stream_of, transcriber_of
from werdict.console import PlainConsole
from werdict.errors import ConfigError

HOST = "127.0.0.1"

console = PlainConsole()


def run(options: Demo) -> None:
    """Serve the page until Ctrl-C; the first line that is printed is its address."""
    if importlib.util.find_spec("gradio") is None:
        raise ConfigError("asr-demo needs Gradio: pip install gradio, or python3 scripts/setup.py demo")
    restored = restore(options, decoder=options.decoder, torch_threads=options.torch_threads)
    page, theme = demo_page(
        restored.checkpoint.title,
        transcriber_of(restored, options.max_segment_s),
        lambda rate_hz: stream_of(restored, rate_hz, options.endpoint_s),
        restored.data_module.features.sampling_rate_hz,
    )
    try:
        _, address, _ = page.launch(
            server_name=HOST,
            server_port=options.port,
            max_file_size=round(options.max_upload_mb * 1e6),
            theme=theme,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:  # of a port in use
        raise ConfigError(f"port={options.port}: {error}") from error
    checkpoint = restored.checkpoint
    weights = "" if checkpoint.described == "raw" else f", {checkpoint.described}"
    console.print_line(f"{address} shows {checkpoint.title}{weights}; Ctrl-C ends it")
    for note in restored.notes:
        console.print_line(note)
    signal.pause()
