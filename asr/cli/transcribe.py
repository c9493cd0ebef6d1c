"""``asr-transcribe``: audio files → text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from asr.cli.app import run_app
from asr.cli.builders.restore import restore
from asr.cli.errors import ConfigError
from asr.cli.output_file import new_file, write_output
from asr.console import PlainConsole, printable
from asr.data.manifests.audio_files import audio_cuts, find_audio
from asr.errors import RunFailed
from asr.evaluation.wer import Utterance
from asr.evaluation.word_files import ctm_lines, json_line
from asr.inference.decode import decode_all

FORMATS: dict[str, Callable[[Utterance], str]] = {
    "tsv": lambda one: f"{one.id}\t{one.hypothesis}\n",
    "json": lambda one: json_line(one.id, one.hypothesis, one.words),
    "ctm": lambda one: ctm_lines(one.id, one.words),
}

console = PlainConsole(stderr=True)


def main() -> None:
    """Run ``asr-transcribe``."""
    run_app("transcribe", run)


def run(options: DictConfig) -> None:
    """Print or write one line per file, or per word. Exits with 1 if some files could not be read, 2 if none could."""
    patterns = [str(p) for p in options.audio] if isinstance(options.audio, ListConfig) else [str(options.audio)]
    output = None if options.output is None else new_file(options.output, ", or leave output out to print")
    files = find_audio(patterns)
    restored = restore(options)
    features = restored.data_module.features
    if not features.from_audio:
        raise ConfigError(
            f"run: it was trained on features without audio, {features.num_features} per frame, and cannot read audio; "
            "give features of the same kind to asr-evaluate manifest=PATH"
        )
    for note in restored.notes:
        console.print_line(note)
    cuts, unreadable = audio_cuts(files, features.sampling_rate_hz)
    found: dict[str, Utterance] = {}
    if len(cuts):
        decoded = decode_all(restored.recognizer, restored.decoder, restored.data_module, cuts, "audio")
        unreadable += decoded.unread
        found = {utterance.id: utterance for utterance in decoded.results}
    write = FORMATS[options.output_format]
    if found:
        _write("".join(write(found[str(file)]) for file in files if str(file) in found), output)
    for path, reason in unreadable:
        console.print(f"could not read {path}: {reason}", soft_wrap=True)
    if not found:
        raise ConfigError("audio: no file could be read; give files that hold audio")
    if output is not None:
        console.print(f"transcripts: {output}", soft_wrap=True)
    if unreadable:
        raise SystemExit(1)


def _write(lines: str, output: Path | None) -> None:
    if output is None:
        _print(lines)
        return
    write_output(output, lines.encode("utf-8", "surrogateescape"), "transcribe again")


def _print(lines: str) -> None:
    """Write to standard output, and fail if it is closed."""
    if sys.stdout is None:
        raise RunFailed("the transcripts could not be printed: standard output is closed; say output=FILE")
    try:
        # file names may hold control sequences, which a terminal would execute
        sys.stdout.write(printable(lines) if sys.stdout.isatty() else lines)
        sys.stdout.flush()
    except OSError as error:
        # Python would fail again when it flushes the rest at its end
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise RunFailed(
            f"the transcripts could not be printed completely: {error.strerror}; output=FILE writes them to a file"
        ) from error


if __name__ == "__main__":
    main()
