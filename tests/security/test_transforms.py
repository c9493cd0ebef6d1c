"""Manifests that lie about rate or length, and transforms that would take more than their audio: left out by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.augmentation import DereverbWPE, Resample, ReverbWithImpulseResponse, Speed, Tempo, Volume
from lhotse.cut import PaddingCut
from lhotse.utils import fastcopy

from asr.data.features import LogMel
from asr.data.loading.dataset import SpeechDataset
from asr.data.manifests.audio_checks import audio_problem
from asr.data.manifests.decoding_limits import too_long
from asr.text.character import CharacterTokenizer
from tests.faults.spoken_corpus import write_audio
from tests.security.test_audio import silence

Make = Callable[[Path], Recording]

RATE_HZ = 8000
LOUD = [Volume(1.0)]


def second(folder: Path, **told: Any) -> Recording:
    """Return a second of noise, and what its manifest says instead."""
    write_audio(folder / "a.wav", rate_hz=RATE_HZ)
    return fastcopy(Recording.from_file(folder / "a.wav"), **told)


def hours(folder: Path, **told: Any) -> Recording:
    silence(folder / "long.flac", 7200)
    return fastcopy(Recording.from_file(folder / "long.flac"), **told)


def with_rir(make: Callable[[Path], Any], **options: Any) -> Make:
    def recording(folder: Path) -> Recording:
        return second(folder, transforms=[ReverbWithImpulseResponse(make(folder), **options)])

    return recording


def pipe(folder: Path) -> Recording:
    os.mkfifo(folder / "pipe")
    return Recording("x", [AudioSource("file", [0], str(folder / "pipe"))], RATE_HZ, RATE_HZ, 1.0)


def claims(make: Callable[..., Recording], rate_hz: int, duration_s: float, *transforms: Any) -> Make:
    told = {"sampling_rate": rate_hz, "duration": duration_s, "num_samples": round(duration_s * rate_hz)}
    return lambda folder: make(folder, **told, transforms=list(transforms) or None)


def reader() -> SpeechDataset:
    return SpeechDataset(LogMel(sampling_rate_hz=16_000), CharacterTokenizer(["<blk>", "<unk>", "a"]))


# how the recording is made, why it is not decoded
LIES = {
    "a pipe as impulse response": (with_rir(pipe), "unreadable audio: "),
    "an impulse response of two hours": (with_rir(hours), "impossible transforms: an impulse response of 7200.0 s"),
    "an impulse response of two hours that claims a second": (
        with_rir(claims(hours, RATE_HZ, 1.0)),
        "unexpected length: 57600000 samples, the manifest has 8000",
    ),
    "800 s at 1 Hz": (claims(second, 1, 800.0, *LOUD), "unexpected rate: 8000 Hz, the manifest has 1"),
    "two hours that claim 900 s at 16 Hz": (claims(hours, 16, 900.0, *LOUD), "unexpected rate: 8000 Hz"),
    "a chain from 1 to 4 Hz": (
        claims(second, 4, 2.0, Resample(1, 16_000), Resample(16_000, 4)),
        "unexpected rate: 8000 Hz, the manifest has 1",
    ),
    "800 s at 20 Hz": (claims(second, 20, 800.0, *LOUD), "unexpected rate: 8000 Hz, the manifest has 20"),
    "too long before its transforms": (
        claims(second, RATE_HZ, 1.0, Speed(1.5)),
        "truncated audio: 8000 of 12000 samples",
    ),
    "two hours that claim a second": (claims(hours, RATE_HZ, 1.0), "unexpected length: 57600000 samples"),
    "two hours that claim a second when slowed": (
        claims(hours, RATE_HZ, 1.0, Speed(0.5)),
        "unexpected length: 57600000 samples, the manifest has 4000",
    ),
}


@pytest.mark.parametrize(("make", "reason"), LIES.values(), ids=LIES)
def test_a_recording_that_lies_is_left_out_before_it_is_decoded(small_run, tmp_path, make, reason):
    good = second(tmp_path)
    lines = []
    for name, recording in (("good", good), ("bad", make(tmp_path))):
        segment = SupervisionSegment(name, name, 0.0, recording.duration, text="a")
        cut = MonoCut(name, 0.0, recording.duration, 0, [segment], recording=fastcopy(recording, id=name))
        lines.append(json.dumps(cut.to_dict()) + "\n")
    (tmp_path / "v.jsonl").write_text("".join(lines))
    words = (f"run={small_run.run_dir}", f"manifest={tmp_path / 'v.jsonl'}", f"output_dir={tmp_path / 'out'}")
    ended = small_run.run("evaluate", *words, "num_workers=0", timeout_s=30)
    assert ended.code == 0, ended.printed
    assert f"left out bad: {reason}" in ended.printed
    assert ended.peak_mb < 500


@pytest.mark.parametrize("make", [make for make, _ in LIES.values()], ids=LIES)
def test_a_prepared_cut_that_lies_is_never_decoded(tmp_path, monkeypatch, make):
    monkeypatch.setattr(AudioSource, "load_audio", lambda *_, **__: pytest.fail("it was decoded"))
    batch = reader()[(0, CutSet.from_cuts([make(tmp_path).to_cut()]))]
    assert (len(batch), len(batch.skipped)) == (0, 1)


# transforms of a second of audio, why they are not applied
REFUSED = {
    "a speed there and back": ([Speed(0.0125), Speed(0.0125), Speed(80.0), Speed(80.0)], "more than 43200000 samples"),
    "a tempo there and back": ([Tempo(0.0001), Tempo(10_000.0)], "more than 43200000 samples"),
    "a tempo backwards": ([Tempo(-1.0), Tempo(-1.0)], "a tempo of -1.0"),
    "a tempo without end": ([Tempo(float("inf"))], "a tempo of inf"),
    "rates that do not follow": ([Resample(RATE_HZ, 16_000)], "resampled to 16000 Hz is taken for 8000 Hz"),
    "volumes in a list": ([Volume([[1.0]] * 10**6)], "factor of Volume must be a number"),
    "a speed in words": ([Speed("0.9")], "factor of Speed must be a number"),
    "a million taps": ([DereverbWPE(taps=10**6)], "DereverbWPE with these options is not applied"),
    "an impulse response of a terabyte": (
        [ReverbWithImpulseResponse(PaddingCut("p", 1e6, RATE_HZ, 0, num_samples=10**12), rir_channels=[0])],
        "an impulse response that is no recording",
    ),
}


@pytest.mark.parametrize(("transforms", "reason"), REFUSED.values(), ids=REFUSED)
def test_transforms_that_would_take_more_than_their_audio_are_not_applied(tmp_path, transforms, reason):
    assert reason in (too_long(second(tmp_path, transforms=transforms).to_cut(), 16_000) or "")


def test_an_impulse_response_is_itself_a_plain_recording(tmp_path):
    room = second(tmp_path)
    for rir, reason in (
        (room.reverb_rir(room), "convolved with another"),
        (fastcopy(room, transforms=[Speed(-1.0)]), "an impulse response with impossible rate"),
    ):
        assert reason in (too_long(fastcopy(room, transforms=[ReverbWithImpulseResponse(rir)]).to_cut()) or "")
    many = fastcopy(room, duration=800.0, transforms=[ReverbWithImpulseResponse(room, rir_channels=[0] * 1000)])
    assert "in all channels" in (too_long(many.to_cut()) or "")


# what lhotse makes of a second at 8 kHz
APPLIED = {
    "resampled": lambda recording: recording.resample(16_000),
    "resampled to a rate that rounds": lambda recording: recording.resample(11_025),
    "resampled twice": lambda recording: recording.resample(22_050).resample(16_000),
    "faster": lambda recording: recording.perturb_speed(1.1),
    "slower, resampled and slower": lambda recording: recording.perturb_speed(0.9).resample(16_000).perturb_speed(0.9),
    "louder": lambda recording: recording.perturb_volume(2.0),
    "clipped at a higher rate": lambda recording: recording.clip_amplitude(oversampling=2),
    "compressed": lambda recording: recording.compress("gsm", 0.5),
    "in a room": lambda recording: recording.reverb_rir(recording),
    "in a room of another rate": lambda recording: recording.resample(16_000).reverb_rir(recording.resample(16_000)),
}


@pytest.mark.parametrize("change", APPLIED.values(), ids=APPLIED)
def test_transforms_of_lhotse_are_applied(tmp_path, change):
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8000) / 5) * 0.3, 8000)
    cut = change(Recording.from_file(tmp_path / "a.wav")).to_cut()
    assert (too_long(cut, 16_000), audio_problem(cut.recording)) == (None, None)
    assert reader()[(0, CutSet.from_cuts([cut]))].skipped == ()
