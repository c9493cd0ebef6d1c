"""``asr-demo``: a page in the browser to try a recognizer with, by Gradio."""

from __future__ import annotations

import importlib.util
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asr.inference.streaming import StreamingRecognizer
from asr.inference.transcripts import FORMATS, Transcriber
from asr.run.options import Demo
from asr.run.restore import restore, stream_of, transcriber_of
from werdict.console import PlainConsole
from werdict.error_files import word_row
from werdict.errors import ConfigError

HOST = "127.0.0.1"
DOWNLOADS = ("txt", "srt", "json")
COLUMNS = ["word", "start", "end", "confidence"]
SECONDS_KEPT = 600  # of what pages have sent

Said = tuple[StreamingRecognizer, list[str]]
"""The recognizer of live speech, and the lines that are final."""

console = PlainConsole()


def run(options: Demo) -> None:
    """Serve the page until Ctrl-C; the first line that is printed is its address."""
    if importlib.util.find_spec("gradio") is None:
        raise ConfigError("asr-demo needs Gradio: pip install 'werdict[demo]'")
    restored = restore(options, options.decoder, options.torch_threads)
    page, theme = demo_page(
        restored.checkpoint.title,
        transcriber_of(restored, options.max_segment_s),
        lambda rate_hz: stream_of(restored, rate_hz, options.endpoint_s),
        restored.loaders.features.sampling_rate_hz,
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


def demo_page(
    title: str, transcriber: Transcriber, start: Callable[[int], StreamingRecognizer], rate_hz: int
) -> tuple[Any, Any]:
    """Return the page, and its theme, whose fonts are those of the browser: nothing is loaded from elsewhere.

    Args:
        title: of what was trained.
        transcriber: of recordings.
        start: makes a recognizer of live speech for a rate in Hz; its error is shown.
        rate_hz: one that it can have.
    """
    import gradio as gr

    try:
        start(rate_hz)
        why_not_live = ""
    except ValueError as error:
        why_not_live = str(error)
    # one thread at a time uses the recognizer
    alone: dict[str, Any] = {"concurrency_id": "recognizer", "concurrency_limit": 1}
    with gr.Blocks(title="Speech to text", analytics_enabled=False, delete_cache=(60, SECONDS_KEPT)) as page:
        gr.Markdown(f"# Speech to text\n{title}")
        with gr.Tab("A recording"):
            audio = gr.Audio(sources=["microphone", "upload"], type="filepath", label="Record, or choose a file")
            outputs = [
                gr.Textbox(label="Text"),
                gr.Dataframe(headers=COLUMNS, label="Words, in seconds"),
                gr.File(label="Save the transcript", file_count="multiple"),
            ]
            audio.change(partial(transcribe, transcriber), audio, outputs, api_name="transcribe", **alone)
        with gr.Tab("Live"):
            if why_not_live:
                gr.Markdown(why_not_live)
            else:
                live, state = gr.Audio(sources=["microphone"], streaming=True, label="Speak"), gr.State()
                text = gr.Textbox(label="Text")
                live.stream(partial(listen, start), [live, state], [text, state], api_name="live", **alone)
                live.stop_recording(finish, state, [text, state], api_name="finish", **alone)
    return page, gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])


def transcribe(transcriber: Transcriber, path: str | None) -> tuple[str, list[list[Any]], list[str] | None]:
    """Return the text of a recording, its words, and files to download."""
    import gradio as gr

    if path is None:
        return "", [], None
    transcripts, unreadable = transcriber([Path(path)], "a recording")
    if unreadable:
        raise gr.Error(unreadable[0][1])
    transcript = replace(transcripts[0], path=Path(Path(path).name))
    words = [word_row(word) for segment in transcript.segments for word in segment.words]
    folder = Path(tempfile.mkdtemp(dir=Path(path).parent))  # which Gradio empties
    files = [folder / f"transcript.{ending}" for ending in DOWNLOADS]
    for file, ending in zip(files, DOWNLOADS, strict=True):
        file.write_text(FORMATS[ending](transcript), encoding="utf-8")
    return transcript.text, [[word[column] for column in COLUMNS] for word in words], [str(file) for file in files]


def listen(
    start: Callable[[int], StreamingRecognizer], packet: tuple[int, np.ndarray] | None, state: Said | None
) -> tuple[str, Said | None]:
    """Take a packet of live speech.

    Args:
        start: makes a recognizer for a rate in Hz.
        packet: the rate, and (N,) or (N, channels) int16 samples.
        state: what continues the speech; None at its beginning.

    Returns:
        All text since the beginning, and what continues it.
    """
    if packet is None:
        return "", state
    rate_hz, samples = packet
    recognizer, lines = state or (start(rate_hz), [])
    samples = samples if samples.ndim == 1 else samples[:, 0]
    partial = recognizer.accept(samples.astype(np.float32) / np.float32(2**15))
    text = [*lines, partial.text] if partial.text else lines
    return "\n".join(text), (recognizer, text if partial.is_final else lines)


def finish(state: Said | None) -> tuple[str, None]:
    """Return the whole text of live speech that has ended."""
    if state is None:
        return "", None
    recognizer, lines = state
    return "\n".join(filter(None, [*lines, recognizer.finish().text])), None
