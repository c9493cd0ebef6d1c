"""Manifests of strangers: nothing runs, nothing is lost in silence, and messages name the line."""

import gzip
import json

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.utils import fastcopy

from asr.data.manifests.import_manifests import import_manifests
from asr.data.manifests.lhotse_jsonl import read_cuts, read_recordings, read_supervisions
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import SPEC

SEGMENT = SupervisionSegment("s", "a", 0.25, 0.5, text="hi").to_dict()


def recording(folder, name="a", num_channels=1) -> Recording:
    soundfile.write(folder / f"{name}.wav", np.full((8000, num_channels), 0.1) * range(1, num_channels + 1), 8000)
    return Recording.from_file(folder / f"{name}.wav", recording_id=name)


def write(path, *items):
    path.write_text("".join(json.dumps(item if isinstance(item, dict) else item.to_dict()) + "\n" for item in items))
    return path


def cut_of(folder, name="a", segment="s") -> MonoCut:
    cut = recording(folder, name).to_cut()
    cut.supervisions = [SupervisionSegment(segment, name, 0.25, 0.5, text="hi")]
    return cut


@pytest.mark.parametrize("id", ["a\n25", "a\tb", "a\u2028b", ""])
def test_an_id_that_is_not_one_line_is_refused_when_it_is_read(tmp_path, id):
    """It stands in tables of one line per utterance, which are written after training."""
    path = write(tmp_path / "supervisions.jsonl", {**SEGMENT, "id": id})
    with pytest.raises(ValueError, match=r"line 1.*: field 'id' must be one line of text without tabs, given"):
        read_supervisions(path)


@pytest.mark.parametrize(
    "name", ["pipe:touch hacked; cat .jsonl", "pipe:touch hacked;/cuts.jsonl", "pipe:touch hacked"]
)
def test_no_path_of_a_manifest_is_ever_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, tmp_path.joinpath(name).relative_to(tmp_path)):
        with pytest.raises(ValueError, match="no file or folder"):
            import_manifests(path)
        path.parent.mkdir(exist_ok=True)
    (tmp_path / "cut").mkdir()
    cuts = CutSet.from_cuts([cut_of(tmp_path)])
    cuts.to_file("cut/cuts.jsonl")
    folder = tmp_path / "pipe:touch hacked;"
    folder.mkdir(exist_ok=True)
    (tmp_path / "cut/cuts.jsonl").rename(folder / "cuts.jsonl")
    assert len(evaluation_cuts(folder.relative_to(tmp_path), str, SPEC.features)[0]) == 1
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 5}, "field 'id' must be str, given '5'"),
        ({"recording_id": None}, "field 'recording_id' must be str"),
        ({"duration": "1"}, "field 'duration' must be int or float, given '1'"),
        ({"start": True}, "field 'start' must be int or float, given 'True'"),
        ({"text": 5}, "field 'text' must be str"),
        ({"speaker": ["anna"]}, "field 'speaker' must be str"),
        ({"channel": "0"}, "field 'channel' must be int or list"),
    ],
)
def test_a_supervision_of_other_types_is_refused_with_its_line(tmp_path, change, message):
    path = write(tmp_path / "supervisions.jsonl", SEGMENT, SEGMENT | {"id": "t"} | change)
    with pytest.raises(ValueError, match=rf"supervisions.jsonl, line 2: {message}"):
        read_supervisions(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": None}, "field 'sources' must be list"),
        ({"sources": ["a.wav"]}, "line 1: "),
        ({"sampling_rate": 0}, "field 'sampling_rate' must be positive, given 0"),
        ({"transforms": [{"name": "Unheard", "kwargs": {}}]}, "line 1: "),
        (
            {"sources": [{"type": "command", "channels": [0], "source": "touch x"}]},
            "line 1: recording 'a': audio of type",
        ),
    ],
)
def test_a_recording_that_is_none_is_refused_with_its_line(tmp_path, change, message):
    path = write(tmp_path / "recordings.jsonl", recording(tmp_path).to_dict() | change)
    with pytest.raises(ValueError, match=message):
        read_recordings(path)


@pytest.mark.parametrize("content", [b"{]", b"[1]", b"5", b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_jsonl_is_refused_with_its_line(tmp_path, content):
    (tmp_path / "supervisions.jsonl").write_bytes(json.dumps(SEGMENT).encode() + b"\n" + content)
    with pytest.raises(ValueError, match=r"supervisions.jsonl, near line \d"):
        read_supervisions(tmp_path / "supervisions.jsonl")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"x" + data, lambda data: data[:-8] + b"12345678"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path, damage):
    path = tmp_path / "supervisions.jsonl.gz"
    path.write_bytes(damage(gzip.compress(json.dumps(SEGMENT).encode())))
    with pytest.raises(ValueError, match=r"near line \d: this is no jsonl manifest"):
        read_supervisions(path)


def test_an_id_given_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match="line 2: the id 's' of a SupervisionSegment was given before"):
        read_supervisions(write(tmp_path / "supervisions.jsonl", SEGMENT, SEGMENT | {"text": "ho"}))
    one, other = recording(tmp_path), fastcopy(recording(tmp_path, "b"), id="a")
    with pytest.raises(ValueError, match="line 2: the id 'a' of a Recording was given before"):
        read_recordings(write(tmp_path / "recordings.jsonl", one, other))


