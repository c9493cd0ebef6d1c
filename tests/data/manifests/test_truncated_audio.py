"""Half a file is never taken for a whole one, in any format that libsndfile reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.manifests.audio import CHECKED_FORMATS
from asr.data.manifests.audio_files import audio_files

RATE_HZ = 16_000
NOISE = np.random.default_rng(0).normal(size=4 * RATE_HZ) * 0.1
UNSEEKABLE = "GSM610"
# MPC2K and WVE have rates of their own, RAW has no header, SD2 has it in another file
WRITTEN = [
    *((name, None) for name in soundfile.available_formats() if name not in ("MPC2K", "RAW", "SD2", "WVE")),
    *(("OGG", "OPUS"), ("CAF", "ALAC_16"), ("WAV", "IMA_ADPCM"), ("WAV", UNSEEKABLE), ("NIST", "ULAW")),
]


def problem(path: Path) -> str | None:
    """Return why a file is not transcribed, whose length nothing but itself tells."""
    files, unreadable = audio_files([path], max_s=30.0)
    assert len(files) + len(unreadable) == 1
    return unreadable[0][1] if unreadable else None


@pytest.mark.parametrize(("name", "subtype"), WRITTEN)
def test_a_file_is_whole_or_refused(tmp_path, name, subtype):
    path = tmp_path / "a.audio"
    soundfile.write(path, NOISE, RATE_HZ, format=name, subtype=subtype)
    whole = problem(path)
    if subtype == UNSEEKABLE:
        assert whole.startswith("unreadable audio: GSM610")
    elif name in CHECKED_FORMATS:
        assert whole is None
    else:
        assert whole.startswith(f"unknown length: that of {name}")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.9)])
    assert problem(path) is not None


@pytest.mark.parametrize("num_bytes", [1, 28, None])
def test_ogg_that_ends_within_a_page_or_with_one_that_is_not_the_last_is_cut_short(tmp_path, num_bytes):
    """A recorder that is killed leaves whole pages."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, np.tile(NOISE, 20), RATE_HZ)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"OggS\0") + (0 if num_bytes is None else 4 + num_bytes)])
    assert problem(path).startswith("truncated audio: ")


def test_streamed_flac_without_a_number_of_samples_is_said_to_lack_it(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, NOISE, RATE_HZ)
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0  # the last 36 bits before the checksum of STREAMINFO
    content[22:26] = bytes(4)
    path.write_bytes(content)
    assert problem(path).startswith("unknown length: ")
