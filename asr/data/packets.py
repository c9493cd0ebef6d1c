"""Audio that arrives in packets: of files, and of standard input."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.manifests.audio_checks import open_recording
from asr.data.quiet_decoder import quiet_decoder
from asr.errors import ConfigError, RunFailed

BYTES = 2  # of a sample on standard input


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
