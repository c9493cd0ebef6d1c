"""Batches hold what their cuts hold, whoever computes the features, and workers end as they should."""

import ctypes
import dataclasses
import os
import pickle
import random
import signal
import subprocess
import threading
import time
from functools import partial
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, NumpyFilesWriter, Recording, SupervisionSegment
from lhotse.utils import fastcopy
from torch.utils.data import DataLoader

from asr.data.features import LogMel, PrecomputedFeatures
from asr.data.loading.augmentation import AudioAugmentation, Reverberate, SpeedPerturb
from asr.data.loading.loader import (
    AudioBatch,
    Batch,
    EvaluationLoader,
    LoaderFactory,
    SpeechDataset,
    WorkerContext,
    Workers,
    ignore_signals_except_parents,
    load_batches,
)
from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.text.tokenizer import CharacterTokenizer, CharacterTokenizerTrainer

RATE_HZ = 8000


def cuts_in(folder, *rates_hz):
    made = []
    for index, rate_hz in enumerate(rates_hz):
        path = folder / f"{index}.wav"
        soundfile.write(path, np.random.default_rng(index).normal(size=rate_hz // 2 + 900 * index) * 0.1, rate_hz)
        cut = Recording.from_file(path, recording_id=f"r{index}").to_cut().with_id(f"cut{index}")
        text, speaker = "ab" * (index + 1), f"speaker{index % 2}"
        cut.supervisions = [
            SupervisionSegment(f"s{index}", cut.recording_id, 0, cut.duration, text=text, speaker=speaker)
        ]
        made.append(cut)
    return CutSet.from_cuts(made)


@pytest.fixture
def cuts(tmp_path):
    return cuts_in(tmp_path, *[RATE_HZ] * 6)


@pytest.fixture
def cuts_of_rates(tmp_path):
    return cuts_in(tmp_path, 8000, 8000, 16_000, 11_025)


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


@pytest.mark.parametrize("augmentation", [None, SpeedPerturb((0.9, 1.1, 1.2))])
def test_copies_of_a_micro_batch_follow_it_and_differ_in_their_augmentation(cuts, tokenizer, features, augmentation):
    dataset = SpeechDataset(features, tokenizer, augmentation)
    once, batch = dataset[(3, cuts)], dataset[(3, cuts, 4)]
    assert batch.ids == once.ids * 4
    assert batch.tokens.tolist() == once.tokens.tolist() * 4
    assert batch.audio_s == pytest.approx(4 * once.audio_s)
    copies = [tuple(part.tolist()) for part in batch.num_frames.chunk(4)]
    assert copies[0] == tuple(once.num_frames.tolist())
    assert torch.equal(batch.features[:6, : once.features.shape[1]], once.features)
    assert len(set(copies)) == (4 if augmentation else 1)


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
def test_workers_do_not_change_what_is_perturbed(cuts, tokenizer, features, num_workers):
    torch.set_num_threads(1)  # as in workers: resampling rounds differently with several
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


IN_WORKERS, ON_DEVICE = (LogMel(20, RATE_HZ, on_device=on_device) for on_device in (False, True))
TOKENIZER = CharacterTokenizer(["<blk>", "<unk>", "a", "b"])
AUGMENTATIONS = {
    "none": None,
    "speed": SpeedPerturb((0.9, 1.1)),
    "room": AudioAugmentation(room=Reverberate(probability=1.0), speed=SpeedPerturb()),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


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
def test_a_batch_of_audio_becomes_the_batch_of_the_workers(cuts_of_rates, augmentation, device):
    expected = SpeechDataset(IN_WORKERS, TOKENIZER, augmentation)[(3, cuts_of_rates)]
    batch = SpeechDataset(ON_DEVICE, TOKENIZER, augmentation)[(3, cuts_of_rates)]
    assert isinstance(batch, AudioBatch)
    assert batch.num_frames.tolist() == expected.num_frames.tolist()
    assert batch.features.numel() == 0
    assert_same(batch.to(device), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_send_audio(cuts_of_rates, num_workers):
    dataset = SpeechDataset(ON_DEVICE, TOKENIZER)
    (batch,) = load_batches(dataset, [(0, cuts_of_rates)], Workers(num_workers))
    assert_same(batch.to("cpu"), SpeechDataset(IN_WORKERS, TOKENIZER)[(0, cuts_of_rates)])
    assert len(pickle.dumps(batch)) < 1.2 * batch.audio.numel() * 4 + 5000  # no filters in each batch


@pytest.mark.parametrize("features", [IN_WORKERS, ON_DEVICE], ids=["in workers", "on the device"])
def test_what_cannot_be_read_is_left_out_and_named(cuts, features, tmp_path):
    (tmp_path / "2.wav").write_bytes(b"not audio")
    samples, _ = soundfile.read(tmp_path / "3.wav")
    samples[100] = np.inf
    soundfile.write(tmp_path / "3.wav", samples, RATE_HZ, subtype="FLOAT")
    (tmp_path / "4.wav").unlink()
    batch = SpeechDataset(features, TOKENIZER)[(0, cuts)]
    assert [name for name, _ in batch.skipped] == ["cut2", "cut3", "cut4"]
    assert "not finite" in batch.skipped[1][1]
    assert len(batch) == len(batch.to("cpu").features) == 3
    assert batch.to("cpu").features.isfinite().all()
    for file in tmp_path.glob("*.wav"):
        file.unlink()
    empty = SpeechDataset(features, TOKENIZER)[(0, cuts)].to("cpu")
    assert (len(empty), len(empty.skipped)) == (0, 6)


def test_audio_that_is_too_short_is_refused_as_by_the_workers(cuts_of_rates, tmp_path):
    soundfile.write(tmp_path / "0.wav", np.ones(50), RATE_HZ)
    short = Recording.from_file(tmp_path / "0.wav", recording_id="short").to_cut()
    reasons = [SpeechDataset(f, TOKENIZER)[(0, CutSet.from_cuts([short]))].skipped for f in (IN_WORKERS, ON_DEVICE)]
    assert reasons[0] == reasons[1]
    assert "too short: 50 samples" in reasons[0][0][1]


PR_GET_PDEATHSIG = 2


class DeathSignals:
    """Items that tell which signal their reader gets when its parent dies."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, item: int) -> int:
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(found))
        return found.value


class Pids:
    """Items that tell which process read them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, item: int) -> int:
        return os.getpid()


def loader(items) -> DataLoader:
    init = partial(ignore_signals_except_parents, os.getpid())
    return DataLoader(
        items, batch_size=None, num_workers=1, worker_init_fn=init, multiprocessing_context=WorkerContext()
    )


@pytest.fixture
def reading():
    """An iterator with one reader, and the reader's number."""
    items = iter(loader(Pids()))
    return items, next(items)


def send(number: signal.Signals, pid: int) -> None:
    subprocess.run(["kill", f"-{number.name.removeprefix('SIG')}", str(pid)], check=True)
    time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_from_elsewhere_changes_nothing(reading, number):
    items, reader = reading
    send(number, reader)
    send(number, reader)
    assert list(items) == [reader] * 39


def test_a_thread_that_a_library_starts_in_each_child_is_not_hit():
    library = {"starts": True}
    sleeper = threading.Thread(target=time.sleep, args=(600,), daemon=True)
    os.register_at_fork(after_in_child=lambda: library["starts"] and sleeper.start())
    items = iter(loader(Pids()))
    reader = next(items)
    library["starts"] = False
    send(signal.SIGTERM, reader)
    assert list(items) == [reader] * 39


def test_the_parent_is_obeyed(reading):
    items, reader = reading
    (process,) = items._workers
    send(signal.SIGTERM, reader)
    assert process.is_alive()
    process.terminate()
    process.join(timeout=600)
    assert process.exitcode == 0


def test_a_reader_is_killed_with_its_parent():
    assert list(loader(DeathSignals())) == [signal.SIGKILL]
