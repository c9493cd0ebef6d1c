"""Where long recordings are cut."""

import numpy as np
import pytest
import soundfile

from asr.data.manifests.audio_files import FRAME_S, audio_files, levels, parts_between_pauses

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
