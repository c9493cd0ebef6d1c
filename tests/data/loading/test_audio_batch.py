"""Features computed on the device of the recognizer are those of the loader's workers."""

import dataclasses
import pickle

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, Recording, SupervisionSegment

from asr.data.features import LogMel
from asr.data.loading.augmentation import AudioAugmentation, Reverberate, SpeedPerturb
from asr.data.loading.loader import AudioBatch, Batch, SpeechDataset, Workers, load_batches
from asr.text.tokenizer import CharacterTokenizer

RATE_HZ = 8000
IN_WORKERS, ON_DEVICE = (LogMel(20, RATE_HZ, on_device=on_device) for on_device in (False, True))
TOKENIZER = CharacterTokenizer(["<blk>", "<unk>", "a", "b"])
AUGMENTATIONS = {
    "none": None,
    "speed": SpeedPerturb((0.9, 1.1)),
    "room": AudioAugmentation(room=Reverberate(probability=1.0), speed=SpeedPerturb()),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture
def cuts(tmp_path):
    made = []
    for index, rate_hz in enumerate((8000, 8000, 16_000, 11_025)):
        rng = np.random.default_rng(index)
        path = tmp_path / f"{index}.wav"
        soundfile.write(path, rng.normal(size=rate_hz // 2 + 900 * index) * 0.1, rate_hz)
        cut = Recording.from_file(path, recording_id=f"r{index}").to_cut().with_id(f"cut{index}")
        cut.supervisions = [SupervisionSegment(f"s{index}", cut.recording_id, 0, cut.duration, text="ab")]
        made.append(cut)
    return CutSet.from_cuts(made)


def assert_same(found: Batch, expected: Batch) -> None:
    assert type(found) is Batch
    for field in dataclasses.fields(Batch):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "features":
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1e-4)
        elif isinstance(ours, torch.Tensor):
            assert torch.equal(ours.cpu(), theirs), field.name
        else:
            assert ours == theirs, field.name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("augmentation", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_a_batch_of_audio_becomes_the_batch_of_the_workers(cuts, augmentation, device):
    expected = SpeechDataset(IN_WORKERS, TOKENIZER, augmentation)[(3, cuts)]
    batch = SpeechDataset(ON_DEVICE, TOKENIZER, augmentation)[(3, cuts)]
    assert isinstance(batch, AudioBatch)
    assert batch.num_frames.tolist() == expected.num_frames.tolist()
    assert batch.features.numel() == 0
    assert_same(batch.to(device), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_send_audio(cuts, num_workers):
    dataset = SpeechDataset(ON_DEVICE, TOKENIZER)
    (batch,) = load_batches(dataset, [(0, cuts)], Workers(num_workers))
    assert_same(batch.to("cpu"), SpeechDataset(IN_WORKERS, TOKENIZER)[(0, cuts)])
    assert len(pickle.dumps(batch)) < 1.2 * batch.audio.numel() * 4 + 5000  # no filters in each batch


def test_what_cannot_be_read_is_left_out_and_named(cuts, tmp_path):
    samples, _ = soundfile.read(tmp_path / "1.wav")
    samples[100] = np.inf
    soundfile.write(tmp_path / "1.wav", samples, RATE_HZ, subtype="FLOAT")
    (tmp_path / "3.wav").unlink()
    batch = SpeechDataset(ON_DEVICE, TOKENIZER)[(0, cuts)]
    assert [name for name, _ in batch.skipped] == ["cut1", "cut3"]
    assert "not finite" in batch.skipped[0][1]
    assert len(batch.to("cpu").features) == 2
    for index in (0, 2):
        (tmp_path / f"{index}.wav").unlink()
    empty = SpeechDataset(ON_DEVICE, TOKENIZER)[(0, cuts)].to("cpu")
    assert len(empty) == 0
    assert len(empty.skipped) == 4


def test_audio_that_is_too_short_is_refused_as_by_the_workers(cuts, tmp_path):
    soundfile.write(tmp_path / "0.wav", np.ones(50), RATE_HZ)
    short = Recording.from_file(tmp_path / "0.wav", recording_id="short").to_cut()
    reasons = [SpeechDataset(f, TOKENIZER)[(0, CutSet.from_cuts([short]))].skipped for f in (IN_WORKERS, ON_DEVICE)]
    assert reasons[0] == reasons[1]
    assert "too short: 50 samples" in reasons[0][0][1]


def test_features_on_disk_cannot_be_computed_on_the_device():
    with pytest.raises(ValueError, match="choose precomputed=true or on_device=true"):
        LogMel(precomputed=True, on_device=True)
