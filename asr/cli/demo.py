"""``asr-demo``: a page in the browser to try a recognizer with."""

from __future__ import annotations

import errno
from typing import Any

from omegaconf import DictConfig, OmegaConf

from asr.cli.app import run_app
from asr.cli.builders.restore import Restored, restore
from asr.cli.builders.transcriber import transcriber_of
from asr.cli.errors import ConfigError
from asr.console import PlainConsole
from asr.demo.live import LiveStreams
from asr.demo.recordings import Recordings
from asr.demo.server import HOST, Demo, DemoServer
from asr.inference.streaming import StreamingRecognizer

MOST_MB = 4000  # in memory
# how the parts of a recording are read: this process reads them, as many as two minutes at a time
READING = {"batch_duration_s": 120.0, "num_workers": 0}

console = PlainConsole()


def main() -> None:
    """Run ``asr-demo``."""
    run_app("demo", run)


def run(options: DictConfig) -> None:
    """Serve the page until Ctrl-C; the first line that is printed is its address."""
    if options.max_upload_mb > MOST_MB:
        raise ConfigError(f"max_upload_mb must be at most {MOST_MB}, given {options.max_upload_mb}")
    # before the recognizer is read, so that a wrong port is told at once
    with _server(options.port) as server:
        restored = restore(OmegaConf.create({**{str(key): options[key] for key in options}, **READING}))
        demo = _demo(restored, options)
        address = f"http://{HOST}:{server.server_address[1]}/"
        console.print_line(f"{address} shows {demo.about['model']}; Ctrl-C ends it")
        for note in restored.notes:
            console.print_line(note)
        server.serve(demo)


def _server(port: int) -> DemoServer:
    try:
        return DemoServer(port)
    except OSError as error:
        reasons = {errno.EADDRINUSE: "is in use", errno.EACCES: "may only be used by the system"}
        reason = reasons.get(error.errno or 0, f"cannot be used: {error.strerror}")
        raise ConfigError(f"port={port} {reason}; give another, or port=0 for any that is free") from error


def _demo(restored: Restored, options: DictConfig) -> Demo:
    transcriber = transcriber_of(restored, options.max_segment_s)
    live, why_not = _live(restored, options)
    max_upload_bytes = round(options.max_upload_mb * 1e6)
    about: dict[str, Any] = {
        "model": _title(restored),
        "encoder": type(restored.recognizer.encoder).__name__.removesuffix("Encoder"),
        "num_parameters": sum(parameter.numel() for parameter in restored.recognizer.parameters()),
        "is_live": live is not None,
        "why_not_live": why_not,
        "max_upload_bytes": max_upload_bytes,
        "max_duration_s": options.max_duration_s,
    }
    return Demo(about, Recordings(transcriber, options.max_duration_s), live, max_upload_bytes)


def _live(restored: Restored, options: DictConfig) -> tuple[LiveStreams | None, str]:
    """Return what recognizes live speech, or None and why the recognizer cannot."""
    module = restored.data_module
    parts = restored.recognizer, module.tokenizer, module.features, restored.decoder

    def start(rate_hz: int) -> StreamingRecognizer:
        return StreamingRecognizer(*parts, rate_hz, options.endpoint_s)

    try:
        start(module.features.sampling_rate_hz)
    except ValueError as error:
        return None, str(error)
    return LiveStreams(start, options.max_duration_s), ""


def _title(restored: Restored) -> str:
    checkpoint = restored.checkpoint
    return checkpoint.title + ("" if checkpoint.described == "raw" else f", {checkpoint.described}")


if __name__ == "__main__":
    main()
