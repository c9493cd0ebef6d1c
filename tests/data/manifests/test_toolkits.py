"""Corpora in the form of Kaldi and of NeMo."""

import json
import subprocess
from pathlib import Path

import pytest

from asr.data.manifests.import_manifests import import_manifests, manifest_files
from asr.data.manifests.toolkits import CONVERT
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
    with pytest.raises(ValueError, match="u1 is a command") as refused:
        import_manifests(folder)
    assert str(refused.value).endswith(CONVERT)
    subprocess.run(["bash", "-c", CONVERT], cwd=folder, check=True)
    assert [segment.text for segment in import_manifests(folder).splits["all"].supervisions] == ["hi"]


def test_a_kaldi_folder_without_utterances_or_audio_is_refused(tmp_path):
    utterance(tmp_path, "a")
    for folder in (
        kaldi(tmp_path / "untold", f"u1 {tmp_path}/a.wav"),
        kaldi(tmp_path / "gone", "u1 /gone.wav", text="u1 hi\n", utt2spk="u1 x\n"),
        kaldi(tmp_path / "empty"),
    ):
        with pytest.raises(ValueError, match=str(folder)):
            import_manifests(folder)


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
