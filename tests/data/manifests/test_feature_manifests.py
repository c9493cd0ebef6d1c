"""Manifests of features without audio."""

from pathlib import Path

import numpy as np
import pytest
from lhotse import CutSet, RecordingSet, SupervisionSegment, SupervisionSet

from asr.data.features import PrecomputedFeatures
from asr.data.manifests.import_manifests import import_manifests
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import SPEC, utterance
from tests.data.feature_corpora import (
    WIDTH,
    file_of,
    matrix,
    stored_utterance,
    write_folder,
)

FEATURES = PrecomputedFeatures(WIDTH)


def test_a_folder_of_features_and_supervisions_is_decoded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = stored_utterance(Path("."), "a", text="Hi")
    assert pair[0].storage_path == "matrices"
    ((cut,), dropped, _) = evaluation_cuts(write_folder(tmp_path / "m", pair), str.lower, FEATURES)
    monkeypatch.chdir("/")
    assert (cut.id, cut.supervisions[0].text, dropped) == ("a", "hi", [])
    np.testing.assert_array_equal(FEATURES(cut), matrix(100, seed=1))


def test_what_cannot_be_used_is_left_out_and_named(tmp_path):
    pairs = [stored_utterance(tmp_path, name) for name in ("good", "gone", "late", "short")]
    file_of(pairs[1][0]).unlink()
    pairs[2][1].start = 0.75  # rounding explains half a second
    np.save(file_of(pairs[3][0]), matrix(50))
    folder = write_folder(tmp_path, *pairs)
    lost = SupervisionSegment("lost", "nowhere", 0.0, 1.0)
    SupervisionSet.from_segments([*(segment for _, segment in pairs), lost]).to_file(folder / "supervisions.jsonl.gz")
    cuts, dropped, _ = evaluation_cuts(folder, str, FEATURES)
    assert [cut.id for cut in cuts] == ["good"]
    assert {item.item: item.reason.split(":")[0] for item in dropped} == {
        "gone": "missing features",
        "late": "outside its recording",
        "short": "unreadable features",
        "lost": "missing recording",
    }


def test_recordings_come_before_features_and_features_before_cuts(tmp_path):
    pair = stored_utterance(tmp_path, "a")
    folder = write_folder(tmp_path, pair)
    CutSet.from_manifests(features=[pair[0]]).to_file(tmp_path / "cuts.jsonl.gz")
    imported = import_manifests(folder)
    assert [len(m.features) for m in imported.splits.values()] == [1]
    RecordingSet.from_recordings([utterance(tmp_path, "a")[0]]).to_file(tmp_path / "recordings.jsonl.gz")
    imported = import_manifests(folder)
    assert [(m.features, len(m.recordings)) for m in imported.splits.values()] == [(None, 1)]


def test_features_and_audio_are_not_decoded_for_one_another(tmp_path):
    folder = write_folder(tmp_path / "m", stored_utterance(tmp_path, "a"))
    with pytest.raises(ValueError, match="5 per frame"):
        evaluation_cuts(folder, str, SPEC.features)
    (tmp_path / "t.tsv").write_text(f"audio\ttext\n{utterance(tmp_path, 'b')[0].sources[0].source}\thi\n")
    with pytest.raises(ValueError, match="audio"):
        evaluation_cuts(tmp_path / "t.tsv", str, FEATURES)
