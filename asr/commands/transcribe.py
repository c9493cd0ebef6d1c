"""``asr-transcribe``: audio files → text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from asr.commands.output_file import lock_output_dir, new_file
from asr.commands.transcript_record import TranscriptRecord, maker_of
from asr.config.restore import restore, transcriber_of
from asr.console import PlainConsole, printable
from asr.data.manifests.audio_files import ENDINGS, find_audio, groups_of
from asr.data.manifests.media_files import MEDIA_ENDINGS
from asr.errors import ConfigError, RunFailed, remedy, shortened
from asr.inference.transcribe import Transcriber
from asr.inference.transcript import FORMATS, OF_SEVERAL, Transcript
from asr.run_folder import usable_folder
from asr.safe_io import write_new

# that are transcribed before their transcripts are written, and lost if the process is killed
GROUP_FILES, GROUP_S = 100, 3600.0

Targets = dict[Path, dict[str, Path]]  # of each audio file, by format
Failed = list[tuple[str, str]]  # path and reason

console = PlainConsole(stderr=True)


def run(options: DictConfig) -> None:
    """Print or write transcripts. Exits with 1 if some files could not be read, with 2 if no file ever could."""
    patterns = [str(p) for p in options.audio] if isinstance(options.audio, ListConfig) else [str(options.audio)]
    given = options.output_format
    formats = [str(name) for name in given] if isinstance(given, ListConfig) else [str(given)]
    if options.output is not None and options.output_dir is not None:
        raise ConfigError("output and output_dir cannot be given together; keep one of them")
    output = None if options.output is None else new_file(options.output)
    files = find_audio(patterns, (*ENDINGS, *MEDIA_ENDINGS))
    if options.output_dir is None:
        _check_formats(formats, len(files))
        _check_ending(formats[0], output)
        num_read, failed = _to_one_place(_transcriber(options), list(files), formats[0], output)
        _report(num_read, failed, output)
    else:
        folder = usable_folder(options.output_dir, "output_dir")
        targets = _targets(files, folder, formats)
        with lock_output_dir(folder):
            _transcribe_to_folder(options, files, targets, folder)


def _transcribe_to_folder(options: DictConfig, files: Mapping[Path, Path], targets: Targets, folder: Path) -> None:
    """Write the transcripts that are not in ``output_dir`` yet."""
    record = TranscriptRecord(folder, maker_of(options))
    todo, blocked = _missing(targets, folder, record)
    num_before = len(files) - len(todo) - len(blocked)
    if num_before:
        console.print(f"{num_before} of {len(files)} files have their transcripts already")
    num_read, failed = _to_folder(_transcriber(options), todo, targets, folder, record) if todo else (0, [])
    for path, reason in blocked:
        console.print_line(f"no transcript of {shortened(path)}: {reason}")
    _report(num_read, failed, options.output_dir, num_before + len(blocked))
    if blocked:
        raise SystemExit(1)


def _report(num_read: int, failed: Failed, output: object, num_others: int = 0) -> None:
    """Say what was read, and exit if something was not.

    Args:
        num_read: number of files with new transcripts.
        failed: that could not be read.
        output: where the transcripts are; None: printed.
        num_others: files that nobody has tried to read now.
    """
    for path, reason in failed:
        console.print_line(f"could not read {path}: {reason}")
    if not num_read and not num_others:
        raise ConfigError("audio: no file could be read; give files that hold audio")
    if output is not None and num_read:
        console.print_line(f"transcripts of {num_read} file{'s' * (num_read > 1)}: {output}")
    if failed:
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


def _check_ending(chosen: str, output: Path | None) -> None:
    """Refuse a name that ends as files of another format do; tables may be called texts too."""
    ending = "" if output is None else output.suffix[1:]
    if ending in FORMATS and ending != chosen and (chosen, ending) != ("tsv", "txt"):
        raise ConfigError(
            f"output: {output} ends as files of output_format={ending} do, and output_format is {chosen}; give "
            f"output_format={ending}, or another name"
        )


def _transcriber(options: DictConfig) -> Transcriber:
    restored = restore(options)
    transcriber = transcriber_of(restored, options.max_segment_s, options.channels == "each")
    for note in restored.notes:
        console.print_line(note)
    return transcriber


def _to_one_place(
    transcriber: Transcriber, files: Sequence[Path], chosen: str, output: Path | None
) -> tuple[int, Failed]:
    """Print transcripts, or write them to a file; return how many, and the files that could not be read."""
    transcripts, unreadable = transcriber(files)
    content = "".join(map(FORMATS[chosen], transcripts))
    if transcripts and output is None:
        _print(content)
    elif transcripts and output is not None:
        write_new(output, content.encode("utf-8", "surrogateescape"))
    return len(transcripts), unreadable


def _missing(targets: Targets, folder: Path, record: TranscriptRecord) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Return the files whose transcripts are not all there, and (path, reason) for those whose name is taken."""
    todo, blocked = [], []
    for file, paths in targets.items():
        there = [path for path in paths.values() if path.exists()]
        if there and (why := record.why_not_of(_name_of(paths, folder), file)):
            blocked.append((file, f"{shortened(there[0])} {why}; remove it, or name another output_dir"))
        elif len(there) < len(paths):
            todo.append(file)
    return todo, blocked


def _name_of(paths: Mapping[str, Path], folder: Path) -> str:
    """Return the name that all transcripts of a recording share, from their folder on."""
    ending, path = next(iter(paths.items()))
    return str(path.relative_to(folder)).removesuffix(f".{ending}")


def _to_folder(
    transcriber: Transcriber, files: Sequence[Path], targets: Targets, folder: Path, record: TranscriptRecord
) -> tuple[int, Failed]:
    """Write the files of transcripts that are not there yet, a group of recordings after the other."""
    num_read, unreadable = 0, []
    start = 1
    for group in groups_of(files, GROUP_FILES, GROUP_S):
        transcripts, failed = transcriber(group, f"files {start}-{start + len(group) - 1} of {len(files)}")
        start += len(group)
        for transcript in transcripts:
            with _explaining_lost_transcripts(folder):
                record.add(_name_of(targets[transcript.path], folder), transcript.path)
                _write_missing(transcript, targets[transcript.path])
        num_read += len(transcripts)
        unreadable += failed
    return num_read, unreadable


def _write_missing(transcript: Transcript, paths: Mapping[str, Path]) -> None:
    for name, path in paths.items():
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # of the user, or of another process
            write_new(path, FORMATS[name](transcript))


@contextlib.contextmanager
def _explaining_lost_transcripts(folder: Path) -> Iterator[None]:
    """Say what to do where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"output_dir: {error.filename or folder} could not be written: {error.strerror}; {remedy(error)}, and run "
            "the same command again: files that have their transcripts are skipped"
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
    """Write to standard output, and fail if nobody reads it."""
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
