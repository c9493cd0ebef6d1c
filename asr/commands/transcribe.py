"""``asr-transcribe``: audio files → text."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from asr.commands.results import lock_output_dir, new_file
from asr.data.manifests.audio_files import ENDINGS, MEDIA_ENDINGS, find_audio, groups_of
from asr.inference.transcripts import FORMATS, OF_SEVERAL, Transcriber, Transcript, TranscriptFolder
from asr.run.folder import usable_folder
from asr.run.options import Transcribe, texts
from asr.run.restore import maker_of, restore, transcriber_of
from werdict.console import PlainConsole, printable
from werdict.errors import ConfigError, RunFailed, remedy
from werdict.files import write_new

# that are transcribed before their transcripts are written, and lost if the process is killed
GROUP_FILES, GROUP_S = 100, 3600.0

Failed = list[tuple[str, str]]  # path and reason

console = PlainConsole(stderr=True)


def run(options: Transcribe) -> None:
    """Print or write transcripts. Exits with 1 if some files could not be read, with 2 if no file ever could."""
    patterns, formats = texts(options.audio), texts(options.output_format)
    if options.output is not None and options.output_dir is not None:
        raise ConfigError("output and output_dir cannot be given together; keep one of them")
    output = None if options.output is None else new_file(options.output)
    files = find_audio(patterns, (*ENDINGS, *MEDIA_ENDINGS))
    if options.output_dir is not None:
        _to_folder(options, files, formats)
        return
    _check_format(formats, len(files), output)
    transcripts, failed = _transcriber(options)([*files])
    _tell_silence(transcripts)
    content = "".join(map(FORMATS[formats[0]], transcripts))
    if transcripts and output is None:
        # file names may hold control sequences, which a terminal would execute
        sys.stdout.write(printable(content) if sys.stdout.isatty() else content)
        sys.stdout.flush()
    elif transcripts and output is not None:
        write_new(output, content.encode("utf-8", "surrogateescape"))
    _report(len(transcripts), failed, output)


def _to_folder(options: Transcribe, files: Mapping[Path, Path], formats: Sequence[str]) -> None:
    """Write the transcripts that are not in ``output_dir`` yet, a group of recordings after the other."""
    folder = usable_folder(options.output_dir, "output_dir")
    transcripts = TranscriptFolder(folder, files, formats)
    with lock_output_dir(folder, is_new=not folder.exists()):
        transcripts.made_by(maker_of(options))
        missing, blocked = transcripts.missing()
        num_before, num_read = len(files) - len(missing) - len(blocked), 0
        failed: Failed = []
        if num_before:
            console.print(f"{num_before} of {len(files)} files have their transcripts already")
        transcriber = _transcriber(options) if missing else None
        for group in groups_of(missing, GROUP_FILES, GROUP_S):
            assert transcriber is not None
            start = 1 + num_read + len(failed)
            readable, unreadable = transcriber(group, f"files {start}-{start + len(group) - 1} of {len(missing)}")
            try:
                for transcript in readable:
                    transcripts.write(transcript)
            except OSError as error:
                raise RunFailed(
                    f"output_dir: {error.filename or folder} could not be written: {error.strerror}; {remedy(error)}, "
                    "and run the same command again: files that have transcripts are skipped"
                ) from error
            _tell_silence(readable)
            num_read += len(readable)
            failed += unreadable
        for path, reason in blocked:
            console.print_line(f"no transcript of {str(path)!r}: {reason}")
        _report(num_read, failed, options.output_dir, num_before + len(blocked))
        if blocked:
            raise SystemExit(1)


def _tell_silence(transcripts: Sequence[Transcript]) -> None:
    """Say how much of each long recording was not decoded; of speech that was missed nothing else would tell."""
    for transcript in transcripts:
        if transcript.silence:
            console.print_line(f"{transcript.path}: {transcript.silence:.0%} of the recording was taken for silence")


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
        raise ConfigError("audio: no file could be read; give files that contain audio")
    if output is not None and num_read:
        console.print_line(f"transcripts of {num_read} file{'s' * (num_read > 1)}: {output}")
    if failed:
        raise SystemExit(1)


def _check_format(formats: Sequence[str], num_files: int, output: Path | None) -> None:
    """Refuse several formats, a format of one recording for several, and a name that ends as another format's does."""
    if len(formats) > 1:
        raise ConfigError(f"output_format: {len(formats)} formats need separate files; give output_dir=FOLDER")
    if num_files > 1 and formats[0] not in OF_SEVERAL:
        raise ConfigError(
            f"output_format={formats[0]} is for one recording, but audio names {num_files} files; give "
            f"output_dir=FOLDER, or choose one of {', '.join(OF_SEVERAL)}"
        )
    ending = "" if output is None else output.suffix[1:]
    if ending in FORMATS and ending != formats[0] and (formats[0], ending) != ("tsv", "txt"):  # tables are texts too
        raise ConfigError(
            f"output: {output} has the ending of output_format={ending}, but output_format is {formats[0]}; give "
            f"output_format={ending}, or another name"
        )


def _transcriber(options: Transcribe) -> Transcriber:
    restored = restore(options, options.decoder, options.torch_threads)
    transcriber = transcriber_of(restored, options.max_segment_s, options.channels == "each")
    for note in restored.notes:
        console.print_line(note)
    return transcriber
