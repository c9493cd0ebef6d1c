"""What every source has in common: the right audio for each utterance, rounded times, gaps, types, names."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Features, MonoCut, MultiCut, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.audio import AudioSource
from lhotse.shar import SharWriter
from lhotse.supervision import AlignmentItem

from asr.data.manifests.corpus import Manifests
from asr.data.manifests.import_manifests import ImportedManifests, import_manifests
from asr.data.manifests.layouts import read_table
from asr.data.manifests.lhotse_manifests import to_plain
from asr.data.preparation.cuts import evaluation_cuts, supervised_cuts
from tests.data.corpora import SPEC, json_lines, kaldi, manifests, utterance

RATE_HZ = 8000


def level(folder: Path, name: str, value: float, duration_s: float = 1.0) -> str:
    """Write a file of one value, by which it is known again."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / name, np.full(int(duration_s * RATE_HZ), value), RATE_HZ)
    return name


def write_spans(folder: Path, kind: str, spans: list[tuple[float, float]]) -> Path:
    """Write a source of parts of ``a.wav``."""
    path, times = folder / kind, [(start, round(end - start, 6)) for start, end in spans]
    cut = Recording.from_file(folder / "a.wav").to_cut()
    cut.supervisions = [SupervisionSegment(f"u{i}", "a", *time, text="hi") for i, time in enumerate(times)]
    if kind == "nemo.json":
        row = {"audio_filepath": "a.wav", "text": "hi"}
        return json_lines(path, *(row | {"offset": start, "duration": duration} for start, duration in times))
    if kind == "kaldi":
        segments = "".join(f"u{i} r {start} {end}\n" for i, (start, end) in enumerate(spans))
        text = "".join(f"u{i} hi\n" for i in range(len(spans)))
        return kaldi(path, f"r {folder}/a.wav", text=text, segments=segments)
    path.mkdir()
    if kind == "shar":
        with SharWriter(str(path), fields={"recording": "wav"}) as shards:
            shards.write(cut)
    else:
        RecordingSet.from_recordings([cut.recording]).to_file(path / "recordings.jsonl.gz")
        SupervisionSet.from_segments(cut.supervisions).to_file(path / "supervisions.jsonl.gz")
    return path


# what rounding to 10 ms explains is not counted in tables
@pytest.mark.parametrize(("kind", "num_trimmed"), [("nemo.json", 2), ("kaldi", 2), ("lhotse", 3), ("shar", 3)])
def test_an_end_shortly_after_the_recording_is_trimmed_and_counted_and_what_is_farther_is_dropped(
    tmp_path, kind, num_trimmed
):
    level(tmp_path, "a.wav", 0.1, 2.0)
    spans = [(0.0, 1.0), (0.25, 2.004), (0.5, 2.02), (1.0, 2.5), (1.5, 2.6), (2.0, 2.4), (3.0, 3.5)]
    imported = import_manifests(write_spans(tmp_path, kind, spans))
    (manifests,) = imported.splits.values()
    assert [(s.start, s.end) for s in manifests.supervisions] == [(0.0, 1.0), (0.25, 2.0), (0.5, 2.0), (1.0, 2.0)]
    assert imported.num_trimmed == num_trimmed
    assert [item.reason.partition(":")[0] for item in imported.dropped] == ["outside its recording"] * 3
    assert next(note for note in imported.notes if "trimmed" in note).endswith(f": {num_trimmed}")


@pytest.mark.parametrize("kind", ["m.jsonl", "t.tsv", "t.csv", "kaldi", "cuts"])
def test_each_transcript_has_the_audio_that_its_line_names(tmp_path, kind):
    names = ["u.wav", "u.flac", "u-1.wav", "b/u.wav", "b-u.wav", "u", "u.wav.wav", "ü.wav"]
    for number, name in enumerate(names):
        soundfile.write(tmp_path / f"{number}.wav", np.full(RATE_HZ, number / 10), RATE_HZ)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{number}.wav").rename(tmp_path / name)
    if kind == "m.jsonl":
        rows = [{"audio_filepath": name, "text": str(number)} for number, name in enumerate(names)]
        parts = [{"audio_filepath": "u.wav", "offset": part / 4, "duration": 0.25, "text": "0"} for part in range(4)]
        path = json_lines(tmp_path / kind, *parts, *rows)
    elif kind == "kaldi":
        text = "".join(f"{name} {number}\n" for number, name in enumerate(names))
        path = kaldi(tmp_path / kind, *(f"{name} {tmp_path / name}" for name in names), text=text)
    elif kind == "cuts":
        cuts = [Recording.from_file(tmp_path / name, recording_id=name).to_cut() for name in names]
        for number, cut in enumerate(cuts):
            cut.supervisions = [SupervisionSegment(f"s{number}", cut.recording.id, 0.0, 1.0, text=str(number))]
        path = tmp_path / "cuts.jsonl"
        CutSet.from_cuts(cuts).to_file(path)
    else:
        path, sign = tmp_path / kind, "," if kind == "t.csv" else "\t"
        path.write_text(f"audio{sign}text\n" + "".join(f"{name}{sign}{i}\n" for i, name in enumerate(names)))
    cuts, dropped, _ = evaluation_cuts(path, str, SPEC.features)
    assert (len({cut.id for cut in cuts}), dropped) == (len(cuts), [])
    for cut in cuts:
        assert cut.load_audio().mean() == pytest.approx(int(cut.supervisions[0].text) / 10, abs=1e-3)


