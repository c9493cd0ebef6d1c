"""``asr-transcribe``: audio files → text."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, ListConfig
from rich.console import Console

from asr.cli.app import run_app
from asr.cli.errors import ConfigError
from asr.cli.restore import restore
from asr.data.audio_files import audio_cuts, find_audio
from asr.data.features import Features
from asr.training.session import decode_all

console = Console(stderr=True)


def main() -> None:
    """Run ``asr-transcribe``."""
    run_app("transcribe", transcribe)


def transcribe(options: DictConfig) -> None:
    """Print or write one line per file: path, tab, text. Ends with 1 where a file could not be read."""
    patterns = [str(p) for p in options.audio] if isinstance(options.audio, ListConfig) else [str(options.audio)]
    output = _output_file(options.output)
    files = find_audio(patterns)
    restored = restore(options)
    _refuse_deaf(restored.reading.features)
    cuts, unreadable = audio_cuts(files)
    texts: dict[str, str] = {}
    if len(cuts):
        loader = restored.reading.evaluation_loader(cuts)
        tokenizer = restored.reading.tokenizer
        decoded = decode_all(restored.recogniser, restored.decoder, tokenizer, loader, "audio", len(cuts))
        unreadable += decoded.unread
        texts = {utterance.id: utterance.hypothesis for utterance in decoded.utterances}
    _write([str(file) for file in files], texts, output)
    for path, reason in unreadable:
        console.print(f"could not read {path}: {reason}", markup=False, soft_wrap=True)
    if output is not None:
        console.print(f"transcripts: {output}", soft_wrap=True)
    if unreadable:
        raise SystemExit(1)


def _refuse_deaf(features: Features) -> None:
    if not features.from_audio:
        raise ConfigError(
            f"run: it was trained on features that its corpus brought, {features.num_features} per frame, and cannot "
            "hear audio; give features of the same kind to asr-evaluate manifest=PATH"
        )


def _output_file(output: str | None) -> Path | None:
    if output is None:
        return None
    path = Path(output).expanduser()
    if path.exists():
        raise ConfigError(f"output: {str(path)!r} exists; name another file, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write(order: Sequence[str], texts: Mapping[str, str], output: Path | None) -> None:
    lines = "".join(f"{path}\t{texts[path]}\n" for path in order if path in texts)
    if output is None:
        sys.stdout.write(lines)
    else:
        output.write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
