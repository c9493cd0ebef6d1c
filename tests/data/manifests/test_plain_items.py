"""Plain data of manifests are those that lhotse itself would write."""

from dataclasses import replace

import numpy as np
import pytest
from lhotse import CutSet, Features, MonoCut, MultiCut, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.audio import AudioSource
from lhotse.supervision import AlignmentItem

from asr.data.manifests.lhotse_manifests import to_plain
from asr.data.preparation.cuts import supervised_cuts
from tests.data.corpora import manifests

SOURCE = AudioSource("file", [0], "/tmp/a.wav")
RECORDING = Recording("r", [SOURCE], 16_000, 160_000, 10.0)
SEGMENT = SupervisionSegment("s", "r", 0, 1.5, text="ünlü", speaker="x")
FEATURES = Features("fbank", 100, 80, 0.01, 16_000, 0, 1.0, "numpy_files", "/tmp/f", "a/a.npy", "r")
CUT = MonoCut("c", 1, 1.5, 0, [SEGMENT], recording=RECORDING)
ALIGNED = replace(SEGMENT, alignment={"word": [AlignmentItem("a", 0.0, 0.5, 0.9)]})
ITEMS = {
    "recording": RECORDING,
    "recording of two channels": replace(RECORDING, sources=[replace(SOURCE, channels=[0, 1])], channel_ids=[0, 1]),
    "recording with a transform": RECORDING.perturb_speed(1.1).resample(8000),
    "supervision": SEGMENT,
    "supervision of two channels": replace(SEGMENT, channel=[0, 1], language="tr", gender="f"),
    "supervision with custom fields": replace(SEGMENT, custom={"a": 1, "b": None, "c": "x"}),
    "supervision with nested fields": replace(SEGMENT, custom={"a": [1, {"b": None}]}),
    "supervision with alignments": ALIGNED,
    "features": FEATURES,
    "cut": CUT,
    "cut of features": replace(CUT, recording=None, features=FEATURES),
    "cut of both": replace(CUT, features=FEATURES, custom={"audio_bytes": 7}),
    "cut with a recording as custom field": replace(CUT, custom={"target": RECORDING}),
    "cut with alignments": replace(CUT, supervisions=[ALIGNED]),
    "cut without supervisions": replace(CUT, supervisions=[]),
    "cut of two channels": MultiCut("m", 0, 1.0, [0, 1], [], recording=RECORDING),
    "resampled cut": CUT.resample(8000),
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS.keys())
def test_plain_data_are_those_of_lhotse(item):
    assert to_plain(item) == item.to_dict()
    assert list(to_plain(item)) == list(item.to_dict())


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 16_000, 44_100])
def test_cuts_of_segments_are_those_that_lhotse_trims(rate_hz):
    rng = np.random.default_rng(rate_hz)
    num_samples = 36 * rate_hz + int(rng.integers(0, rate_hz))
    recording = replace(RECORDING, sampling_rate=rate_hz, num_samples=num_samples, duration=num_samples / rate_hz)
    for index in range(300):
        digits = int(rng.integers(1, 9))
        start = round(float(rng.uniform(0, 36)), digits) if index else 0
        least = 10.0 ** -int(rng.integers(1, 5))
        duration = recording.duration - start if index % 7 == 0 else round(float(rng.uniform(least, 3)), digits)
        duration = min(duration, recording.duration + 5e-4 - start)
        if duration <= 0:
            continue
        segment = SupervisionSegment("s", "r", start, duration, text="a", speaker="x")
        whole = CutSet.from_manifests(RecordingSet([recording]), SupervisionSet([segment]))
        try:
            expected = [cut.with_id("s") for cut in whole.trim_to_supervisions(keep_overlapping=False)]
        except AssertionError:  # too short for lhotse
            continue
        assert list(supervised_cuts(manifests((recording, segment)))) == expected
