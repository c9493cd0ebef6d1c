import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.data.manifests.import_manifests import import_manifests
from asr.data.manifests.layouts import read_table
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import SPEC, utterance


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
    (recording,) = import_manifests(manifests).splits["all"].recordings
    assert recording.sources[0].source == str(manifests / "a.wav")


def test_segments_without_audio_are_named_when_evaluating(manifests):
    cuts, dropped, _ = evaluation_cuts(manifests, str, SPEC.features)
    assert [cut.id for cut in cuts] == ["good"]
    assert {item.item: item.reason.split(":")[0] for item in dropped} == {
        "late": "outside its recording",
        "nowhere": "missing recording",
    }


def test_a_csv_has_quotation_marks_and_lines_in_them(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('audio,text,split\na.wav,"he said ""hi"", twice",dev\n"b, c.wav","two\nlines",test\n')
    rows = read_table(path)
    assert [(row.stem, row.text, row.split) for row in rows] == [
        ("a", 'he said "hi", twice', "dev"),
        ("b, c", "two\nlines", "test"),
    ]
    path.write_text("audio,text\na.wav,hi\nb.wav,hi,ho\n")
    with pytest.raises(ValueError, match=r"t\.csv, line 3"):
        read_table(path)


def test_other_words_for_splits_are_understood_in_names_of_manifests(manifests):
    for kind in ("recordings", "supervisions"):
        (manifests / f"{kind}.jsonl.gz").rename(manifests / f"{kind}_valid.jsonl.gz")
    imported = import_manifests(manifests)
    assert list(imported.splits) == ["dev"]
    assert imported.notes == ["split 'valid' was read as 'dev'"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("cuts.jsonl.gz", "all"),
        ("cuts_dev-clean.jsonl.gz", "dev-clean"),
        ("librispeech_cuts_test-clean.jsonl.gz", "test-clean"),
        ("gigaspeech_cuts_XL.jsonl.gz", "all"),
        ("team_meeting.jsonl.gz", "all"),
    ],
)
def test_a_manifest_of_cuts_may_have_any_name_and_lhotses_says_its_split(manifests, name, split):
    cut = Recording.from_file("a.wav").to_cut()
    cut.supervisions = [SupervisionSegment("good", "a", 0.0, 1.0, text="hi")]
    CutSet.from_cuts([cut]).to_file(manifests / name)
    assert [*import_manifests(manifests / name).splits] == [split]


def test_recordings_without_supervisions_are_refused(manifests):
    (manifests / "recordings_train.jsonl").write_text("")
    with pytest.raises(ValueError, match="split 'train' has recordings or supervisions, but not both"):
        import_manifests(manifests)


def test_one_id_may_name_different_audio_in_different_splits(tmp_path):
    for split, name in (("dev", "gone.wav"), ("test", "a.wav")):
        soundfile.write(tmp_path / name, np.zeros(8000), 8000)
        recording = Recording.from_file(tmp_path / name, recording_id="a")
        segment = SupervisionSegment(split, "a", 0.0, 1.0, text="hi")
        RecordingSet.from_recordings([recording]).to_file(tmp_path / f"recordings_{split}.jsonl")
        SupervisionSet.from_segments([segment]).to_file(tmp_path / f"supervisions_{split}.jsonl")
    (tmp_path / "gone.wav").unlink()
    cuts, dropped, _ = evaluation_cuts(tmp_path, str, SPEC.features)
    assert [cut.id for cut in cuts] == ["test"]
    assert [(item.split, item.item, item.reason.split(":")[0]) for item in dropped] == [("dev", "dev", "missing audio")]


def test_nothing_to_decode_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"nothing to decode; the first reasons: \['missing audio: .*gone\.wav"):
        evaluation_cuts(table(tmp_path, "audio\ttext", "gone.wav\thi"), str, SPEC.features)


def test_empty_transcripts_are_references(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    ((cut,), dropped, _) = evaluation_cuts(table(tmp_path, "audio\ttext", "a.wav\t"), str.strip, SPEC.features)
    assert (cut.supervisions[0].text, dropped) == ("", [])


def test_several_processes_find_in_a_table_what_one_finds(tmp_path, monkeypatch):
    monkeypatch.setattr("asr.data.manifests.audio.CHUNK_FILES", 2)
    for number in range(9):
        utterance(tmp_path, f"u{number}", 0.5 + number / 10)
    (tmp_path / "u3.wav").unlink()
    (tmp_path / "u7.wav").write_bytes(b"no audio")
    rows = [f"u{number}.wav\thi {number}" for number in range(9)]
    imported = import_manifests(table(tmp_path, "audio\ttext", *rows), num_jobs=3)
    segments = list(imported.splits["all"].supervisions)
    assert [(segment.id, segment.text) for segment in segments] == [(f"u{i}", f"hi {i}") for i in (0, 1, 2, 4, 5, 6, 8)]
    assert [(item.item, item.reason.partition(":")[0]) for item in imported.dropped] == [
        ("u3", "missing audio"),
        ("u7", "unreadable audio"),
    ]
