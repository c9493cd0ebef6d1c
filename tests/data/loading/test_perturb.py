import random
from collections import Counter

import numpy as np
import pytest
import soundfile
from lhotse import Recording

from asr.data.loading.augmentation import SpeedPerturb


@pytest.fixture
def cut(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(size=8000) * 0.1, 8000)
    return Recording.from_file(tmp_path / "a.wav").to_cut()


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
