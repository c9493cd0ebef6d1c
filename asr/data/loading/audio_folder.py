"""A folder of recordings that augmentation draws from: noise, impulse responses."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from lhotse import Recording
from lhotse.cut import Cut, MonoCut

from asr.data.features import cause
from asr.data.manifests.audio_checks import audio_problem, file_content
from asr.data.manifests.audio_files import find_audio
from asr.data.resampling import at_rate
from asr.errors import UnusableFile, raise_if_out_of_resources

SPARE_S = 0.1  # read beyond what is needed, because resampling rounds


class AudioFolder:
    """Recordings in a folder and in those in it, found and checked once.

    Args:
        key: in the config, for errors.
        folder: None: no recordings.

    Raises:
        ValueError: the folder has no name.
    """

    def __init__(self, key: str, folder: str | None) -> None:
        if folder is not None and not str(folder).strip():
            raise ValueError(f"{key} is empty; name a folder, or give null")  # which would be the current folder
        self.key, self.folder = key, folder
        self.recordings: list[Recording] = []

    @cached_property
    def contents(self) -> list[tuple[str, int, int]]:
        """Return the paths in the folder, sizes and checksums of the recordings, see ``file_content``.

        Raises:
            ValueError: there is none, or too much else, or one cannot be read.
        """
        try:
            return [(str(file.relative_to(place)), *file_content(file)) for file, place in self._files]
        except OSError as error:
            raise ValueError(f"{self.key}: {error.filename}: {error.strerror}; mend or remove it") from error

    def check(self) -> None:
        """Read what every recording says of itself, once.

        Raises:
            ValueError: one of them cannot be used.
        """
        if not self.recordings:
            self.recordings = [self._recording(file) for file, _ in self._files]

    def _recording(self, file: Path) -> Recording:
        try:
            recording = Recording.from_file(file, recording_id=str(file))
            problem = audio_problem(recording)
        except Exception as error:  # a decoder may raise anything on a file that is no audio
            raise_if_out_of_resources(error, str(file))
            problem = f"{type(error).__name__}: {error}"
        if problem:
            raise ValueError(f"{self.key}: {file}: {problem}; mend or remove it")
        return recording

    @cached_property
    def _files(self) -> list[tuple[Path, Path]]:
        # once: what is compared with a checkpoint must be what is opened then
        try:
            return [] if self.folder is None else sorted(find_audio([self.folder]).items())
        except ValueError as error:
            raise ValueError(f"{self.key}={self.folder}: {error}") from error

    def read(self, rate_hz: int, rng: np.random.Generator, size: int | None) -> np.ndarray:
        """Return ``size`` samples of the first channel from any place of any recording; None: one from its start.

        Raises:
            UnusableFile: it cannot be read, or holds what is no audio; utterances are not to blame.
        """
        recording = self.recordings[int(rng.integers(len(self.recordings)))]
        try:
            return self._samples(recording, rate_hz, rng, size)
        except Exception as error:  # a decoder may raise anything on a broken file
            raise_if_out_of_resources(error, recording.id)
            raise UnusableFile(f"{self.key}: {recording.id}: {cause(error)}; mend or remove it") from error

    def _samples(self, recording: Recording, rate_hz: int, rng: np.random.Generator, size: int | None) -> np.ndarray:
        cut: Cut = MonoCut("noise", 0.0, recording.duration, recording.channel_ids[0], recording=recording)
        if size is not None and (part_s := size / rate_hz + SPARE_S) < recording.duration:
            cut = cut.truncate(offset=round(rng.uniform(0, recording.duration - part_s), 3), duration=part_s)
        samples: np.ndarray = at_rate(cut, rate_hz).load_audio()[0]
        if not np.isfinite(samples).all():
            raise ValueError("it holds samples that are not finite")
        if size is None and not samples.any():
            raise ValueError("it holds nothing but silence, which would make all speech silent")
        return samples if size is None else part_of(samples, size, rng)


def part_of(samples: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a part of given size from any place of samples; fewer of them begin again after their end."""
    if len(samples) >= size:
        start = int(rng.integers(len(samples) - size + 1))
        return samples[start : start + size]
    return np.resize(np.roll(samples, -int(rng.integers(len(samples)))), size)