def test_utterances_of_one_name_may_be_in_several_splits_of_a_table(tmp_path):
    for name in ("u.wav", "u.flac"):
        level(tmp_path, name, 0.1)
    rows = [{"audio_filepath": "u.wav", "offset": part / 4, "duration": 0.25, "text": str(part)} for part in range(4)]
    splits = ["train", "dev", "train", "dev", "test"]
    rows = [
        row | {"split": split}
        for row, split in zip([*rows, {"audio_filepath": "u.flac", "text": "4"}], splits, strict=True)
    ]
    imported = import_manifests(json_lines(tmp_path / "m.json", *rows))
    texts = {split: [s.text for s in manifests.supervisions] for split, manifests in imported.splits.items()}
    assert texts == {"train": ["0", "2"], "dev": ["1", "3"], "test": ["4"]}


def test_two_recordings_of_one_id_are_refused_in_manifests_of_own_code(tmp_path):
    one, other = (Recording.from_file(tmp_path / level(tmp_path, f"{n}/a.wav", 0.1)) for n in range(2))
    imported = ImportedManifests()
    with pytest.raises(ValueError, match=r"id 'a'.*0/a\.wav.*1/a\.wav"):
        imported.add("train", Manifests.of([one, other], [SupervisionSegment("s", "a", 0.0, 1.0, text="hi")]))


def test_a_line_that_repeats_another_is_listed_and_one_that_contradicts_it_is_refused(tmp_path):
    level(tmp_path, "a.wav", 0.1)
    row = {"audio_filepath": "a.wav", "text": "hi"}
    imported = import_manifests(json_lines(tmp_path / "m.json", row, row))
    assert [item.reason.partition(":")[0] for item in imported.dropped] == ["repeated"]
    assert all(f"line {number}" in imported.dropped[0].reason for number in (1, 2))
    with pytest.raises(ValueError, match=r"m\.json, line 2: .*m\.json, line 1"):
        import_manifests(json_lines(tmp_path / "m.json", row, row | {"text": "ho"}))
    with pytest.raises(ValueError, match=r"m\.json, line 2: .*'x'.*m\.json, line 1"):
        import_manifests(json_lines(tmp_path / "m.json", row | {"id": "x"}, row | {"id": "x"}))


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("text", 42, "42"),
        ("text", 0, "0"),
        ("text", 1.5, "1.5"),
        ("text", None, ""),
        ("speaker", 7, "7"),
        ("speaker", float("nan"), None),
        ("lang", None, None),
        ("offset", "0.5", 0.5),
        ("offset", None, 0.0),
        ("duration", 1, 1.0),
        ("text", ["hi"], ValueError),
        ("text", True, ValueError),
        ("speaker", {}, ValueError),
        ("offset", "x", ValueError),
        ("offset", float("nan"), 0.0),
        ("offset", "inf", ValueError),
        ("duration", [1], ValueError),
        ("audio_filepath", None, ValueError),
        ("audio_filepath", ["a.wav", "b.wav"], ValueError),
    ],
)
def test_numbers_become_text_in_json_and_other_types_are_refused_with_their_line(tmp_path, field, value, read):
    level(tmp_path, "a.wav", 0.1, 2.0)
    level(tmp_path, "b.wav", 0.1, 2.0)
    good = {"audio_filepath": "b.wav", "text": "one", "duration": 1.0}
    good = good | {"offset": 0.0}  # without it, durations are those of files
    path = json_lines(tmp_path / "m.jsonl", good, good | {"audio_filepath": "a.wav", field: value})
    if read is ValueError:
        with pytest.raises(ValueError, match=r"m\.jsonl, line 2: "):
            import_manifests(path)
        return
    _, segment = import_manifests(path).splits["all"].supervisions
    names = {"lang": "language", "offset": "start"}
    assert getattr(segment, names.get(field, field)) == read


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({"text": 42, "id": 7, "speaker": 0}, ("7", "42", "0")),
        ({"text": None, "start": "0.0"}, ("s", None, None)),
        ({"text": ["hi"]}, ValueError),
        ({"start": "x"}, ValueError),
        ({"duration": None}, ValueError),
        ({"channel": "left"}, ValueError),
        ({"speaker": True}, ValueError),
        ({"id": None}, ValueError),
        ({"recording_id": {}}, ValueError),
    ],
)
def test_numbers_become_text_in_manifests_of_lhotse_and_other_types_are_refused_with_their_line(tmp_path, change, read):
    recording = Recording.from_file(tmp_path / level(tmp_path, "a.wav", 0.1))
    json_lines(tmp_path / "recordings.jsonl", recording.to_dict() | {"sampling_rate": float(RATE_HZ)})
    segment = SupervisionSegment("s", "a", 0.0, 1.0, text="hi").to_dict()
    json_lines(tmp_path / "supervisions.jsonl", segment | {"id": "t"}, segment | change)
    if read is ValueError:
        with pytest.raises(ValueError, match=r"supervisions\.jsonl, line 2: "):
            import_manifests(tmp_path)
        return
    _, found = import_manifests(tmp_path).splits["all"].supervisions
    assert (found.id, found.text, found.speaker) == read


