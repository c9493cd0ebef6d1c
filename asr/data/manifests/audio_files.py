"""Audio files → cuts without transcripts: whole, or where they are long, the parts between pauses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import soundfile
from lhotse import Recording
from lhotse.cut import Cut, MonoCut

from asr.data.manifests.audio_checks import open_recording
from asr.data.manifests.media_files import is_media, media_duration_s, write_flac
from asr.data.segmentation import FRAME_S, levels, parts_between_pauses
from asr.features.log_mel import whole_frames
from asr.safe_io import named_path
from asr.text.normalize import SURROGATE, is_one_line
from asr.text_files import matching_files, visible_files

# of files in a folder
ENDINGS = (
    *(".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus"),
    *(".rf64", ".sph", ".w64", ".wav"),
)


def find_audio(patterns: Sequence[str], endings: Sequence[str] = ENDINGS) -> dict[Path, Path]:
    """Return the files of paths, folders and glob patterns, each once, in order, with the place that each was found in.

    Args:
        patterns: what is given.
        endings: of files that count in folders, in lower case.

    Raises:
        ValueError: there is no pattern, or one matches no file.
    """
    if not patterns:
        raise ValueError("audio: the list is empty; give a file, a folder, a pattern like 'calls/*.wav', or a list")
    folders: dict[Path, Path] = {}
    for pattern in patterns:
        expanded = named_path(pattern)
        if expanded.is_dir():
            # links to folders are not followed
            visible = visible_files(expanded)
            files = sorted(file for file in visible if file.suffix.lower() in endings and file.is_file())
            if not files:
                raise ValueError(f"audio: the folder {pattern!r} contains no file that ends with {', '.join(endings)}")
        else:
            files = matching_files("audio", pattern, "a file, a folder, a pattern like 'calls/*.wav', or a list")
        for file in files:
            folders.setdefault(file, expanded if expanded.is_dir() else file.parent)
    return folders


def groups_of(files: Sequence[Path], max_files: int, max_s: float) -> Iterator[Sequence[Path]]:
    """Yield files in order, together as many as have at most ``max_s`` of audio; one that has more is alone."""
    start, total_s = 0, 0.0
    for place, file in enumerate(files):
        try:
            duration_s = media_duration_s(file) if is_media(file) else soundfile.info(file).duration
        except (soundfile.SoundFileError, TypeError):  # said when it is transcribed
            duration_s = 0.0
        if place > start and (place - start == max_files or total_s + duration_s > max_s):
            yield files[start:place]
            start, total_s = place, 0.0
        total_s += duration_s
    if start < len(files):
        yield files[start:]


def audio_files(
    files: Sequence[Path], max_s: float, each_channel: bool = False, folder: Path | None = None
) -> tuple[list[tuple[Path, list[Cut]]], list[tuple[str, str]]]:
    """Return the cuts of files, whole or in parts.

    Args:
        files: audio.
        max_s: longer files are cut in pauses.
        each_channel: use all channels; False: the first.
        folder: for the audio of media files, needed as long as the cuts are; None: such files are not read.

    Returns:
        Each file that can be read, with the cuts of the whole, or of each part between pauses, of each channel that is
        used, whose ids name the place; and (path, reason) for the others.
    """
    read: list[tuple[Path, list[Cut]]] = []
    unreadable = []
    for number, file in enumerate(files):
        name = str(file)
        if not is_one_line(name) or SURROGATE.search(name):
            why = "its name is not one line of UTF-8, or LC_ALL is not a UTF-8 locale; transcript lines contain it"
            unreadable.append((repr(name), why))
            continue
        recording, problem = _open(file, name, folder and folder / f"{number}.flac")
        if recording is None:
            unreadable.append((name, problem))
            continue
        channels = recording.channel_ids if each_channel else recording.channel_ids[:1]
        try:
            cuts = [cut for channel in channels for cut in _parts(recording, channel, max_s)]
        except soundfile.SoundFileError as error:  # broken after its header
            unreadable.append((name, f"unreadable audio: {error}"))
        else:
            read.append((file, cuts))
    return read, unreadable


def _open(file: Path, name: str, flac: Path | None) -> tuple[Recording | None, str]:
    if flac is None or not is_media(file):
        return open_recording(file, name)
    try:
        write_flac(file, flac)
    except ValueError as error:
        return None, str(error)
    return open_recording(flac, name)


def _parts(recording: Recording, channel: int, max_s: float) -> Iterator[Cut]:
    """Yield a channel of a recording, in parts if it is long; no two cuts of different files have one id."""
    whole = MonoCut(recording.id, 0.0, recording.duration, channel, recording=recording)
    # the id of a recording is its path, in which pathlib leaves no empty name
    name = f"{recording.id}//channel {channel + 1}" if recording.num_channels > 1 else recording.id
    if recording.duration <= max_s:
        yield whole.with_id(name)
        return
    level_db = levels(Path(recording.sources[0].source), channel)
    _, frame_s = whole_frames(FRAME_S, recording.sampling_rate)
    for start_s, end_s in parts_between_pauses(level_db, max_s, frame_s):
        part = whole.truncate(offset=start_s, duration=min(end_s, recording.duration) - start_s)
        yield part.with_id(f"{name}//{start_s} s")
