"""Each effect does what it says, to the samples it is given, and depends on its generator alone."""

import random
from collections import Counter

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, Recording

from asr.data.features import LogMel
from asr.data.loading.augmentation import (
    AddBabble,
    AddNoise,
    AudioAugmentation,
    Reverberate,
    SpeedPerturb,
    Telephone,
    Volume,
    mix,
)
from asr.data.loading.loader import SpeechDataset, Workers, load_batches
from asr.data.manifests.lhotse_manifests import to_line
from asr.data.preparation.prepared import IndexedCutSet
from asr.text.tokenizer import CharacterTokenizer
from werdict.errors import UnusableFile

RATE_HZ = 8000
SAMPLES = np.random.default_rng(0).normal(size=RATE_HZ).astype(np.float32) * 0.1


@pytest.fixture
def noise(tmp_path):
    """Return a folder with a second of noise at one rate, and a short tone at another, a folder deeper."""
    (tmp_path / "noise" / "deeper").mkdir(parents=True)
    soundfile.write(tmp_path / "noise" / "a.wav", np.random.default_rng(1).normal(size=16_000) * 0.1, 16_000)
    soundfile.write(tmp_path / "noise" / "deeper" / "b.flac", 0.1 * np.sin(np.arange(4000) * 0.3), 11_025)
    return tmp_path / "noise"


@pytest.fixture
def cut(tmp_path):
    soundfile.write(tmp_path / "a.wav", SAMPLES, RATE_HZ)
    return Recording.from_file(tmp_path / "a.wav").to_cut()


@pytest.fixture
def cuts(tmp_path):
    found = []
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", np.roll(SAMPLES, 500 * number)[: 4000 + 900 * number], RATE_HZ)
        found.append(Recording.from_file(tmp_path / f"{number}.wav", recording_id=f"r{number}").to_cut())
    return found


def energy(samples):
    return float(np.square(samples, dtype=np.float64).sum())


def tone(frequency_hz):
    return np.sin(2 * np.pi * frequency_hz * np.arange(RATE_HZ) / RATE_HZ).astype(np.float32)


def all_effects(noise):
    return [
        Reverberate(1.0),
        AddNoise(1.0, str(noise)),
        AddBabble(1.0),
        Telephone(1.0),
        Volume(1.0),
    ]


@pytest.mark.parametrize("snr_db", [-5.0, 0.0, 12.5])
def test_noise_has_the_energy_that_the_ratio_says(snr_db):
    noise = np.random.default_rng(2).normal(size=RATE_HZ) * 7
    added = mix(SAMPLES, noise, snr_db) - SAMPLES
    assert 10 * np.log10(energy(SAMPLES) / energy(added)) == pytest.approx(snr_db, abs=1e-6)
    assert np.corrcoef(added, noise)[0, 1] == pytest.approx(1)


def test_effects_keep_the_length_and_repeat_with_the_same_generator(noise, cuts):
    augmentation = AudioAugmentation(None, *all_effects(noise)).of_corpus(cuts)
    for effect in augmentation.others:
        once, again, other = (effect(SAMPLES, RATE_HZ, np.random.default_rng(seed)) for seed in (3, 3, 4))
        assert once.shape == SAMPLES.shape
        assert np.array_equal(once, again)
        assert not np.array_equal(once, SAMPLES)
        assert isinstance(effect, Telephone) or not np.array_equal(once, other)


def test_noise_of_any_length_and_rate_is_drawn_from_all_files(noise):
    effect = AddNoise(1.0, str(noise), snr_db=(0.0, 0.0))
    assert [name for name, *_ in effect.files.contents] == ["a.wav", "deeper/b.flac"]
    effect.files.check()
    heard = set()
    for seed in range(12):
        added = effect(SAMPLES, RATE_HZ, np.random.default_rng(seed)) - SAMPLES
        assert energy(added) == pytest.approx(energy(SAMPLES), rel=1e-4)
        spectrum = np.abs(np.fft.rfft(added)) ** 2
        heard.add("tone" if spectrum.max() > 0.2 * spectrum.sum() else "noise")
    assert heard == {"tone", "noise"}


