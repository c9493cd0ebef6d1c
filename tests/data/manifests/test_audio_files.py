"""Audio files are found, read and cut in pauses, also those in memory."""

import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asr.commands import api
from asr.data.manifests.audio_files import (
    ENDINGS,
    FRAME_S,
    MEDIA_ENDINGS,
    as_file,
    audio_files,
    find_audio,
    groups_of,
    levels,
    mono_samples,
    parts_between_pauses,
)
from asr.inference.transcripts import Transcript


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.wav", "a.wav", "[c].wav", "c.wav", "deep/ünlü 1.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, np.ones(800) * 0.1, 8000)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["b.wav", "a.wav"], ["b.wav", "a.wav"]),
        (["b.wav", "[ab].wav"], ["b.wav", "a.wav"]),
        (["[c].wav"], ["[c].wav"]),
        (["deep", "c.wav"], ["deep/ünlü 1.wav", "c.wav"]),
        (["."], ["[c].wav", "a.wav", "b.wav", "c.wav", "deep/ünlü 1.wav"]),
    ],
)
def test_patterns_name_each_file_once_in_order(folder, patterns, names):
    assert [str(path) for path in find_audio(patterns)] == names


def test_a_folder_holds_audio_at_any_depth_but_not_behind_links_or_hidden(folder):
    (folder / "deep" / "notes.txt").write_text("no audio")
    (folder / ".hidden").mkdir()
    for name in (".hidden/d.wav", ".d.wav", "deep/UPPER.FLAC"):
        soundfile.write(folder / name, np.ones(800) * 0.1, 8000)
    (folder / "deep" / "again").symlink_to(folder)
    assert [str(path) for path in find_audio(["deep"])] == ["deep/UPPER.FLAC", "deep/ünlü 1.wav"]
    assert set(find_audio(["."]).values()) == {Path()}
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="'empty'"):
        find_audio(["empty"])


def test_long_files_are_cut_in_pauses_of_their_own_channel(folder):
    rate_hz = 8000
    tone = 0.3 * np.sin(np.arange(rate_hz) * 0.5)
    silence = np.zeros(rate_hz)
    first, second = np.concatenate([tone, silence, silence]), np.concatenate([silence, silence, tone])
    soundfile.write(folder / "two.wav", np.stack([first, second], axis=1), rate_hz)
    ((_, whole),), _ = audio_files([Path("two.wav")], max_s=3.0)
    assert [(cut.id, cut.channel, cut.start, cut.duration) for cut in whole] == [("two.wav//channel 1", 0, 0, 3)]
    ((_, parts),), _ = audio_files([Path("two.wav")], max_s=2.0, each_channel=True)
    assert [cut.channel for cut in parts] == [0, 1]
    assert [cut.start for cut in parts] == pytest.approx([0, 1.85], abs=0.03)
    assert [cut.end for cut in parts] == pytest.approx([1.15, 3], abs=0.03)


def test_of_a_good_mp3_no_errors_of_its_decoder_are_printed(folder, capfd):
    rng = np.random.default_rng(0)
    loudness = np.repeat(rng.choice([0.0, 0.001, 0.5], size=400), 1600)
    soundfile.write(folder / "long.mp3", loudness * rng.normal(size=len(loudness)) * 0.3, 16_000)
    ((_, cuts),), _ = audio_files([Path("long.mp3")], max_s=2.0)
    assert all(len(cut.load_audio()[0]) for cut in cuts)
    os.write(2, b"others are still printed")
    assert (len(cuts) > 10, capfd.readouterr().err) == (True, "others are still printed")


