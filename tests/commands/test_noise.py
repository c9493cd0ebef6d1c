"""Noise in training: repeatable, resumed only with the same files, refused with a clear line."""

import numpy as np
import pytest
import soundfile
import torch

from asr.training.checkpoints import checkpoint_file, load_checkpoint
from tests.commands.conftest import TINY, Workplace

STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=2", "logger=csv", "decode_test=false")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    (folder / "sounds").mkdir()
    for number in range(3):
        samples = np.random.default_rng(number).normal(size=12_000) * 0.05
        soundfile.write(folder / "sounds" / f"{number}.flac", samples, 16_000)
    return Workplace(folder)


def train(place, *words, **options):
    return place.run("train", *TINY, *STEPS, "augment=noise", *words, **options)


def weights(place, name):
    return load_checkpoint(checkpoint_file(place.folder / name)).weights


def test_noise_is_repeatable_and_a_run_is_resumed_with_the_same_files_alone(place):
    folder = "augment.audio.noise.folder=sounds"
    for name in ("a", "b"):
        train(place, folder, f"run_dir={name}")
    train(place, "augment.audio.noise=null", "run_dir=without")
    first, second, without = (weights(place, name) for name in ("a", "b", "without"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], without[key]) for key in first)
    place.run("train", "resume=a", "trainer.max_steps=6", "allow_changes=true")
    (place.folder / "sounds" / "0.flac").write_bytes(b"somebody's own recording")
    printed = place.run("train", "resume=a", "trainer.max_steps=8", code=2)
    assert "files of augment.audio: " in printed
    soundfile.write(place.folder / "sounds" / "0.flac", np.ones(50) * 0.1, 16_000)
    place.run("train", "resume=a", "trainer.max_steps=8", folder, "allow_changes=true")


def test_a_recording_of_noise_that_is_no_audio_ends_the_run_by_its_name(place):
    (place.folder / "broken").mkdir(exist_ok=True)
    soundfile.write(place.folder / "broken" / "nan.wav", np.full(8000, np.nan), 8000, subtype="FLOAT")
    printed = train(place, "augment.audio.noise.folder=broken", "augment.audio.noise.probability=1", code=1)
    assert "augment.audio.noise.folder: " in printed
    assert "nan.wav" in printed


def test_a_folder_of_noise_that_is_not_there_is_named_before_anything_is_prepared(place):
    printed = train(place, "data.dir=not_made", "augment.audio.noise.folder=nowhere", code=2)
    assert "augment.audio.noise.folder=nowhere" in printed
    assert not (place.folder / "not_made").exists()