def test_what_is_made_up_of_a_room_decays_by_60_db_in_the_time_given():
    click = np.zeros(2 * RATE_HZ, dtype=np.float32)
    click[100] = 1.0
    room = Reverberate(1.0, rt60_s=(0.5, 0.5), drr_db=(0.0, 0.0))
    wet = room(click, RATE_HZ, np.random.default_rng(5))
    assert np.abs(wet).argmax() == 100
    assert not wet[:99].any() or np.abs(wet[:99]).max() < 1e-6
    tail = wet[101:]
    assert energy(tail) == pytest.approx(wet[100] ** 2, rel=1e-3)
    left_db = 10 * np.log10(np.cumsum(np.square(tail[::-1]))[::-1][: round(0.4 * RATE_HZ)] / energy(tail))
    slope = np.polyfit(np.arange(len(left_db)) / RATE_HZ, left_db, 1)[0]
    assert -60 / slope == pytest.approx(0.5, rel=0.1)
    assert energy(wet) == pytest.approx(energy(click), rel=1e-3)


def test_a_recorded_room_begins_at_its_direct_sound(tmp_path):
    response = np.zeros(400)
    response[[37, 137]] = 0.8, 0.4
    (tmp_path / "rooms").mkdir()
    soundfile.write(tmp_path / "rooms" / "a.wav", response, RATE_HZ, subtype="FLOAT")
    room = Reverberate(1.0, str(tmp_path / "rooms"))
    room.files.check()
    wet = room(SAMPLES, RATE_HZ, np.random.default_rng(0))
    expected = SAMPLES + 0.5 * np.concatenate([np.zeros(100), SAMPLES[:-100]])
    assert np.allclose(wet, expected * np.sqrt(energy(SAMPLES) / energy(expected)), atol=1e-5)