def test_an_utterance_in_two_splits_is_refused(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"recordings_{split}.jsonl", recording(tmp_path))
        write(tmp_path / f"supervisions_{split}.jsonl", SEGMENT)
    with pytest.raises(ValueError, match="supervision 's' is in the splits 'test' and 'train'"):
        import_manifests(tmp_path)


def test_an_empty_name_is_no_speaker(tmp_path):
    path = write(tmp_path / "supervisions.jsonl", SEGMENT | {"speaker": " "}, SEGMENT | {"id": "t", "speaker": "anna"})
    assert [segment.speaker for segment in read_supervisions(path)] == [None, "anna"]


def test_overlapping_cuts_hold_their_utterance_once_and_whole(tmp_path):
    cut = cut_of(tmp_path)
    windows = [cut.truncate(duration=0.5).with_id("x"), cut.truncate(offset=0.5, duration=0.5).with_id("y")]
    manifests, dropped = read_cuts(write(tmp_path / "cuts.jsonl", *windows), "test")
    ((segment,), found) = manifests.supervisions, list(manifests.recordings)
    assert (segment.id, segment.start, segment.duration, segment.recording_id) == ("s", 0.25, 0.5, "a")
    assert (len(found), dropped) == (1, [])


def test_cuts_that_give_an_id_another_meaning_are_refused(tmp_path):
    path = tmp_path / "cuts.jsonl"
    with pytest.raises(ValueError, match="line 2: the id 's' of a SupervisionSegment"):
        read_cuts(write(path, cut_of(tmp_path), cut_of(tmp_path, "b")), "test")
    other = cut_of(tmp_path, "b", "t")
    other.recording = fastcopy(other.recording, id="a")
    with pytest.raises(ValueError, match="line 2: the id 'a' of a Recording"):
        read_cuts(write(path, cut_of(tmp_path), other), "test")


def test_an_utterance_of_a_cut_lies_in_the_recording_of_the_cut(tmp_path):
    cut = cut_of(tmp_path)
    cut.supervisions = [fastcopy(cut.supervisions[0], recording_id="as-it-was-called-before")]
    assert len(evaluation_cuts(write(tmp_path / "cuts.jsonl", cut), str, SPEC.features)[0]) == 1


def test_mixed_cuts_are_refused_rather_than_unmixed(tmp_path):
    cut = cut_of(tmp_path)
    for mixed in (cut.pad(2.0), cut.mix(recording(tmp_path, "noise").to_cut(), snr=10)):
        with pytest.raises(ValueError, match="line 1: a cut of type 'MixedCut' is not read"):
            read_cuts(write(tmp_path / "cuts.jsonl", mixed), "test")


def test_cuts_without_audio_or_transcript_are_listed(tmp_path):
    silent, untold = cut_of(tmp_path, "b", "t").to_dict(), recording(tmp_path, "c").to_cut().with_id("untold")
    del silent["recording"]
    write(tmp_path / "cuts_test.jsonl", cut_of(tmp_path), silent | {"id": "silent"}, untold)
    cuts, dropped, _ = evaluation_cuts(tmp_path, str.upper, SPEC.features)
    assert [(cut.id, cut.supervisions[0].text) for cut in cuts] == [("s", "HI")]
    assert [(item.split, item.item, item.reason.split(":")[0]) for item in dropped] == [
        ("test", "silent", "no recording"),
        ("test", "untold", "no supervision"),
    ]


def test_a_perturbed_cut_stays_perturbed(tmp_path):
    (cut,) = evaluation_cuts(write(tmp_path / "cuts.jsonl", cut_of(tmp_path).perturb_speed(2.0)), str, SPEC.features)[0]
    assert cut.load_audio().shape == (1, 2000)


def test_an_address_inside_a_cut_is_refused(tmp_path):
    cut = cut_of(tmp_path)
    cut.recording.sources = [AudioSource("url", [0], "https://example.org/a.wav")]
    with pytest.raises(ValueError, match=r"cuts.jsonl, line 1: recording 'a': audio of type 'url'"):
        import_manifests(write(tmp_path / "cuts.jsonl", cut))


@pytest.mark.parametrize(("channel", "level"), [(0, 0.1), (1, 0.2), ([0, 1], 0.1)])
def test_the_channel_that_a_supervision_names_is_read(tmp_path, channel, level):
    write(tmp_path / "recordings.jsonl", recording(tmp_path, num_channels=2))
    write(tmp_path / "supervisions.jsonl", SEGMENT | {"channel": channel})
    ((cut,), _, _) = evaluation_cuts(tmp_path, str, SPEC.features)
    assert np.allclose(cut.load_audio()[0], level, atol=1e-3)
    assert any("several channels: 1" in note for note in import_manifests(tmp_path).notes)
