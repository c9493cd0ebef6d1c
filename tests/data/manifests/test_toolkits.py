"""Corpora in the form of Kaldi and of NeMo."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.data.manifests.import_manifests import import_manifests, manifest_files
from asr.data.manifests.layouts import CONVERT
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import SPEC, utterance


def kaldi(folder: Path, *wavs: str, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "wav.scp").write_text("".join(f"{line}\n" for line in wavs))
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


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


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"text": None}, "no file text"),
        ({"wav.scp": "u1 a.wav\nu1 b.wav\n"}, "wav.scp, line 2"),
        ({"wav.scp": "u1 a.ark:123\n"}, "wav.scp, line 1"),
        ({"text": "u1 one\nu1 two\n"}, "text, line 2"),
        ({"segments": "u1 u1 0.0\n"}, "segments, line 1"),
        ({"segments": "u1 u1 0.0 x\n"}, "segments, line 1"),
    ],
)
def test_a_malformed_line_of_kaldi_is_refused_with_its_file_and_number(tmp_path, files, place):
    folder = kaldi(tmp_path / "data", "u1 a.wav", text="u1 hi\n")
    for name, content in files.items():
        (folder / name).write_text(content) if content is not None else (folder / name).unlink()
    with pytest.raises(ValueError, match=place):
        import_manifests(folder)


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


# an utterance that ends after its recording of one second, as each format says it
OVERSHOOTING = {
    "kaldi": lambda folder, end_s: kaldi(folder, f"u {folder}.wav", segments=f"u u 0 {end_s}\n", text="u hi\n"),
    "nemo": lambda folder, end_s: nemo(
        folder.with_suffix(".json"), {"audio_filepath": f"{folder}.wav", "offset": 0, "duration": end_s, "text": "hi"}
    ),
    "lhotse": lambda folder, end_s: supervised(folder, end_s),
}


def supervised(folder: Path, end_s: float) -> Path:
    folder.mkdir()
    RecordingSet.from_recordings([Recording.from_file(f"{folder}.wav", recording_id="u")]).to_file(
        folder / "recordings.jsonl"
    )
    SupervisionSet.from_segments([SupervisionSegment("u", "u", 0.0, end_s, text="hi")]).to_file(
        folder / "supervisions.jsonl"
    )
    return folder


@pytest.mark.parametrize("kind", OVERSHOOTING)
def test_rounded_times_are_trimmed_and_others_dropped_in_every_format(tmp_path, kind):
    found = {}
    for end_s in (1.004, 1.5, 1.6):
        folder = tmp_path / f"end{end_s}"
        utterance(tmp_path, folder.name, 1.0)
        imported = import_manifests(OVERSHOOTING[kind](folder, end_s))
        segments = [s for manifests in imported.splits.values() for s in manifests.supervisions]
        found[end_s] = [s.end for s in segments], imported.num_trimmed, len(imported.dropped)
    assert found[1.004] in (([1.0], 1, 0), ([1.0], 0, 0))  # what rounding to 10 ms explains is not counted in tables
    assert found[1.5] == ([1.0], 1, 0)
    assert found[1.6] == ([], 0, 1)


def test_two_files_of_one_stem_are_two_recordings_and_a_later_line_may_be_a_part(tmp_path):
    utterance(tmp_path, "u", 1.0)
    soundfile.write(tmp_path / "u.flac", np.full(24_000, 0.1), 8000)
    path = nemo(
        tmp_path / "m.json",
        {"audio_filepath": "u.flac", "text": "three"},
        {"audio_filepath": "u.wav", "offset": 0.0, "duration": 0.5, "text": "one"},
        {"audio_filepath": "u.wav", "offset": 0.5, "duration": 0.5, "text": "two"},
    )
    manifests = import_manifests(path).splits["all"]
    durations = {recording.id: recording.duration for recording in manifests.recordings}
    assert [(s.text, durations[s.recording_id], s.start) for s in manifests.supervisions] == [
        ("three", 3.0, 0.0),
        ("one", 1.0, 0.0),
        ("two", 1.0, 0.5),
    ]


def nemo(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_manifest_of_nemo_is_read_with_parts_of_files(tmp_path):
    utterance(tmp_path, "whole", 1.0)
    utterance(tmp_path, "long", 2.0)
    path = nemo(
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


@pytest.mark.parametrize("line", ['{"text": "two"}', "{"])
def test_a_malformed_line_of_nemo_is_refused_with_its_number(tmp_path, line):
    path = nemo(tmp_path / "manifest.json", {"audio_filepath": "a.wav", "duration": 1.0, "text": "one"})
    path.write_text(path.read_text() + line)
    with pytest.raises(ValueError, match=r"manifest\.json, line 2"):
        import_manifests(path)