ROWS = [{"audio_filepath": f"{name}.wav", "text": name} for name in "ab"]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=1),
        "\n".join(json.dumps(row, indent=1) for row in ROWS),
        f"\ufeff{LINES}",
        f"\n{LINES}\n\n",
        LINES.replace("\n", "\r\n"),
        f"\ufeff{json.dumps(ROWS, indent=1)}",
    ],
    ids=["array", "indented", "objects over lines", "mark", "blank lines", "windows", "mark and array"],
)
def test_json_of_any_layout_is_read(tmp_path, content):
    for row in ROWS:
        level(tmp_path, row["audio_filepath"], 0.1)
    (tmp_path / "m.json").write_bytes(content.encode())
    assert [s.text for s in import_manifests(tmp_path / "m.json").splits["all"].supervisions] == ["a", "b"]
    (tmp_path / "m.json").write_text(json.dumps([*ROWS, {"text": "c"}], indent=1))
    with pytest.raises(ValueError, match=r"m\.json, line 10: "):
        import_manifests(tmp_path / "m.json")


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "m.json", "cuts.jsonl", "k"])
@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le"])
def test_utf_16_without_a_mark_is_named(tmp_path, name, encoding):
    path = tmp_path / name
    if name == "k":
        (kaldi(path, "a a.wav", text="a hi\n") / "text").write_bytes("a hi\n".encode(encoding))
    else:
        path.write_bytes("audio\ttext\na.wav\thi\n".encode(encoding))
    with pytest.raises(ValueError, match="UTF-16"):
        import_manifests(path)


@pytest.mark.parametrize("written", ["NFC", "NFD"])
@pytest.mark.parametrize("kind", ["t.tsv", "kaldi", "lhotse"])
def test_a_name_is_found_in_the_other_form_of_unicode(tmp_path, kind, written):
    there = "NFD" if written == "NFC" else "NFC"
    level(tmp_path, unicodedata.normalize(there, "ü/ä.wav"), 0.1)
    name = unicodedata.normalize(written, "ü/ä.wav")
    if kind == "t.tsv":
        (tmp_path / kind).write_text(f"audio\ttext\n{name}\thi\n")
    elif kind == "kaldi":
        ids = unicodedata.normalize("NFC", "ä"), unicodedata.normalize("NFD", "ä")
        kaldi(tmp_path / kind, f"{ids[0]} {tmp_path / name}", text=f"{ids[1]} hi\n")
    else:
        recording = Recording.from_file(tmp_path / unicodedata.normalize(there, "ü/ä.wav"), recording_id="ä").to_dict()
        recording["sources"][0]["source"] = str(tmp_path / name)
        (tmp_path / kind).mkdir()
        json_lines(tmp_path / kind / "recordings.jsonl", recording)
        segment = SupervisionSegment("s", unicodedata.normalize("NFD", "ä"), 0.0, 1.0, text="hi")
        json_lines(tmp_path / kind / "supervisions.jsonl", segment.to_dict())
    cuts, dropped, _ = evaluation_cuts(tmp_path / kind, str, SPEC.features)
    assert (len(cuts), dropped) == (1, [])


def table(folder, *lines):
    (folder / "t.tsv").write_text("\n".join(lines))
    return folder / "t.tsv"


@pytest.fixture
def written(tmp_path, monkeypatch):
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


def test_relative_audio_is_found_from_every_folder_later(written):
    (recording,) = import_manifests(written).splits["all"].recordings
    assert recording.sources[0].source == str(written / "a.wav")


def test_segments_without_audio_are_named_when_evaluating(written):
    cuts, dropped, _ = evaluation_cuts(written, str, SPEC.features)
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


def test_other_words_for_splits_are_understood_in_names_of_manifests(written):
    for kind in ("recordings", "supervisions"):
        (written / f"{kind}.jsonl.gz").rename(written / f"{kind}_valid.jsonl.gz")
    imported = import_manifests(written)
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
def test_a_manifest_of_cuts_may_have_any_name_and_lhotses_says_its_split(written, name, split):
    cut = Recording.from_file("a.wav").to_cut()
    cut.supervisions = [SupervisionSegment("good", "a", 0.0, 1.0, text="hi")]
    CutSet.from_cuts([cut]).to_file(written / name)
    assert [*import_manifests(written / name).splits] == [split]


def test_recordings_without_supervisions_are_refused(written):
    (written / "recordings_train.jsonl").write_text("")
    with pytest.raises(ValueError, match="split 'train' has recordings or supervisions, but not both"):
        import_manifests(written)


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
