"""Corpora as people have them: every layout of docs/data.md is read, with its splits, texts and speakers."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.manifests.import_manifests import import_manifests, manifest_files
from asr.data.manifests.layouts import CONVERT
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import SPEC, json_lines, kaldi, utterance

LONG_GRID = '''File type = "ooTextFile"
Object class = "TextGrid"
xmin = 0
xmax = 1
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 1
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 1
            text = "AY1"
    item [2]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 0.5
            text = "he said"
        intervals [2]:
            xmin = 0.5
            xmax = 1
            text = """hi"""
'''
SHORT_GRID = 'File type = "ooTextFile"\n"TextGrid"\n\n0\n1\n<exists>\n1\n"IntervalTier"\n"a"\n0\n1\n1\n0\n1\n"grüß"\n'


def rows(header: str, *lines: str) -> str:
    return "\n".join([header, *lines, ""])


def objects(*fields: dict) -> str:
    return "".join(json.dumps(one) + "\n" for one in fields)


def of(column: str, *names: str, text: str = "text") -> str:
    return objects(*({column: name, text: "hi"} for name in names))


# files (audio of one second where the content is empty), source below the folder, columns, and what is read: the ids
# of each split
LAYOUTS = {
    "a folder of tables with splits": (
        {"a.wav": "", "b.wav": "", "c.wav": "", "train.tsv": rows("audio\ttext", "a.wav\thi")}
        | {"valid.csv": rows("audio,text", "b.wav,hi"), "test.jsonl": of("audio", "c.wav")},
        ".", None, {"train": ["a"], "dev": ["b"], "test": ["c"]},
    ),
    "a list, whose names say the splits": (
        {"a.wav": "", "b.wav": "", "train_manifest.json": of("audio_filepath", "a.wav")}
        | {"val.json": of("audio", "b.wav")},
        ["train_manifest.json", "val.json"], None, {"train": ["a"], "dev": ["b"]},
    ),
    "several test sets": (
        {f"{name}.wav": "" for name in "abcd"} | {f"{name}.json": of("audio", f"{name}.wav") for name in "abcd"},
        {"train": "a.json", "val": ["b.json"], "test": ["c.json", "d.json"]}, None,
        {"train": ["a"], "dev": ["b"], "test-c": ["c"], "test-d": ["d"]},
    ),
    "equal names in two folders": (
        {"x/1.wav": "", "y/1.wav": ""} | {f"{name}/all.tsv": rows("path\tsentence", "1.wav\thi") for name in "xy"},
        {"train": ["x/all.tsv"], "dev": "y/all.tsv"}, None, {"train": ["x/1"], "dev": ["y/1"]},
    ),
    "files that differ in their ending": (
        {"a.wav": "", "a.flac": "", "t.tsv": rows("file\ttranscript", "a.wav\thi", "a.flac\thi")},
        "t.tsv", None, {"all": ["a.wav", "a.flac"]},
    ),
    "columns of one's own": (
        {"a.wav": "", "t.csv": rows("my_path,my_text,text,who", "a.wav,hi,no,anna")},
        "t.csv", {"audio": "my_path", "text": "my_text", "speaker": "who"}, {"all": ["a"]},
    ),
    "parts of files": (
        {"a.wav": "", "t.csv": rows("filename,transcription,offset,duration", "a.wav,hi,0,0.25", "a.wav,hi,0.5,0.25")},
        "t.csv", None, {"all": ["a-1", "a-2"]},
    ),
    "a table of Windows with splits in other words": (
        {"a.wav": "", "b.wav": ""}
        | {"t.tsv": "\ufeffaudio\ttext\tsplit\r\na.wav\thi\ttrain\r\nb.wav\thi\tvalid\r\n\r\n"},
        "t.tsv", None, {"train": ["a"], "dev": ["b"]},
    ),
    "a spreadsheet with semicolons": (
        {"a.wav": "", "t.csv": rows("\ufeffaudio;text;speaker", "a.wav;hi;'Ann, B'")}, "t.csv", None, {"all": ["a"]},
    ),
    "a whole file among parts": (
        {"a.wav": "", "t.json": objects({"audio": "a.wav", "text": "hi", "duration": 0.9},
                                        {"audio": "a.wav", "text": "hi", "offset": 0.5, "duration": 0.25})},
        "t.json", None, {"all": ["a", "a-2"]},
    ),
    "LJSpeech": (
        {"wavs/LJ.1-1.wav": "", "wavs/b.wav": "", "metadata.csv": 'LJ.1-1|hi|hi\nb|1 "hi"|hi\n'},
        ".", None, {"all": ["LJ.1-1", "b"]},
    ),
    "Common Voice": (
        {f"clips/{name}.mp3": "" for name in "ab"}
        | {f"{split}.tsv": rows("client_id\tpath\tsentence\tup_votes", f"anna\t{name}.mp3\thi\t2")
           for split, name in (("train", "a"), ("dev", "b"), ("validated", "a"))},
        ".", None, {"train": ["a"], "dev": ["b"]},
    ),
    "an audiofolder with folders of splits": (
        {f"{split}/1.wav": "" for split in ("train", "validation")}
        | {"train/metadata.csv": rows("file_name,transcription", "1.wav,hi")}
        | {"validation/metadata.jsonl": of("file_name", "1.wav", text="transcription")},
        ".", None, {"dev": ["validation/1"], "train": ["train/1"]},
    ),
    "an audiofolder with one table": (
        {"test/1.wav": "", "train/1.wav": ""}
        | {"metadata.csv": rows("file_name,text", "train/1.wav,hi", "test/1.wav,hi")},
        ".", None, {"train": ["train/1"], "test": ["test/1"]},
    ),
    "transcripts beside audio": (
        {"x/a.wav": "", "x/a.txt": "hi\n", "b.flac": "", "b.lab": "hi", "c.WAV": "", "c.lab": "0 10000 hi\n"}
        | {"d.Wav": "", "d.txt": "hi"},
        ".", None, {"all": ["b", "c", "d", "x/a"]},
    ),
    "transcripts in folders of splits": (
        {f"{split}/a.wav": "" for split in ("train", "dev")} | {f"{split}/a.txt": "hi" for split in ("train", "dev")},
        ".", None, {"dev": ["dev/a"], "train": ["train/a"]},
    ),
    "LibriSpeech": (
        {f"L/{part}/7/1/7-1-0.flac": "" for part in ("train-clean-5", "dev-clean-2")}
        | {f"L/{part}/7/1/7-1.trans.txt": "7-1-0 hi\n" for part in ("train-clean-5", "dev-clean-2")},
        "L", None, {"dev-clean-2": ["dev-clean-2/7/1/7-1-0"], "train": ["train-clean-5/7/1/7-1-0"]},
    ),
    "VoxForge": (
        {"anna-1/wav/a1.wav": "", "anna-1/etc/PROMPTS": "anna-1/mfc/a1 hi\n"}, ".", None, {"all": ["anna-1/wav/a1"]},
    ),
}  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content:
            path.write_text(content, encoding="utf-8", errors="surrogateescape")
        else:
            soundfile.write(path, np.zeros(8000), 8000, format=path.suffix[1:].upper())


def below(folder: Path, source):
    if isinstance(source, str):
        return str(folder / source)
    if isinstance(source, list):
        return [str(folder / name) for name in source]
    return {split: below(folder, names) for split, names in source.items()}


@pytest.mark.parametrize(("files", "source", "columns", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_is_read_with_its_splits(files, source, columns, expected, tmp_path, capsys):
    write(tmp_path, files)
    imported = import_manifests(below(tmp_path, source), columns=columns)
    found = {split: [one.id for one in manifests.supervisions] for split, manifests in imported.splits.items()}
    assert found == expected
    assert {one.text for manifests in imported.splits.values() for one in manifests.supervisions} == {"hi"}
    assert imported.dropped == []
    assert " rows" in (said := capsys.readouterr().out) or " utterances" in said
    if source == ".":
        assert {path.name for path in manifest_files(tmp_path)} <= {Path(name).name for name in files}
        assert manifest_files(tmp_path)


def test_speakers_are_those_of_columns_and_folders(tmp_path):
    for name, expected in (("columns of one's own", "anna"), ("LibriSpeech", "7"), ("VoxForge", "anna-1")):
        files, source, columns, _ = LAYOUTS[name]
        write(tmp_path / name, files)
        imported = import_manifests(below(tmp_path / name, source), columns=columns)
        assert {one.speaker for found in imported.splits.values() for one in found.supervisions} == {expected}


@pytest.mark.parametrize(("grid", "text"), [(LONG_GRID, 'he said "hi"'), (SHORT_GRID, "grüß")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_text_grids_give_the_words_of_their_tier(grid, text, encoding, tmp_path):
    write(tmp_path, {"a.wav": ""})
    (tmp_path / "a.TextGrid").write_text(grid, encoding=encoding)
    (segment,) = import_manifests(tmp_path).splits["all"].supervisions
    assert segment.text == text


def grid(*tiers: tuple[str, str]) -> str:
    """Return a short TextGrid of tiers: a name, and labels between bars."""
    text = f'File type = "ooTextFile"\n"TextGrid"\n0\n1\n<exists>\n{len(tiers)}\n'
    for name, labels in tiers:
        intervals = "".join(f'0\n1\n"{label}"\n' for label in labels.split("|"))
        text += f'"IntervalTier"\n"{name}"\n0\n1\n{labels.count("|") + 1}\n{intervals}'
    return text


WORDS = "good|sp|morning||<p:>|SIL"
TIERS = [
    ("", [("words", WORDS)]),
    ("", [("phones", "G|UH"), ("Words", WORDS)]),
    ("anna", [("anna - phones", "G|UH"), ("anna - words", WORDS), ("bert - words", "|sp")]),
    ("", [("KAN-MAU", "gUd"), ("ORT-MAU", WORDS), ("MAU", "g|U|d")]),
    ("", [("comment", "checked by mw"), ("Anna", WORDS)]),
    ("", [("words", "better|not"), ("utterances", "good morning|sp")]),
    ("", [("utterance", ""), ("words", WORDS)]),
    (None, [("anna", "good|"), ("bert", "|how are you")]),
    (None, [("anna - words", WORDS), ("bert - words", "how|are")]),
    (None, [("anna_utterances", WORDS), ("bert_words", "how|are")]),
    (None, [("words", WORDS), ("Words", "how|are")]),
    (None, [("phones", "G|UH"), ("notes", "x")]),
]


@pytest.mark.parametrize(("speaker", "tiers"), TIERS, ids=[" + ".join(name for name, _ in tiers) for _, tiers in TIERS])
def test_of_a_text_grid_the_words_of_one_speaker_are_read_or_its_tiers_are_named(speaker, tiers, tmp_path, capsys):
    write(tmp_path, {"a.wav": "", "a.TextGrid": grid(*tiers)})
    if speaker is None:
        with pytest.raises(ValueError, match=r"a\.TextGrid") as refused:
            import_manifests(tmp_path)
        assert [name for name, _ in tiers if repr(name) not in str(refused.value)] == []
        return
    (segment,) = import_manifests(tmp_path).splits["all"].supervisions
    assert segment.text == "good morning"
    assert "tier" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.lab", "0 9 sil\n9 20 good -1.5\n20 30 morning\n"), ("a.txt", "0.0\t0.1\n0.1\t1.0\tgood morning\n")],
)
def test_of_files_of_labels_neither_times_nor_pauses_are_words(name, text, tmp_path):
    write(tmp_path, {"a.wav": "", name: text})
    (segment,) = import_manifests(tmp_path).splits["all"].supervisions
    assert segment.text == "good morning"


@pytest.mark.parametrize("column", ["", "\tid"])
def test_of_a_table_the_first_channel_that_is_not_silent_is_read(column, tmp_path):
    write(tmp_path, {"t.tsv": rows(f"audio\ttext{column}", f"a.wav\thi{column}")})
    soundfile.write(tmp_path / "a.wav", np.full((8000, 2), 0.1) * [0, 1], 8000)
    ((cut,), _, _) = evaluation_cuts(tmp_path / "t.tsv", str, SPEC.features)
    assert (cut.channel, cut.supervisions[0].channel) == (1, 1)


KALDI = {"wav.scp": "u1 a.wav\n", "text": "u1 hi\n"}


@pytest.mark.parametrize(
    ("files", "source", "columns", "names"),
    [
        ({"a.srt": "1\n00:00:00,000 --> 00:00:01,000\nhi\n"}, "a.srt", None, ["a.srt", "audio, start, end"]),
        ({"a.stm": "a 1 anna 0.0 1.0 hi\n"}, "a.stm", None, ["a.stm", "audio, start, end"]),
        ({"t.tsv": rows("audio\tmood", "a.wav\thi")}, "t.tsv", None, ["t.tsv, line 1", "data.columns", "mood"]),
        ({"t.tsv": rows("audio\ttext", "a.wav\thi")}, "t.tsv", {"text": "x"}, ["data.columns.text", "'x'", "audio"]),
        ({"t.jsonl": objects({"audio": "a.wav", "text": [1]})}, "t.jsonl", None, ["t.jsonl, line 1", "text"]),
        ({"t.jsonl": of("audio", "a.wav") + '{"text": "two"}'}, "t.jsonl", None, ["t.jsonl, line 2"]),
        ({"t.jsonl": of("audio", "a.wav") + "{"}, "t.jsonl", None, ["t.jsonl, line 2"]),
        ({"t.csv": rows("audio,text,start", "a.wav,hi,x")}, "t.csv", None, ["t.csv, line 2", "start", "'x'"]),
        ({"t.csv": rows("audio,text,text", "a.wav,hi,x")}, "t.csv", None, ["t.csv, line 1", "'text'"]),
        ({"t.csv": rows("audio,text", "http://a/b.wav,hi")}, "t.csv", None, ["t.csv, line 2", "address", "b.wav"]),
        ({"t.csv": rows("audio,text", r"C:\b.wav,hi")}, "t.csv", None, ["t.csv, line 2", "Windows", "b.wav"]),
        ({"t.csv": rows("audio,text", r"x\b.wav,hi")}, "t.csv", None, ["t.csv, line 2", "Windows", "b.wav"]),
        ({"t.csv": "audio,text\na.wav,f\udcfcr\n"}, "t.csv", None, ["t.csv, line 2", "0xfc"]),
        ({"t.tsv": rows("audio\ttext", "a.wav\thi", "b.wav")}, "t.tsv", None, ["t.tsv, line 3", "1 fields"]),
        ({"t.tsv": rows("audio\ttext", "\thi")}, "t.tsv", None, ["t.tsv, line 2", "no audio"]),
        ({"t.tsv": rows("audio\ttext\tsplit", "a.wav\thi\ttarin")}, "t.tsv", None, ["t.tsv, line 2", "tarin", "train"]),
        ({"cuts.jsonl": "{]"}, "cuts.jsonl", None, ["cuts.jsonl, line 1"]),
        ({}, "gone.tsv", None, ["no file"]),
        ({"train.tsv": "a", "more.tsv": "a"}, ["train.tsv", "more.tsv"], None, ["more.tsv", "no split"]),
        ({"t.tsv": "a"}, {"tset": "t.tsv"}, None, ["tset", "test"]),
        ({"x/t.tsv": "a", "x/test/t.tsv": "a"}, {"test": ["x/t.tsv", "x/t.tsv"]}, None, ["test-t"]),
        ({"t.tsv": rows("audio\ttext\tsplit", "a.wav\thi\ttest")}, {"train": "t.tsv"}, None, ["t.tsv, line 2", "test"]),
        ({"a.TextGrid": "x", "a.wav": ""}, ".", None, ["a.TextGrid"]),
        ({"wav.scp": "u1 a.wav\n"}, ".", None, ["no file text"]),
        (KALDI | {"wav.scp": "u1 a.wav\nu1 b.wav\n"}, ".", None, ["wav.scp, line 2"]),
        (KALDI | {"wav.scp": "u1 a.ark:123\n"}, ".", None, ["wav.scp, line 1"]),
        (KALDI | {"text": "u1 one\nu1 two\n"}, ".", None, ["text, line 2"]),
        (KALDI | {"segments": "u1 u1 0.0\n"}, ".", None, ["segments, line 1"]),
        (KALDI | {"segments": "u1 u1 0.0 x\n"}, ".", None, ["segments, line 1"]),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_its_place(files, source, columns, names, tmp_path):
    write(tmp_path, files)
    with pytest.raises(ValueError, match=re.escape(names[0])) as refused:
        import_manifests(below(tmp_path, source), columns=columns)
    assert [name for name in names if name not in str(refused.value)] == []


def test_a_manifest_to_decode_may_have_the_columns_of_training_or_usual_ones(tmp_path):
    write(
        tmp_path, {"a.wav": "", "t.tsv": rows("audio\twords", "a.wav\thi"), "u.tsv": rows("audio\ttext", "a.wav\thi")}
    )
    for name in ("t.tsv", "u.tsv"):
        cuts, _, _ = evaluation_cuts(tmp_path / name, str, SPEC.features, columns={"text": "words"})
        assert [cut.supervisions[0].text for cut in cuts] == ["hi"]


@pytest.mark.parametrize("split", ["validation", None])
def test_saved_datasets_are_read_with_the_audio_that_they_hold(split, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    write(tmp_path, {"a.wav": ""})
    folder = tmp_path / "saved" / (split or "")
    folder.mkdir(parents=True)
    encoded = {"bytes": (tmp_path / "a.wav").read_bytes(), "path": "a.wav"}
    saved = pyarrow.Table.from_pylist(
        [{"audio": one, "sentence": "hi"} for one in (encoded, {"path": str(tmp_path / "a.wav")})]
    )
    with pyarrow.ipc.new_stream(folder / "data.arrow", saved.schema) as stream:
        stream.write_table(saved)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    if split:
        (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": [split]}))
    imported = import_manifests(tmp_path / "saved", audio_dir=tmp_path / "audio")
    assert [*imported.splits] == ["dev" if split else "all"]
    (found,) = imported.splits.values()
    assert [(one.id, one.text, one.duration) for one in found.supervisions] == [
        (f"{split or 'all'}-{number}", "hi", 1.0) for number in ("000001", "000002")
    ]
    with pytest.raises(ValueError, match="saved"):
        import_manifests(tmp_path / "saved")


def test_kaldi_folders_are_read_with_their_segments_and_speakers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from which Kaldi's relative paths start
    for name in ("long", "short"):
        utterance(tmp_path, name, 2.0)
    segments = "s-1 long 0.5 1.25\ns-2 long 1.25 -1\n"
    kaldi(
        tmp_path / "data/train",
        "long long.wav",
        segments=segments,
        text="s-1 one two\ns-2 three\n",
        utt2spk="s-1 a\n s-2 b\n",
    )
    kaldi(tmp_path / "data/valid", f"short {tmp_path}/short.wav", text="short four\n", utt2spk="short c\n")
    imported = import_manifests(tmp_path / "data", num_jobs=2)
    found = {
        split: [(s.id, s.text, s.speaker, s.start, s.end) for s in manifests.supervisions]
        for split, manifests in imported.splits.items()
    }
    assert found == {
        "train": [("s-1", "one two", "a", 0.5, 1.25), ("s-2", "three", "b", 1.25, 2.0)],
        "dev": [("short", "four", "c", 0.0, 2.0)],
    }
    assert len(manifest_files(tmp_path / "data")) == 7
    monkeypatch.chdir("/")
    cuts, dropped, _ = evaluation_cuts(tmp_path / "data/valid", str, SPEC.features)
    assert (len(cuts), dropped) == (1, [])
    (recording,) = imported.splits["train"].recordings
    assert recording.load_audio().shape == (1, 16_000)


def test_a_command_in_wav_scp_is_refused_with_the_line_that_converts_it(tmp_path):
    utterance(tmp_path, "a b")
    folder = kaldi(tmp_path / "data", f"u1 cat '{tmp_path}/a b.wav' |", text="u1 hi\n", utt2spk="u1 x\n")
    with pytest.raises(ValueError, match=r"wav\.scp, line 1: .* is a command") as refused:
        import_manifests(folder)
    assert str(refused.value).endswith(CONVERT)
    subprocess.run(["bash", "-c", CONVERT], cwd=folder, check=True)
    assert [segment.text for segment in import_manifests(folder).splits["all"].supervisions] == ["hi"]


def test_a_kaldi_folder_loses_only_the_utterances_that_lack_something(tmp_path):
    """Rates and channels may differ, tables may end in CRLF and begin with a mark, and speakers may be unknown."""
    for name, rate_hz, num_channels in (("a", 8000, 1), ("b", 16000, 2)):
        soundfile.write(tmp_path / f"{name}.wav", np.full((rate_hz, num_channels), 0.1), rate_hz)
    folder = kaldi(
        tmp_path / "data",
        *(f"{name} {tmp_path}/{name}.wav" for name in ("a", "b", "gone")),
        segments="a-1 a 0.0 0.5\n\nb-1 b 0.25 1.0 1\ngone-1 gone 0 1\nuntold a 0 1\nlost nowhere 0 1\n",
        text="\ufeffa-1 one\r\nb-1\r\ngone-1 three\r\nlost four\r\nonly five\r\n",
        utt2spk="a-1 x\n",
    )
    imported = import_manifests(folder)
    found = [(s.id, s.text, s.speaker, s.start, s.end, s.channel) for s in imported.splits["all"].supervisions]
    assert found == [("a-1", "one", "x", 0.0, 0.5, 0), ("b-1", "", None, 0.25, 1.0, 1)]
    assert {item.item: item.reason.partition(":")[0] for item in imported.dropped} == {
        "gone-1": "missing audio",
        "untold": "missing transcript",
        "lost": "missing recording",
        "only": "missing recording",
    }


def test_a_manifest_of_nemo_is_read_with_parts_of_files(tmp_path):
    utterance(tmp_path, "whole", 1.0)
    utterance(tmp_path, "long", 2.0)
    path = json_lines(
        tmp_path / "mine.jsonl",
        {"audio_filepath": "whole.wav", "duration": 0.9999, "text": "one", "lang": "en", "speaker": 7},
        {"audio_filepath": str(tmp_path / "long.wav"), "duration": 0.5, "offset": 0.25, "text": "two"},
        {"audio_filepath": str(tmp_path / "long.wav"), "duration": 0.5, "offset": 1.5, "text": "three"},
        {"audio_filepath": "gone.wav", "duration": 1.0, "text": "four"},
    )
    imported = import_manifests(path)
    found = [(s.id, s.start, s.duration, s.text, s.language, s.speaker) for s in imported.splits["all"].supervisions]
    assert found == [
        ("whole", 0.0, 1.0, "one", "en", "7"),
        (f"{tmp_path}/long-1", 0.25, 0.5, "two", None, None),
        (f"{tmp_path}/long-2", 1.5, 0.5, "three", None, None),
    ]
    assert [(item.item, item.reason.partition(":")[0]) for item in imported.dropped] == [("gone", "missing audio")]
