import random

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, Recording, SupervisionSegment

from asr.data.dataset import SpeechDataset
from asr.data.features import LogMel, StoredFeatures
from asr.data.loader import EvaluationLoader, Workers
from asr.data.perturb import SpeedPerturb
from asr.data.sampling import BatchSize, MicroBatches
from asr.text.character import CharacterTokenizerTrainer

RATE_HZ = 8000


@pytest.fixture
def cuts(tmp_path):
    rng = np.random.default_rng(0)
    made = []
    for index in range(6):
        path = tmp_path / f"{index}.wav"
        soundfile.write(path, rng.normal(size=RATE_HZ // 2 + 900 * index) * 0.1, RATE_HZ)
        cut = Recording.from_file(path, recording_id=f"r{index}").to_cut().with_id(f"cut{index}")
        text, speaker = "ab" * (index + 1), f"speaker{index % 2}"
        cut.supervisions = [
            SupervisionSegment(f"s{index}", cut.recording_id, 0, cut.duration, text=text, speaker=speaker)
        ]
        made.append(cut)
    return CutSet.from_cuts(made)


@pytest.fixture
def tokenizer():
    return CharacterTokenizerTrainer().train(["ab"])


@pytest.fixture
def features():
    return LogMel(num_mels=20, sampling_rate_hz=RATE_HZ)


def test_a_batch_holds_what_its_cuts_hold(cuts, tokenizer, features):
    batch = SpeechDataset(features, tokenizer)[(7, cuts)]
    assert batch.ids == tuple(f"cut{i}" for i in range(6))
    assert batch.texts[1] == "abab"
    assert batch.speakers[1] == "speaker1"
    assert batch.seed == 7
    assert batch.audio_s == pytest.approx(sum(cut.duration for cut in cuts))
    assert batch.num_tokens.tolist() == [2, 4, 6, 8, 10, 12]
    assert tokenizer.decode(batch.tokens[0, :2].tolist()) == "ab"
    assert batch.features.shape == (6, int(batch.num_frames.max()), 20)
    assert not batch.features[0, batch.num_frames[0] :].any()


def test_features_of_a_cut_do_not_depend_on_its_batch(cuts, tokenizer, features):
    dataset = SpeechDataset(features, tokenizer)
    together = dataset[(0, cuts)]
    for index, cut in enumerate(cuts):
        alone = dataset[(0, CutSet.from_cuts([cut]))]
        assert torch.equal(alone.features[0], together.features[index, : alone.num_frames[0]])


def test_perturbation_depends_on_the_seed_alone(cuts, tokenizer, features):
    dataset = SpeechDataset(features, tokenizer, SpeedPerturb((0.9, 1.1)))
    first = dataset[(1, cuts)]
    random.seed(99)
    again = dataset[(1, cuts)]
    assert torch.equal(first.features, again.features)
    lengths = {tuple(dataset[(seed, cuts)].num_frames.tolist()) for seed in range(5)}
    assert len(lengths) > 1
    assert first.audio_s == pytest.approx(sum(cut.duration for cut in cuts))


def test_an_unreadable_cut_is_left_out_and_named(cuts, tokenizer, features, tmp_path):
    (tmp_path / "2.wav").write_bytes(b"not audio")
    (tmp_path / "4.wav").unlink()
    batch = SpeechDataset(features, tokenizer)[(0, cuts)]
    assert [cut for cut, _ in batch.skipped] == ["cut2", "cut4"]
    assert len(batch) == 4


def test_a_cut_whose_features_are_not_finite_is_left_out_and_named(cuts, tokenizer, features, tmp_path):
    samples, _ = soundfile.read(tmp_path / "3.wav")
    samples[100] = np.inf
    soundfile.write(tmp_path / "3.wav", samples, RATE_HZ, subtype="FLOAT")
    batch = SpeechDataset(features, tokenizer)[(0, cuts)]
    assert [cut for cut, _ in batch.skipped] == ["cut3"]
    assert "not finite" in batch.skipped[0][1]
    assert batch.features.isfinite().all()


def test_a_skipped_cut_is_named_with_what_its_decoder_said(cuts, tokenizer, features, tmp_path):
    (tmp_path / "2.wav").write_bytes(b"not audio")
    (tmp_path / "4.wav").unlink()
    batch = SpeechDataset(features, tokenizer)[(0, cuts)]
    assert "Format not recognised" in batch.skipped[0][1]
    assert "4.wav" in batch.skipped[1][1]


def test_a_batch_of_nothing_is_an_error_in_training_and_empty_in_evaluation(cuts, tokenizer, features, tmp_path):
    for file in tmp_path.glob("*.wav"):
        file.unlink()
    with pytest.raises(RuntimeError, match="cut0"):
        SpeechDataset(features, tokenizer)[(0, cuts)]
    batch = SpeechDataset(features, tokenizer, may_be_empty=True)[(0, cuts)]
    assert len(batch) == 0
    assert len(batch.skipped) == 6


def test_audio_of_another_rate_is_resampled(cuts, tokenizer):
    batch = SpeechDataset(LogMel(num_mels=20, sampling_rate_hz=16_000), tokenizer)[(0, cuts)]
    assert batch.num_frames[0] == 50


def test_stored_features_are_read_and_checked(cuts, tokenizer, features):
    with pytest.raises(RuntimeError, match="no stored features"):
        SpeechDataset(StoredFeatures(20), tokenizer)[(0, cuts)]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_workers_do_not_change_what_is_read(cuts, tokenizer, features, num_workers):
    order = MicroBatches(cuts, BatchSize(1.5, num_buckets=2), shuffle=False)
    dataset = SpeechDataset(features, tokenizer)
    batches = list(EvaluationLoader(dataset, order, Workers(num_workers)))
    assert sorted(cut for batch in batches for cut in batch.ids) == [f"cut{i}" for i in range(6)]
    expected = [dataset[item] for item in order.epoch(0)]
    assert [batch.ids for batch in batches] == [batch.ids for batch in expected]
    assert all(torch.equal(a.features, b.features) for a, b in zip(batches, expected, strict=True))


def test_ranks_share_the_cuts(cuts, tokenizer, features):
    order = MicroBatches(cuts, BatchSize(1.0, num_buckets=2), shuffle=False)
    dataset = SpeechDataset(features, tokenizer)
    parts = [EvaluationLoader(dataset, order, Workers(0), rank, 2) for rank in range(2)]
    ids = [cut for part in parts for batch in part for cut in batch.ids]
    assert sorted(ids) == [f"cut{i}" for i in range(6)]


@pytest.mark.parametrize("options", [{"num_mels": 0}, {"sampling_rate_hz": 1}, {"frame_shift_ms": 0}])
def test_impossible_features_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        LogMel(**options)
