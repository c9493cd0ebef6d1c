"""``asr-transcribe``: audio files → text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from asr.cli.app import run_app
from asr.cli.builders.restore import restore
from asr.cli.builders.transcriber import transcriber_of
from asr.cli.errors import ConfigError
from asr.cli.output_file import new_file, write_output
from asr.console import PlainConsole, printable
from asr.data.manifests.audio_files import find_audio
from asr.errors import RunFailed, remedy
from asr.inference.transcribe import Transcriber
from asr.inference.transcripts.formats import FORMATS, OF_SEVERAL
from asr.inference.transcripts.transcript import Transcript
from asr.run_folder import usable_folder
from asr.safe_io import write_new

GROUP = 100  # files that are transcribed before their transcripts are written

Targets = dict[Path, dict[str, Path]]  # of each audio file, by format

console = PlainConsole(stderr=True)


def main() -> None:
    """Run ``asr-transcribe``."""
    run_app("transcribe", run)


def run(options: DictConfig) -> None:
    """Print or write transcripts. Exits with 1 if some files could not be read, with 2 if no file ever could."""
    patterns = [str(p) for p in options.audio] if isinstance(options.audio, ListConfig) else [str(options.audio)]
    given = options.output_format
    formats = [str(name) for name in given] if isinstance(given, ListConfig) else [str(given)]
    if options.output is not None and options.output_dir is not None:
        raise ConfigError("output and output_dir cannot be given together; keep one of them")
    output = None if options.output is None else new_file(options.output, ", or leave output out to print")
    files = find_audio(patterns)
    num_before = 0
    if options.output_dir is None:
        _check_formats(formats, len(files))
        num_read, unreadable = _to_one_place(_transcriber(options), list(files), formats[0], output)
    else:
        targets = _targets(files, usable_folder(options.output_dir, "output_dir"), formats)
        todo = [file for file, paths in targets.items() if not all(path.exists() for path in paths.values())]
        num_before = len(files) - len(todo)
        if num_before:
            console.print(f"{num_before} of {len(files)} files have their transcripts already")
        if not todo:
            return
        num_read, unreadable = _to_folder(_transcriber(options), todo, targets)
        output = options.output_dir
    for path, reason in unreadable:
        console.print(f"could not read {path}: {reason}", soft_wrap=True)
    if not num_read and not num_before:
        raise ConfigError("audio: no file could be read; give files that hold audio")
    if output is not None and num_read:
        console.print(f"transcripts of {num_read} file{'s' * (num_read > 1)}: {output}", soft_wrap=True)
    if unreadable:
        raise SystemExit(1)


def _check_formats(formats: Sequence[str], num_files: int) -> None:
    """Refuse several formats, or a format of one recording for several, in one place."""
    if len(formats) > 1:
        raise ConfigError(f"output_format: {len(formats)} formats need files of their own; give output_dir=FOLDER")
    if num_files > 1 and formats[0] not in OF_SEVERAL:
        raise ConfigError(
            f"output_format={formats[0]} is for one recording, and audio names {num_files} files; give "
            f"output_dir=FOLDER, or choose one of {', '.join(OF_SEVERAL)}"
        )


def _transcriber(options: DictConfig) -> Transcriber:
    restored = restore(options)
    transcriber = transcriber_of(restored, options.max_segment_s, options.channels == "each")
    for note in restored.notes:
        console.print_line(note)
    return transcriber


def _to_one_place(
    transcriber: Transcriber, files: Sequence[Path], chosen: str, output: Path | None
) -> tuple[int, list[tuple[str, str]]]:
    """Print transcripts, or write them to a file; return how many, and the files that could not be read."""
    transcripts, unreadable = transcriber(files)
    content = "".join(map(FORMATS[chosen], transcripts))
    if transcripts and output is None:
        _print(content)
    elif transcripts and output is not None:
        write_output(output, content.encode("utf-8", "surrogateescape"), "transcribe again")
    return len(transcripts), unreadable


def _to_folder(transcriber: Transcriber, files: Sequence[Path], targets: Targets) -> tuple[int, list[tuple[str, str]]]:
    """Write the files of transcripts that are not there yet, a group of recordings after the other."""
    num_read, unreadable = 0, []
    for start in range(0, len(files), GROUP):
        transcripts, failed = transcriber(
            files[start : start + GROUP], f"files {start + 1}-{start + GROUP} of {len(files)}"
        )
        for transcript in transcripts:
            _write_missing(transcript, targets[transcript.path])
        num_read += len(transcripts)
        unreadable += failed
    return num_read, unreadable


def _write_missing(transcript: Transcript, paths: Mapping[str, Path]) -> None:
    for name, path in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # of the user, or of another process
                write_new(path, FORMATS[name](transcript))
        except OSError as error:
            raise RunFailed(
                f"output_dir: {path} could not be written: {error.strerror}; {remedy(error)}, and say the same again: "
                "files that have their transcripts are skipped"
            ) from error


def _targets(files: Mapping[Path, Path], folder: Path, formats: Sequence[str]) -> Targets:
    """Return where the transcripts of each file go: below the folder as the audio lies below the place it was found in.

    Raises:
        ConfigError: two files would have the same transcripts.
    """
    stems = {file: folder / file.relative_to(place).with_suffix("") for file, place in files.items()}
    for stem, number in Counter(stems.values()).items():
        if number > 1:
            same = [str(file) for file, own in stems.items() if own == stem]
            raise ConfigError(
                f"output_dir: {same[0]} and {same[1]} would have one transcript, {stem}.{formats[0]}; transcribe them "
                "to different folders, or rename one"
            )
    return {file: {name: Path(f"{stem}.{name}") for name in formats} for file, stem in stems.items()}


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
