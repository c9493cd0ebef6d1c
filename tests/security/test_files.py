"""Checkpoints, manifests, features and archives of others: no code is run, nothing is written elsewhere."""

import io
import json
import os
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lhotse import AudioSource, SupervisionSegment
from lhotse.features.io import READER_BACKENDS
from lhotse.shar import SharWriter

from asr.data.features import PrecomputedFeatures
from asr.data.manifests.archives import extract
from asr.data.manifests.import_manifests import import_manifests
from asr.data.preparation.cuts import evaluation_cuts
from tests.data.corpora import utterance
from tests.data.feature_corpora import WIDTH, file_of, stored_utterance, write_folder
from tests.faults.spoken_corpus import TINY


class MakesFolder:
    """Makes a folder ``hacked`` where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("hacked",)


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_a_pickle_in_the_place_of_a_checkpoint_is_never_opened(small_run, tmp_path, command):
    run_dir = small_run.copy(tmp_path / "run")
    for path in (run_dir / "checkpoints").glob("*.ckpt"):
        path.unlink()
        torch.save({"state_dict": MakesFolder()}, path)
    word = "run" if command == "evaluate" else "resume"
    words = (f"{word}={run_dir}", f"data.dir={small_run.data_dir}")
    ended = small_run.programs.run(command, *words, cwd=tmp_path, code=None)
    assert ended.code in (1, 2), ended.printed
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.parametrize("write", [pickle.dump, lambda evil, file: np.save(file, np.array([evil]), allow_pickle=True)])
def test_a_pickle_in_the_place_of_features_is_never_opened(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    features, segment = stored_utterance(tmp_path, "a")
    with file_of(features).open("wb") as file:
        write(MakesFolder(), file)
    with pytest.raises(ValueError, match="unreadable features"):
        evaluation_cuts(write_folder(tmp_path, (features, segment)), str, PrecomputedFeatures(WIDTH))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("storage", sorted(READER_BACKENDS.keys() - {"numpy_files"}))
def test_features_in_another_storage_than_numpy_files_are_refused(tmp_path, storage):
    features, segment = stored_utterance(tmp_path, "a")
    features.storage_type = storage
    with pytest.raises(ValueError, match=f"line 1: storage '{storage}'"):
        import_manifests(write_folder(tmp_path, (features, segment)))


SOURCES = {
    "a command": AudioSource("command", [0], "touch hacked; cat a.wav"),
    "an address": AudioSource("url", [0], "https://example.org/a.wav"),
    "a pipe": AudioSource("file", [0], "touch hacked; cat a.wav |"),
    "a pipe of webdataset": AudioSource("file", [0], "pipe:touch hacked"),
    "data": AudioSource("memory", [0], "UklGRg=="),
}


@pytest.mark.parametrize("place", ["recordings", "cuts", "impulse response"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_recording_that_is_not_a_plain_file_is_refused(tmp_path, monkeypatch, place, source):
    monkeypatch.chdir(tmp_path)
    recording, segment = utterance(tmp_path, "a")
    evil = replace(recording, sources=[source])
    if place == "impulse response":
        evil = recording.reverb_rir(evil)
    cut = evil.to_cut()
    cut.supervisions = [segment]
    name = "cuts" if place == "cuts" else "recordings"
    Path(f"{name}.jsonl").write_text(json.dumps((cut if place == "cuts" else evil).to_dict()))
    Path("supervisions.jsonl").write_text(json.dumps(segment.to_dict()))
    with pytest.raises(ValueError, match=rf"{name}\.jsonl, line 1: audio of type '{source.type}'"):
        import_manifests(Path("cuts.jsonl") if place == "cuts" else tmp_path)
    assert not Path("hacked").exists()


def test_a_command_in_a_table_is_a_file_that_does_not_exist(programs, tmp_path):
    (tmp_path / "a.tsv").write_text("audio\ttext\n/dev/zero\ta\ntouch hacked |\tb\n")
    ended = programs.run("prepare", *TINY, "data.source=a.tsv", cwd=tmp_path, code=2)
    assert "can be used" in ended.last_line, ended.printed
    assert not (tmp_path / "hacked").exists()


def test_a_command_in_a_shar_folder_is_not_looked_at_and_an_id_never_becomes_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recording, _ = utterance(tmp_path, "a")
    cut = replace(recording, id="../../up").to_cut()
    cut.supervisions = [SupervisionSegment("../../up", "../../up", 0.0, 1.0, text="a")]
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut.to_dict()))
    (found,) = import_manifests(tmp_path / "cuts.jsonl").splits["all"].recordings
    assert found.sources == recording.sources
    cut = recording.to_cut()
    cut.supervisions = [SupervisionSegment("a", "a", 0.0, 1.0, text="a")]
    with SharWriter(tmp_path / "shar", {"recording": "wav"}) as writer:
        (tmp_path / "shar").mkdir()
        writer.write(cut)
    tar = next((tmp_path / "shar").glob("*.tar"))
    tar.write_bytes(
        tar.read_bytes().replace(b'"type": "shar"', b'"type": "file"').replace(b'"source": ""', b'"source":"|"')
    )
    (found,) = import_manifests(tmp_path / "shar").splits["all"].recordings
    assert found.sources[0].source.startswith(str(tar))


@pytest.mark.parametrize("name", ["../hacked", "a/../../hacked"])
@pytest.mark.parametrize("kind", ["tar", "zip", "link"])
def test_a_path_out_of_an_archive_is_refused_and_nothing_is_left(tmp_path, kind, name):
    archive = tmp_path / "a.archive"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr("good", "x")
            zipped.writestr(name, "x")
    else:
        with tarfile.open(archive, "w") as tar:
            tar.addfile(tarfile.TarInfo("good"))
            member = tarfile.TarInfo(name if kind == "tar" else "link")
            member.type, member.linkname = (tarfile.REGTYPE, "") if kind == "tar" else (tarfile.SYMTYPE, name)
            tar.addfile(member, io.BytesIO())
    with pytest.raises(ValueError, match=r"a\.archive"):
        extract(archive, tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []
    assert not (tmp_path / "hacked").exists()
