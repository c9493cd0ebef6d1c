import pickle
import random
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, NumpyFilesWriter, Recording, SupervisionSegment
from lhotse.utils import fastcopy

from asr.data.features import LogMel, PrecomputedFeatures
from asr.data.loading.augmentation import SpeedPerturb
from asr.data.loading.loader import EvaluationLoader, LoaderFactory, SpeechDataset, Workers, load_batches
from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.text.tokenizer import CharacterTokenizerTrainer

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
def one_thread():
    """Read with one thread, as workers do: resampling rounds differently with several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_features_that_a_corpus_brings_are_float32_and_as_wide_as_told(cuts, features, tmp_path):
    cut = next(iter(cuts)).compute_and_store_features(features.extractor, NumpyFilesWriter(tmp_path / "features"))
    file = next((tmp_path / "features").rglob("*.npy"))
    np.save(file, np.load(file).astype(np.float16))
    assert PrecomputedFeatures(20)(cut).dtype == np.float32
    assert PrecomputedFeatures(20)(cut).shape == (50, 20)
    with pytest.raises(ValueError, match=r"cut0.* has features of shape \(50, 20\)"):
        PrecomputedFeatures(40)(cut)


def test_a_cut_without_speaker_or_transcript_is_read(cuts, tokenizer, features):
    bare, silent, double = (cut for _, cut in zip(range(3), cuts, strict=False))
    segment = silent.supervisions[0]
    bare.supervisions = []
    silent.supervisions = [fastcopy(segment, text=None, speaker=None)]
    double.supervisions = [fastcopy(segment, text=text) for text in ("a", "b")]
    batch = SpeechDataset(features, tokenizer)[(0, CutSet.from_cuts([bare, silent, double]))]
    assert batch.texts == ("", "", "a b")
    assert batch.speakers == (None, None, "speaker1")
    assert batch.num_tokens.tolist()[:2] == [0, 0]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 7])
def test_workers_do_not_change_what_is_perturbed(cuts, tokenizer, features, num_workers, one_thread):
    order = DurationBucketSampler(cuts, BucketingConfig(1.5, num_buckets=2), seed=5)
    dataset = SpeechDataset(features, tokenizer, SpeedPerturb())
    batches = list(load_batches(dataset, order.epoch(1), Workers(num_workers, prefetch=1)))
    expected = [dataset[item] for item in order.epoch(1)]
    assert [(batch.seed, batch.ids) for batch in batches] == [(batch.seed, batch.ids) for batch in expected]
    assert all(torch.equal(a.features, b.features) for a, b in zip(batches, expected, strict=True))


def test_a_worker_shares_one_tensor_of_a_batch_and_sends_the_others_in_its_message(
    cuts, tokenizer, features, monkeypatch
):
    batch, shared = SpeechDataset(features, tokenizer)[(1, cuts)], []
    reduce = ForkingPickler._extra_reducers[torch.Tensor]
    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, lambda x: shared.append(x) or reduce(x))
    received = pickle.loads(ForkingPickler.dumps(batch))
    assert [tensor.data_ptr() for tensor in shared] == [batch.features.data_ptr()]
    for name, value in vars(batch).items():
        there = getattr(received, name)
        assert torch.equal(there, value) if isinstance(value, torch.Tensor) else there == value


def test_a_recipe_reads_training_shuffled_and_perturbed_and_evaluation_whole(cuts, tokenizer, features, tmp_path):
    loaders = LoaderFactory(features, tokenizer, BucketingConfig(1.5, num_buckets=2), Workers(0))
    augmentation = SpeedPerturb()
    dataset, order = loaders.training_data(cuts, 9, augmentation)
    assert (dataset.augmentation, order.seed, order.shuffle) == (augmentation, 9, True)
    loader = loaders.evaluation_loader(cuts)
    assert (loader.dataset.augmentation, loader.cut_sampler.shuffle) == (None, False)
    for file in tmp_path.glob("*.wav"):
        file.unlink()
    assert sorted(cut for batch in loader for cut, _ in batch.skipped) == [f"cut{index}" for index in range(6)]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_workers_do_not_change_what_is_read(cuts, tokenizer, features, num_workers):
    order = DurationBucketSampler(cuts, BucketingConfig(1.5, num_buckets=2), shuffle=False)
    dataset = SpeechDataset(features, tokenizer)
    batches = list(EvaluationLoader(dataset, order, Workers(num_workers)))
    assert sorted(cut for batch in batches for cut in batch.ids) == [f"cut{i}" for i in range(6)]
    expected = [dataset[item] for item in order.epoch(0)]
    assert [batch.ids for batch in batches] == [batch.ids for batch in expected]
    assert all(torch.equal(a.features, b.features) for a, b in zip(batches, expected, strict=True))


def test_ranks_share_the_cuts(cuts, tokenizer, features):
    order = DurationBucketSampler(cuts, BucketingConfig(1.0, num_buckets=2), shuffle=False)
    dataset = SpeechDataset(features, tokenizer)
    loader, ids = EvaluationLoader(dataset, order, Workers(0)), []
    loader.world_size = 2
    for loader.rank in range(2):
        ids += [cut for batch in loader for cut in batch.ids]
    assert sorted(ids) == [f"cut{i}" for i in range(6)]