@pytest.mark.parametrize(("name", "codec", "rate_hz"), [("a.m4a", "aac", 16_000), ("a.webm", "libopus", 48_000)])
def test_audio_of_media_files_is_read_and_what_is_missing_of_it_is_said(folder, name, codec, rate_hz):
    av = pytest.importorskip("av")
    with av.open(name, "w") as media:
        stream = media.add_stream(codec, rate=rate_hz, layout="stereo")
        samples = np.stack([np.zeros(3 * rate_hz), np.sin(np.arange(3 * rate_hz) / 9)]) * 0.3
        frame = av.AudioFrame.from_ndarray(samples.astype(np.float32), format="fltp", layout="stereo")
        frame.sample_rate = rate_hz
        media.mux([packet for one in (frame, None) for packet in stream.encode(one)])
    content = Path(name).read_bytes()
    Path("playlist.m4a").write_text("#EXTM3U\n#EXTINF:1,\na.wav\n")
    Path("half.webm").write_bytes(content[: len(content) // 2])
    files = [Path(name), Path("half.webm"), Path("playlist.m4a")]
    ((path, cuts),), unread = audio_files(files, 5.0, each_channel=True, folder=folder)
    assert path == Path(name)
    assert len(list(groups_of([Path(name)] * 3, max_files=9, max_s=7.0))) == 2
    levels = [np.sqrt(np.mean(cut.load_audio() ** 2)) for cut in cuts]
    assert levels == pytest.approx([0.0, 0.3 / 2**0.5], abs=0.02)
    assert [path for path, _ in unread] == ["half.webm", "playlist.m4a"]


def test_without_pyav_media_files_are_named_with_what_reads_them(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    Path("a.mp4").write_bytes(b"some")
    files = find_audio(["."], (*ENDINGS, *MEDIA_ENDINGS))
    read, unread = audio_files([*files], 5.0, folder=folder)
    assert len(read) == 5
    assert [(path, "werdict[media]" in why) for path, why in unread] == [("a.mp4", True)]
    assert len(list(groups_of([*files], max_files=9, max_s=10.0))) == 1


@pytest.mark.parametrize("pattern", ["/dev/zero", "nowhere.wav"])
def test_a_pattern_that_names_no_file_is_refused(folder, pattern):
    with pytest.raises(ValueError, match=re.escape(pattern)):
        find_audio(["a.wav", pattern])


def test_unreadable_files_are_listed_with_their_reason_and_the_others_are_cuts(folder):
    (folder / "text.wav").write_bytes(b"no audio at all")
    (folder / "empty.wav").write_bytes(b"")
    soundfile.write(folder / "nothing.wav", np.zeros(0), 8000)
    read, unreadable = audio_files([*find_audio(["*.wav", "deep/*"])], max_s=5.0)
    cuts = [cut for _, of_file in read for cut in of_file]
    assert [cut.id for cut in cuts] == ["[c].wav", "a.wav", "b.wav", "c.wav", "deep/ünlü 1.wav"]
    assert [cut.duration for cut in cuts] == [0.1] * 5
    reasons = dict(unreadable)
    assert set(reasons) == {"text.wav", "empty.wav", "nothing.wav"}
    assert "Format not recognised" in reasons["text.wav"]
    assert "empty audio" in reasons["nothing.wav"]


def test_files_are_taken_together_up_to_a_number_and_a_length(folder):
    for name, duration_s in (("1", 4), ("2", 5), ("3", 20), ("4", 2)):
        soundfile.write(folder / f"{name}.wav", np.zeros(duration_s * 1000), 1000)
    (folder / "5.wav").write_bytes(b"no audio at all")  # has no length, and is told of later
    files = [folder / f"{number}.wav" for number in range(1, 6)]
    by_length = [[file.stem for file in group] for group in groups_of(files, max_files=9, max_s=10.0)]
    assert by_length == [["1", "2"], ["3"], ["4", "5"]]
    assert [len(group) for group in groups_of(files[:2] * 3, max_files=4, max_s=100.0)] == [4, 2]
    assert not list(groups_of([], max_files=4, max_s=100.0))


RATE_HZ = 8000
SPEECH_DB, QUIET_DB = -20.0, -70.0


def recording(*lengths_s: float, quiet_db: float = QUIET_DB) -> np.ndarray:
    """Levels of speech and pauses in turns, with some noise in both."""
    noise = np.random.default_rng(0)
    turns = [np.full(round(length / FRAME_S), (quiet_db, SPEECH_DB)[n % 2 == 0]) for n, length in enumerate(lengths_s)]
    joined = np.concatenate(turns)
    return (joined + noise.normal(0, 2, len(joined))).astype(np.float32)


def test_levels_are_those_of_the_file_however_it_is_read(tmp_path, monkeypatch):
    samples = (
        np.random.default_rng(0).uniform(-1, 1, (RATE_HZ * 3 + 37, 2)) * np.linspace(0, 1, RATE_HZ * 3 + 37)[:, None]
    )
    soundfile.write(tmp_path / "a.wav", samples, RATE_HZ, subtype="FLOAT")
    whole = levels(tmp_path / "a.wav", channel=1)
    frames = samples[: RATE_HZ * 3, 1].reshape(300, 80)
    np.testing.assert_allclose(whole, 10 * np.log10(np.square(frames).mean(axis=1) + 1e-10), atol=1e-3)
    monkeypatch.setattr("asr.data.manifests.audio_files.MAX_READ", 1234)
    np.testing.assert_array_equal(levels(tmp_path / "a.wav", channel=1), whole)


def test_parts_hold_speech_and_some_of_the_pauses_beside_it():
    parts = parts_between_pauses(recording(1.0, 1.0, 2.0, 3.0, 1.5), max_s=5.0)
    assert np.array(parts) == pytest.approx(np.array([(0, 1.15), (1.85, 4.15), (6.85, 8.5)]), abs=0.04)


def test_short_pauses_are_cut_only_where_a_part_is_too_long():
    level_db = recording(1.0, 0.2, 1.0, 0.2, 1.0, 0.2, 1.0)
    assert len(parts_between_pauses(level_db, max_s=5.0)) == 1
    parts = parts_between_pauses(level_db, max_s=3.0)
    assert [parts[0][1], parts[1][0]] == pytest.approx([2.3, 2.3], abs=0.08)


@pytest.mark.parametrize("level_db", [np.zeros(0), np.full(1, -100.0), np.full(720_000, -100.0), recording(0, 60)])
def test_silence_has_no_parts(level_db):
    assert parts_between_pauses(level_db.astype(np.float32), max_s=5.0) == []


def test_speech_is_found_where_the_level_of_the_recording_changes():
    quiet = recording(*[1.0, 1.0] * 60) - 30
    loud = recording(*[1.0, 1.0] * 60)
    parts = parts_between_pauses(np.concatenate([quiet, loud]), max_s=5.0)
    assert len(parts) == pytest.approx(120, abs=3)


@pytest.mark.parametrize("rate_hz", [11_025, 16_000, 22_050])  # of some, 10 ms are no whole number of samples
@pytest.mark.parametrize("end_s", [1.0, 10.0])
def test_parts_are_where_the_speech_is_at_every_rate(tmp_path, rate_hz, end_s):
    noise = np.random.default_rng(0).normal(size=4 * rate_hz)
    period = noise * np.repeat([0.1, 1e-4], 2 * rate_hz)
    end = noise[:rate_hz] * 0.1 if end_s == 1.0 else np.tile(noise, 3)[: 10 * rate_hz] * 1e-4
    soundfile.write(tmp_path / "a.wav", np.concatenate([*[period] * 60, end]), rate_hz)
    (((_, cuts),), unreadable) = audio_files([tmp_path / "a.wav"], max_s=30.0)
    assert not unreadable
    assert all(any(cut.start <= 4 * n and 4 * n + 2 <= cut.end for cut in cuts) for n in range(60))
    assert cuts[-1].end <= 240 + end_s


@pytest.mark.parametrize("background_db", [-80.0, -60.0, -50.0])
def test_a_speaker_who_is_25_db_softer_than_another_is_heard(background_db):
    rng, turns = np.random.default_rng(0), []
    for number in range(60):
        speech = rng.normal(SPEECH_DB - 25 * (number % 2) - 3, 4, 200)  # syllables
        turns += [np.logaddexp(speech * np.log(10) / 10, background_db * np.log(10) / 10) * 10 / np.log(10)]
        turns += [np.full(100, background_db)]
    level_db = (np.concatenate(turns) + rng.normal(0, 0.5, 18_000)).astype(np.float32)
    covered = np.zeros(len(level_db), dtype=bool)
    for start_s, end_s in parts_between_pauses(level_db, max_s=10.0):
        covered[round(start_s / FRAME_S) : round(end_s / FRAME_S)] = True
    turn = covered.reshape(60, 300)
    assert turn[1::2, :200].mean() > 0.97
    assert turn[:, 230:270].mean() < 0.03


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_loud_is_in_one_part_alone_and_none_is_too_long(seed):
    drawn = np.random.default_rng(seed)
    lengths_s = drawn.exponential(drawn.uniform(0.1, 2.0), size=drawn.integers(1, 200)).round(2)
    max_s = float(drawn.uniform(1.0, 10.0))
    level_db = recording(*lengths_s)
    parts = parts_between_pauses(level_db, max_s)
    covered = np.zeros(len(level_db), dtype=int)
    for start_s, end_s in parts:
        assert 0 < end_s - start_s <= max_s + 1e-6
        covered[round(start_s / FRAME_S) : round(end_s / FRAME_S)] += 1
    assert covered.max(initial=0) <= 1
    speech = np.convolve(level_db > -30, np.ones(15), "same") == 15
    assert covered[speech].all()


HALF = np.full(40, 0.5)


@pytest.mark.parametrize(
    "samples",
    [
        HALF,
        HALF.astype(np.float16),
        (HALF * 2**15).astype(np.int16),
        (HALF * 2**31).astype(np.int32),
        torch.from_numpy(HALF).bfloat16().requires_grad_(),
        torch.tensor((HALF * 2**15), dtype=torch.int16),
        np.stack([HALF, 0 * HALF]),
        np.stack([HALF, 0 * HALF], axis=1),
        torch.from_numpy(HALF)[None],
    ],
    ids=lambda samples: f"{samples.dtype} {tuple(samples.shape)}",
)
def test_samples_of_any_type_are_those_of_the_first_channel(samples):
    mono = mono_samples(samples)
    assert (mono.dtype, mono.tolist()) == (np.float32, HALF.tolist())


@pytest.mark.parametrize("samples", [np.arange(9), np.zeros((2, 3, 4)), np.array(["a"]), np.array(0.5)], ids=repr)
def test_other_arrays_are_refused(samples):
    with pytest.raises(ValueError, match="given"):
        mono_samples(samples)


def test_files_keep_their_bytes_and_samples_their_values(tmp_path):
    samples = np.random.default_rng(0).normal(size=100).astype(np.float32)
    assert soundfile.read(as_file(samples, 8000, tmp_path / "0"), dtype="float32")[0].tolist() == samples.tolist()
    assert as_file(io.BytesIO(b"x"), None, tmp_path / "1").read_bytes() == b"x"
    for audio, rate_hz in ((samples, None), (io.StringIO("x"), None), (3, 8000)):
        with pytest.raises(ValueError, match=r"rate_hz|audio"):
            as_file(audio, rate_hz, tmp_path / "2")


def test_transcripts_are_named_as_the_recordings_are(monkeypatch, tmp_path):
    (tmp_path / "a.wav").touch()
    monkeypatch.setattr(api, "transcriber_of", lambda *_: lambda files: ([Transcript(file, ()) for file in files], []))
    recognizer = api.SpeechRecognizer(None)
    with open(tmp_path / "a.wav", "rb") as file:
        found = recognizer.transcribe(["b.wav", HALF, file, io.BytesIO(b"")], rate_hz=8000)
    assert [str(one.path) for one in found] == ["b.wav", "audio[1]", str(tmp_path / "a.wav"), "audio[3]"]
    assert [str(one.path) for one in recognizer.transcribe("b.wav")] == ["b.wav"]