@pytest.mark.parametrize(
    ("frequency_hz", "least_db", "most_db"), [(60, -200, -30), (1000, -0.5, 0.5), (3900, -200, -8)]
)
def test_a_telephone_passes_the_middle_alone(frequency_hz, least_db, most_db):
    heard = Telephone(1.0)(tone(frequency_hz), RATE_HZ, np.random.default_rng(0))[RATE_HZ // 2 :]
    assert least_db < 10 * np.log10(energy(heard) / energy(tone(frequency_hz)[RATE_HZ // 2 :])) < most_db


def test_each_effect_falls_on_its_share_of_the_cuts(cuts):
    augmentation = AudioAugmentation(telephone=Telephone(0.25))
    rng = random.Random(0)
    changed = sum(augmentation(cuts[0], rng) is not cuts[0] for _ in range(2000))
    assert 420 < changed < 580
    assert AudioAugmentation()(cuts[0], rng) is cuts[0]
    assert AudioAugmentation(volume=Volume(0.0))(cuts[0], rng) is cuts[0]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_features_depend_on_the_seed_alone_and_not_on_workers(noise, cuts, num_workers):
    def features(workers, seed):
        augmentation = AudioAugmentation(SpeedPerturb([0.9, 1.0]), *all_effects(noise)).of_corpus(cuts)
        dataset = SpeechDataset(LogMel(20, RATE_HZ), CharacterTokenizer(["<blk>", "<unk>", "a"]), augmentation)
        plan = [(seed, CutSet.from_cuts(cuts)), (seed + 1, CutSet.from_cuts(cuts[:2]))]
        return [batch.features for batch in load_batches(dataset, plan, Workers(workers))]

    alone, with_workers, other = features(0, 1), features(num_workers, 1), features(0, 5)
    assert all(torch.equal(a, b) for a, b in zip(alone, with_workers, strict=True))
    assert alone[0].shape != other[0].shape or not torch.equal(alone[0], other[0])


def test_workers_that_share_a_file_of_cuts_hear_the_same_babble(cuts, tmp_path):
    """Workers are forked anew for each epoch, from a process that has the file open by then."""
    IndexedCutSet.write(tmp_path / "cuts", ((to_line(cut).encode(), cut.duration) for cut in cuts * 50))
    indexed = IndexedCutSet(tmp_path / "cuts")

    def features(workers):
        augmentation = AudioAugmentation(babble=AddBabble(1.0)).of_corpus(indexed)
        dataset = SpeechDataset(LogMel(20, RATE_HZ), CharacterTokenizer(["<blk>", "<unk>", "a"]), augmentation)
        plan = ((number, CutSet.from_cuts([indexed[number]])) for number in range(40))
        return [batch.features for batch in load_batches(dataset, plan, Workers(workers))]

    alone = features(0)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(alone, features(2), strict=True))


def test_noise_that_cannot_be_used_is_refused_by_name(noise, tmp_path):
    with pytest.raises(ValueError, match=r"augment\.audio\.noise\.folder=.*nowhere"):
        AddNoise(0.5, str(tmp_path / "nowhere")).files.check()
    (noise / "broken.wav").write_bytes(b"no audio at all")
    with pytest.raises(ValueError, match=r"augment\.audio\.noise\.folder: .*broken\.wav"):
        AddNoise(0.5, str(noise)).files.check()


def test_noise_that_is_not_finite_is_named_when_it_is_read(tmp_path):
    soundfile.write(tmp_path / "nan.wav", np.full(8000, np.nan, np.float32), 8000, subtype="FLOAT")
    files = AddNoise(0.5, str(tmp_path)).files
    files.check()
    with pytest.raises(UnusableFile, match=r"noise\.folder: .*nan\.wav: .*not finite"):
        files.read(8000, np.random.default_rng(0), 100)


def test_impulse_responses_that_would_silence_speech_are_named(tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(800), 8000)
    files = Reverberate(1.0, str(tmp_path)).files
    files.check()
    with pytest.raises(UnusableFile, match=r"room\.folder: .*silent\.wav: .*only silence"):
        files.read(8000, np.random.default_rng(0), None)


def test_a_talker_whose_audio_is_gone_is_no_fault_of_those_beside_him(cuts, tmp_path):
    soundfile.write(tmp_path / "gone.wav", SAMPLES, RATE_HZ)
    gone = Recording.from_file(tmp_path / "gone.wav").to_cut()
    (tmp_path / "gone.wav").unlink()
    babble = AudioAugmentation(babble=AddBabble(1.0, (3, 3))).of_corpus([gone, *cuts]).babble
    assert np.isfinite(babble(SAMPLES, RATE_HZ, np.random.default_rng(0))).all()
    alone = AudioAugmentation(babble=AddBabble(1.0)).of_corpus([gone]).babble
    assert np.array_equal(alone(SAMPLES, RATE_HZ, np.random.default_rng(0)), SAMPLES)


def test_the_digest_of_files_changes_with_them(noise):
    augmentation = AudioAugmentation(noise=AddNoise(0.5, str(noise)))
    before = augmentation.digest()
    assert before == AudioAugmentation(noise=AddNoise(0.1, str(noise))).digest() != ""
    soundfile.write(noise / "a.wav", np.zeros(99), 16_000)
    shorter = AudioAugmentation(noise=AddNoise(0.5, str(noise))).digest()
    soundfile.write(noise / "a.wav", np.full(99, 0.5), 16_000)
    assert len({before, shorter, AudioAugmentation(noise=AddNoise(0.5, str(noise))).digest()}) == 3
    assert AudioAugmentation(volume=Volume()).digest() == ""


def test_every_speed_is_drawn_equally_often_and_changes_the_length(cut):
    rng = random.Random(0)
    perturb = SpeedPerturb((0.8, 1.0, 1.25))
    lengths = Counter(perturb(cut, rng).num_samples for _ in range(600))
    assert set(lengths) == {6400, 8000, 10_000}
    assert all(150 < count < 250 for count in lengths.values())
    assert SpeedPerturb([1.25])(cut, rng).load_audio().shape == (1, 6400)


def test_the_slowest_speed_makes_every_cut_as_long_as_it_can_be(cut):
    slowest = SpeedPerturb((0.8, 1.0, 1.25)).slowest()
    assert {slowest(cut, random.Random(seed)).num_samples for seed in range(9)} == {10_000}
