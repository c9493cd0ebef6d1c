import numpy as np
import pytest
import soundfile
from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.data.manifests import evaluation_cuts, read_brought
from asr.data.tables import read_table


def table(folder, *lines):
    (folder / "t.tsv").write_text("\n".join(lines))
    return folder / "t.tsv"


@pytest.fixture
def manifests(tmp_path, monkeypatch):
    """Manifests as lhotse writes them in the folder that it runs in: with relative paths."""
    monkeypatch.chdir(tmp_path)
    soundfile.write("a.wav", np.zeros(8000), 8000)
    segments = [
        SupervisionSegment("good", "a", 0.0, 1.0, text="hi"),
        SupervisionSegment("late", "a", 0.5, 2.0, text="hi"),
        SupervisionSegment("nowhere", "b", 0.0, 1.0, text="hi"),
    ]
    RecordingSet.from_recordings([Recording.from_file("a.wav")]).to_file("recordings.jsonl.gz")
    SupervisionSet.from_segments(segments).to_file("supervisions.jsonl.gz")
    return tmp_path


def test_relative_audio_is_found_from_every_folder_later(manifests):
    (recording,) = read_brought(manifests).splits["all"].recordings
    assert recording.sources[0].source == str(manifests / "a.wav")


def test_segments_without_audio_are_named_when_evaluating(manifests):
    cuts, dropped = evaluation_cuts(manifests, str)
    assert [cut.id for cut in cuts] == ["good"]
    assert {item.item: item.reason.split(":")[0] for item in dropped} == {
        "late": "outside its recording",
        "nowhere": "missing recording",
    }


@pytest.mark.parametrize("name", ["x" * 300 + ".wav", "~nobody-of-this-name/a.wav", "a\0b.wav"])
def test_an_impossible_path_is_missing_audio(tmp_path, name):
    (item,) = read_brought(table(tmp_path, "audio\ttext", f"{name}\thi")).dropped
    assert item.reason.startswith("missing audio: ")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("audio\ttext", ".\thi"), "line 2: no audio is named"),
        (("audio\ttext", "a.wav\thi", "b.wav\t" + "x" * 200_000), "line 3: field larger"),
        (("audio\ttext\tsplit", "a.wav\thi\ttest/../../x"), "line 2: there is no split 'test/../../x'"),
        (("audio\ttext\tsplit", "a.wav\thi\ttrain-clean"), "line 2: there is no split 'train-clean'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        read_table(table(tmp_path, *lines))
