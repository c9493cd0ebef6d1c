"""Audio to recognize: files found by name and cut in pauses, media, samples in memory, and packets of a stream."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import soundfile
from lhotse import Recording
from lhotse.cut import Cut, MonoCut
from numpy.typing import NDArray
from torch import Tensor

from asr.data.manifests.audio import open_recording, quiet_decoder, reading
from asr.features.log_mel import averaged, stretches, whole_frames
from werdict.errors import ConfigError, RunFailed
from werdict.files import named_path
from werdict.normalization import SURROGATE, is_one_line
from werdict.text_files import matching_files, visible_files

# FFmpeg's format by the ending: what it finds out by itself may be a playlist, which names other files and addresses
FFMPEG_FORMATS = {
    **dict.fromkeys((".3gp", ".m4a", ".m4b", ".mov", ".mp4"), "mov"),
    **dict.fromkeys((".mka", ".mkv", ".webm"), "matroska"),
}
MEDIA_ENDINGS = tuple(FFMPEG_FORMATS)
TOLERATED_S = 0.5  # between the length that a header states, with what encoders add, and that of the audio
# of cutting in pauses; the level of a frame is in dB of full scale
FRAME_S = 0.01
SILENCE_DB = -100.0  # of digital silence
MAX_READ = 2**22  # samples of all channels in memory at a time
NUM_SMOOTHED = 5  # frames
# speech is louder than this share of the way from background to speech, both measured in the minute around a frame, or
# than the background by so much: someone far from the microphone is 25 dB softer than the loudest speaker
LOUD, ABOVE_DB = 0.35, 3.0
BACKGROUND, SPEECH = 0.1, 0.95  # quantiles of the level
CONTRAST_DB = 6.0  # between them; with less there is only speech, or only background
AUDIBLE_DB = -65.0
MEASURED, STEP = 6000, 1000  # frames of the quantiles, and how often they are taken
LONGEST_PAUSE = 30  # frames, within a part
MARGIN = 15  # frames of a pause that stay with the speech beside it, half of the longest
CUT_IN = 31  # frames of the quietest place, where a part that is too long is cut
Parts = list[tuple[float, float]]
# of audio files in a folder
ENDINGS = (
    *(".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus"),
    *(".rf64", ".sph", ".w64", ".wav"),
)
Samples = NDArray[Any] | Tensor
Audio = str | os.PathLike[str] | Samples | BinaryIO
BYTES = 2  # of a sample on standard input


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
        duration_s = 0.0
        with contextlib.suppress(ValueError), reading(str(file)):  # said when it is transcribed
            if is_media(file):
                with _open_media(file) as media:
                    duration_s = (media.duration or 0) / 1e6
            else:
                duration_s = soundfile.info(file).duration
        if place > start and (place - start == max_files or total_s + duration_s > max_s):
            yield files[start:place]
            start, total_s = place, 0.0
        total_s += duration_s
    if start < len(files):
        yield files[start:]


def as_list(audio: Audio | Iterable[Audio]) -> list[Audio]:
    """Return recordings, if there is one, too."""
    is_one = isinstance(audio, str | os.PathLike | np.ndarray | Tensor) or hasattr(audio, "read")
    return [cast(Audio, audio)] if is_one else list(cast(Iterable[Audio], audio))


def as_file(audio: Audio, rate_hz: int | None, temporary: Path) -> Path:
    """Return a file with a recording: its own, or a new one.

    Args:
        audio: a path, samples, or a file that was opened to read bytes.
        rate_hz: of samples.
        temporary: name of a new file, without its ending.

    Raises:
        ValueError: it is something else, or samples without a rate.
    """
    if isinstance(audio, str | os.PathLike):
        return Path(audio)
    if isinstance(audio, np.ndarray | Tensor):
        if rate_hz is None:
            raise ValueError("rate_hz must be given for samples: rate_hz=16_000")
        path = temporary.with_suffix(".wav")
        soundfile.write(path, mono_samples(audio), rate_hz, subtype="FLOAT")
        return path
    data = audio.read() if hasattr(audio, "read") else None
    if not isinstance(data, bytes):
        raise ValueError(f"audio must be a path, an array, a tensor or a file opened with 'rb', given {audio!r:.100}")
    # of media files, whose endings tell how they are read
    path = temporary.with_suffix(Path(str(getattr(audio, "name", ""))).suffix)
    path.write_bytes(data)
    return path


def mono_samples(samples: Samples) -> NDArray[np.float32]:
    """Return samples (N,) float32 of the first channel.

    Args:
        samples: (N,), or (C, N) or (N, C) with more samples than channels; floating-point numbers in [-1, 1], or
            integers of 16 or 32 bits.

    Raises:
        ValueError: their shape or type is another.
    """
    if isinstance(samples, Tensor):
        samples = samples.detach().cpu()
        samples = (samples.float() if samples.is_floating_point() else samples).numpy()
    array = np.asarray(samples)
    if array.ndim not in (1, 2) or not (array.dtype.kind == "f" or array.dtype in (np.int16, np.int32)):
        raise ValueError(
            "samples must be (N,), (channels, N) or (N, channels), of floating-point numbers in [-1, 1], int16 or "
            f"int32, given {array.dtype} {array.shape}"
        )
    mono = array if array.ndim == 1 else array[0] if array.shape[0] <= array.shape[1] else array[:, 0]
    scale = 1 if array.dtype.kind == "f" else 2 ** (8 * array.itemsize - 1)
    return np.ascontiguousarray(mono if scale == 1 else mono / scale, dtype=np.float32)


def is_media(path: Path) -> bool:
    """Return whether the name of a file says that PyAV is needed."""
    return path.suffix.lower() in FFMPEG_FORMATS


def write_flac(path: Path, target: Path) -> None:
    """Write the first audio stream of a media file, with its rate and channels, as FLAC of 16 bits.

    Raises:
        ValueError: PyAV is not installed; or the file has no audio, cannot be decoded, or was cut short.
    """
    try:
        import av
    except ImportError:
        needed = "PyAV: pip install 'werdict[media]'; or convert it to WAV or FLAC"
        raise ValueError(f"{path.suffix} needs {needed}") from None
    with reading(str(path)), _open_media(path) as media:
        audio = media.streams.audio[0] if media.streams.audio else None
        if audio is not None:
            # the length of the stream by the header; other streams may be longer than it
            stated_s = float(audio.duration * audio.time_base) if audio.duration else 0.0
            if not audio.duration and len(media.streams) == 1:
                stated_s = (media.duration or 0) / 1e6
            to_16_bits = av.AudioResampler(format="s16", layout=audio.layout, rate=audio.rate)
            with soundfile.SoundFile(target, "w", audio.rate, audio.layout.nb_channels, "PCM_16") as flac:
                for frame in chain(media.decode(audio), [None]):  # None: what the resampler still holds
                    for part in to_16_bits.resample(frame):
                        flac.write(part.to_ndarray().reshape(-1, flac.channels))
                duration_s = flac.frames / flac.samplerate
    if audio is None:
        raise ValueError("it has no audio stream")
    if stated_s - duration_s > TOLERATED_S:
        raise ValueError(f"truncated audio: its header states {stated_s:.1f} s, {duration_s:.1f} s are there")


def _open_media(path: Path) -> Any:
    import av

    return av.open(
        str(path.resolve()), format=FFMPEG_FORMATS[path.suffix.lower()], options={"protocol_whitelist": "file"}
    )


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
        try:
            decoded = file
            if folder is not None and is_media(file):
                write_flac(file, decoded := folder / f"{number}.flac")
            recording, problem = open_recording(decoded, name)
            if recording is None:
                raise ValueError(problem)
            channels = recording.channel_ids if each_channel else recording.channel_ids[:1]
            read.append((file, [cut for channel in channels for cut in _parts(recording, channel, max_s)]))
        except soundfile.SoundFileError as error:  # broken after its header
            unreadable.append((name, f"unreadable audio: {error}"))
        except ValueError as error:
            unreadable.append((name, str(error)))
    return read, unreadable


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


def levels(path: Path, channel: int) -> NDArray[np.float32]:
    """Return the level of each frame of a file in dB of full scale, (T,); the file is never whole in memory.

    Args:
        path: of the file.
        channel: of the file, from 0.
    """
    blocks = []
    with quiet_decoder(path), soundfile.SoundFile(path) as file:
        samples, _ = whole_frames(FRAME_S, file.samplerate)
        num_frames = max(1, MAX_READ // (samples * file.channels))
        for block in file.blocks(samples * num_frames, dtype="float32", always_2d=True):
            mono = block[: len(block) // samples * samples, channel]
            power = np.square(mono.reshape(-1, samples)).mean(axis=1)
            blocks.append(10 * np.log10(np.nan_to_num(power) + 10 ** (SILENCE_DB / 10)))
    return np.concatenate([*blocks, np.zeros(0)]).astype(np.float32)


def parts_between_pauses(level_db: NDArray[np.float32], max_s: float, frame_s: float = FRAME_S) -> Parts:
    """Return start and end in seconds of the parts of a recording that hold speech, each at most ``max_s`` long.

    Of pauses of more than 0.3 s only the ends are kept. What is still too long is cut in the quietest 0.3 s of the
    second half of what is allowed, again and again.

    Args:
        level_db: (T,) of each frame.
        max_s: at least 1.
        frame_s: seconds from a frame to the next, see `whole_frames`.
    """
    if not len(level_db):
        return []
    smooth = averaged(level_db, NUM_SMOOTHED)
    quiet = averaged(smooth, CUT_IN)
    parts: list[list[int]] = []
    for begin, end in _joined(stretches(_is_speech(smooth)).tolist()):
        begin, end = max(begin - MARGIN, 0), min(end + MARGIN, len(smooth))
        while end - begin > (most := int(max_s / frame_s + 1e-6)):
            half = begin + most // 2
            cut = half + int(quiet[half : begin + most].argmin())
            parts.append([begin, cut])
            begin = cut
        parts.append([begin, end])
    return [(round(begin * frame_s, 3), round(end * frame_s, 3)) for begin, end in parts]


def _is_speech(smooth: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return whether each frame is louder than the pauses around it: (T,)."""
    is_speech = np.zeros(len(smooth), dtype=bool)
    for begin in range(0, len(smooth), STEP):
        around = smooth[max(0, begin + STEP // 2 - MEASURED // 2) : begin + STEP // 2 + MEASURED // 2]
        background, speech = np.quantile(around, [BACKGROUND, SPEECH])
        contrast = max(CONTRAST_DB, speech - background)
        threshold = max(AUDIBLE_DB, min(background, speech - contrast) + min(LOUD * contrast, ABOVE_DB))
        is_speech[begin : begin + STEP] = smooth[begin : begin + STEP] > threshold
    return is_speech


def _joined(speech: list[list[int]]) -> list[list[int]]:
    """Return stretches of speech without the pauses that are not long."""
    joined: list[list[int]] = []
    for begin, end in speech:
        if joined and begin - joined[-1][1] <= LONGEST_PAUSE:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return joined


def open_stream(path: Path) -> soundfile.SoundFile:
    """Open an audio file, all of which can be read.

    Raises:
        ConfigError: it cannot.
    """
    if not path.is_file():
        raise ConfigError(f"audio: {str(path)!r} is not a file; give one, or - for samples on standard input")
    try:
        file = soundfile.SoundFile(path)
    except soundfile.LibsndfileError as error:
        raise ConfigError(f"audio: {path} cannot be read: {error.error_string}") from None
    _, problem = open_recording(path, str(path))
    # half a file would be taken for the whole; an empty one ends well
    if problem and file.frames:
        raise ConfigError(f"audio: {problem}")
    return file


def packets_of_file(file: soundfile.SoundFile, size: int, at_own_pace: bool) -> Iterator[NDArray[np.float32]]:
    """Yield samples of the first channel, (N,) float32.

    Args:
        file: opened; it is read to its end.
        size: samples of a packet.
        at_own_pace: wait, so that a second of audio takes a second.

    Raises:
        RunFailed: the rest cannot be read.
    """
    begin, heard_s = time.monotonic(), 0.0
    try:
        blocks = file.blocks(size, dtype="float32", always_2d=True)
        while True:
            with quiet_decoder(file.name):
                block = next(blocks, None)
            if block is None:
                return
            heard_s += len(block) / file.samplerate
            if at_own_pace:
                time.sleep(max(0.0, begin + heard_s - time.monotonic()))
            yield block[:, 0]
    except soundfile.LibsndfileError as error:
        raise RunFailed(
            f"audio: {file.name} could not be read after {heard_s:.1f} s: {error.error_string}; its text ends there"
        ) from None


def packets_of_standard_input(size: int) -> Iterator[NDArray[np.float32]]:
    """Yield 16-bit samples as they come, (N,) float32; half a sample at the end is left out."""
    buffer = data = os.read(sys.stdin.fileno(), size * BYTES)
    while data:
        whole = len(buffer) // BYTES * BYTES
        yield np.frombuffer(buffer[:whole], dtype="<i2").astype(np.float32) * np.float32(2**-15)
        data = os.read(sys.stdin.fileno(), size * BYTES)
        buffer = buffer[whole:] + data
