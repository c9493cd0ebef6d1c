"""Long recordings → parts of a bounded length, cut in pauses.

T frames of 10 ms, rounded down to whole samples.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.quiet_decoder import quiet_decoder
from asr.features.log_mel import whole_frames
from asr.features.pauses import averaged, stretches

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
CUT_IN = 31  # frames

Parts = list[tuple[float, float]]


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
