"""Manifests of lhotse, of audio and of features: nothing is lost in silence, and messages name the line."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Features, MonoCut, MultiCut, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.shar import SharWriter
from lhotse.utils import fastcopy

from asr.data.features import PrecomputedFeatures
from asr.data.manifests.import_manifests import import_manifests
from asr.data.manifests.lhotse_manifests import read_cuts, read_items
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import SPEC, json_lines, utterance
from tests.data.feature_corpora import WIDTH, file_of, matrix, store, stored_utterance, write_folder

SEGMENT = SupervisionSegment("s", "a", 0.25, 0.5, text="hi").to_dict()


def recording(folder: Path, name: str = "a", num_channels: int = 1) -> Recording:
    soundfile.write(folder / f"{name}.wav", np.full((8000, num_channels), 0.1) * range(1, num_channels + 1), 8000)
    return Recording.from_file(folder / f"{name}.wav", recording_id=name)


def cut_of(folder: Path, name: str = "a", segment: str = "s") -> MonoCut:
    cut = recording(folder, name).to_cut()
    cut.supervisions = [SupervisionSegment(segment, name, 0.25, 0.5, text="hi")]
    return cut


@pytest.mark.parametrize("second", [b'{"id": "t"}', b'{"sources": 5}', json.dumps(SEGMENT).encode(), b"{]", b"[1]"])
def test_a_line_that_is_no_supervision_or_repeats_one_is_refused_with_its_number(tmp_path, second):
    path = tmp_path / "supervisions.jsonl"
    path.write_bytes(json.dumps(SEGMENT).encode() + b"\n" + second)
    with pytest.raises(ValueError, match=r"supervisions\.jsonl, line 2: "):
        read_items(path, SupervisionSegment)


@pytest.mark.parametrize("field", [{"text": ["hi"]}, {"start": "x"}, {"duration": None}, {"speaker": True}])
def test_a_field_of_another_type_in_a_cut_is_refused_with_its_line(tmp_path, field):
    cut = cut_of(tmp_path).to_dict()
    cut["supervisions"][0] |= field
    with pytest.raises(ValueError, match=rf"line 1: .*{next(iter(field))}"):
        read_cuts(json_lines(tmp_path / "cuts.jsonl", cut), "train")


def test_a_recording_has_audio_or_features_once(tmp_path):
    features = store(tmp_path, "a", matrix(100))
    for kind, items in ((Recording, [recording(tmp_path)] * 2), (Features, [features, features])):
        with pytest.raises(ValueError, match=r"m\.jsonl, line 2: the id 'a'"):
            read_items(json_lines(tmp_path / "m.jsonl", *items), kind)


def test_a_gzip_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "supervisions.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(SEGMENT).encode())[:-9])
    with pytest.raises(ValueError, match=r"supervisions\.jsonl\.gz"):
        read_items(path, SupervisionSegment)


def test_an_utterance_in_two_splits_is_refused(tmp_path):
    for split in ("train", "test"):
        json_lines(tmp_path / f"recordings_{split}.jsonl", recording(tmp_path))
        json_lines(tmp_path / f"supervisions_{split}.jsonl", SEGMENT)
    with pytest.raises(ValueError, match="supervision 's' is in the splits 'test' and 'train'"):
        import_manifests(tmp_path)


def test_an_empty_name_is_no_speaker_and_what_is_not_used_is_left_out(tmp_path):
    segment = SEGMENT | {"speaker": " ", "custom": {"a": [1]}, "alignment": {"word": [["hi", 0.3, 0.1, None]]}}
    path = json_lines(tmp_path / "supervisions.jsonl", segment, SEGMENT | {"id": "t", "speaker": "anna"})
    unnamed, named = read_items(path, SupervisionSegment)
    assert (unnamed.speaker, unnamed.custom, unnamed.alignment, named.speaker) == (None, None, None, "anna")


def test_overlapping_cuts_hold_their_utterance_once_and_whole(tmp_path):
    cut = cut_of(tmp_path)
    windows = [cut.truncate(duration=0.5).with_id("x"), cut.truncate(offset=0.5, duration=0.5).with_id("y")]
    manifests, dropped = read_cuts(json_lines(tmp_path / "cuts.jsonl", *windows), "test")
    ((segment,), found) = manifests.supervisions, list(manifests.recordings)
    assert (segment.id, segment.start, segment.duration, segment.recording_id) == ("s", 0.25, 0.5, "a")
    assert (len(found), dropped) == (1, [])


def test_cuts_trimmed_to_supervisions_that_overlap_hold_each_once_though_their_times_are_rounded(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(44100 * 6), 44100)
    cut = Recording.from_file(tmp_path / "a.wav").to_cut()
    starts = (0.0, 0.536, 2.855, 3.111)
    cut.supervisions = [SupervisionSegment(f"s{start}", "a", start, 1.619 + start / 10, text="hi") for start in starts]
    trimmed = list(CutSet.from_cuts([cut]).trim_to_supervisions())
    manifests, _ = read_cuts(json_lines(tmp_path / "cuts.jsonl", *trimmed), "test")
    assert len(trimmed) == 4 < sum(len(one.supervisions) for one in trimmed)
    for found, expected in zip(manifests.supervisions, cut.supervisions, strict=True):
        assert (found.id, found.start) == (expected.id, pytest.approx(expected.start, abs=1 / 44100))
    shifted = fastcopy(trimmed[0], start=3 / 44100)
    with pytest.raises(ValueError, match=r"cuts\.jsonl, line 2: the id 's0\.0'"):
        read_cuts(json_lines(tmp_path / "cuts.jsonl", trimmed[0], shifted), "test")


def test_cuts_that_give_an_id_another_meaning_or_are_mixed_are_refused(tmp_path):
    other = cut_of(tmp_path, "b", "t")
    other.recording = fastcopy(other.recording, id="a")
    mixed = cut_of(tmp_path).mix(recording(tmp_path, "noise").to_cut(), snr=10)
    for second in (cut_of(tmp_path, "b"), other, mixed):
        with pytest.raises(ValueError, match=r"cuts\.jsonl, line 2: "):
            read_cuts(json_lines(tmp_path / "cuts.jsonl", cut_of(tmp_path), second), "test")


def test_an_utterance_of_a_cut_lies_in_the_recording_of_the_cut_whatever_its_features_are(tmp_path):
    cut = cut_of(tmp_path)
    cut.supervisions = [fastcopy(cut.supervisions[0], recording_id="as-it-was-called-before")]
    cut.features = store(tmp_path, "a", matrix(100), storage_type="lilcom_chunky")
    assert len(evaluation_cuts(json_lines(tmp_path / "cuts.jsonl", cut), str, SPEC.features)[0]) == 1


def test_cuts_without_audio_or_transcript_are_listed(tmp_path):
    silent, untold = cut_of(tmp_path, "b", "t").to_dict(), recording(tmp_path, "c").to_cut().with_id("untold")
    del silent["recording"]
    json_lines(tmp_path / "cuts_test.jsonl", cut_of(tmp_path), silent | {"id": "silent"}, untold)
    cuts, dropped, _ = evaluation_cuts(tmp_path, str.upper, SPEC.features)
    assert [(cut.id, cut.supervisions[0].text) for cut in cuts] == [("s", "HI")]
    assert [(item.split, item.item, item.reason.split(":")[0]) for item in dropped] == [
        ("test", "silent", "no recording"),
        ("test", "untold", "no supervision"),
    ]


@pytest.mark.parametrize(("channel", "level"), [(0, 0.1), (1, 0.2), ([0, 1], 0.1)])
def test_the_channel_that_a_supervision_names_is_read(tmp_path, channel, level):
    json_lines(tmp_path / "recordings.jsonl", recording(tmp_path, num_channels=2))
    json_lines(tmp_path / "supervisions.jsonl", SEGMENT | {"channel": channel})
    ((cut,), _, _) = evaluation_cuts(tmp_path, str, SPEC.features)
    assert np.allclose(cut.load_audio()[0], level, atol=1e-3)
    assert any("several channels: 1" in note for note in import_manifests(tmp_path).notes)


@pytest.mark.parametrize(("channel", "silent", "level"), [([0, 1, 2], 0, 0.2), ([2, 0], 2, 0.1), (0, 0, 0.0)])
def test_a_silent_channel_loses_to_one_that_is_not_if_a_supervision_names_both(tmp_path, channel, silent, level):
    json_lines(tmp_path / "recordings.jsonl", recording(tmp_path, num_channels=3))
    samples, rate_hz = soundfile.read(tmp_path / "a.wav")
    samples[:, silent] = 0
    soundfile.write(tmp_path / "a.wav", samples, rate_hz)
    json_lines(tmp_path / "supervisions.jsonl", SEGMENT | {"channel": channel})
    ((cut,), _, _) = evaluation_cuts(tmp_path, str, SPEC.features)
    assert np.allclose(cut.load_audio(), level, atol=1e-3)
    assert cut.load_audio().shape[0] == 1


@pytest.mark.parametrize(
    ("own", "channel", "level"), [(1, 0, 0.2), (0, [0, 1], 0.1), ([1, 2], 0, 0.2), ([0, 2], 2, 0.3)]
)
def test_of_a_cut_no_channel_is_read_that_is_not_its_own(tmp_path, own, channel, level):
    whole = recording(tmp_path, num_channels=3)
    segment = SupervisionSegment("s", "a", 0.25, 0.5, channel, text="hi")
    kind = MultiCut if isinstance(own, list) else MonoCut
    cut = kind("c", 0.0, whole.duration, own, [segment], recording=whole)
    (tmp_path / "shar").mkdir()
    with SharWriter(str(tmp_path / "shar"), fields={"recording": "wav"}) as shards:
        shards.write(cut)
    for source in (json_lines(tmp_path / "cuts.jsonl", cut), tmp_path / "shar"):
        ((found,), dropped, _) = evaluation_cuts(source, str, SPEC.features)
        assert np.allclose(found.load_audio()[0], level, atol=1e-3), (source, dropped)


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
