"""Shar folders of strangers: whatever manifest or tar ask for, nothing runs, nothing is written, one line says so."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.data.manifests.audio_checks import audio_problem
from asr.data.manifests.import_manifests import import_manifests
from asr.data.manifests.shar.members import ShardMember, UnusableShard
from asr.data.preparation.prepared import DamagedData, PreparedData
from tests.data.corpora import Recipe, run
from tests.faults.spoken_corpus import TINY
from tests.security.hostile_tars import bad_tars, member, packed

SHAR = {"type": "shar", "channels": [0], "source": ""}
RECORDING = {"id": "r", "sources": [SHAR], "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
SEGMENT = {"id": "s", "recording_id": "r", "start": 0, "duration": 1.0, "text": "a", "channel": 0}
CUT = {"id": "a", "start": 0, "duration": 1.0, "channel": 0, "supervisions": [SEGMENT], "recording": RECORDING}
CUT["type"] = "MonoCut"


def flac() -> bytes:
    content = io.BytesIO()
    soundfile.write(content, np.random.default_rng(0).normal(size=8000) * 0.1, 8000, format="FLAC")
    return content.getvalue()


def told(**changed: Any) -> bytes:
    return f"{json.dumps(RECORDING | changed)}\n".encode()


def write(folder: Path, tar: bytes, cut: Any = CUT) -> Path:
    folder.mkdir(exist_ok=True)
    line = cut if isinstance(cut, bytes) else json.dumps(cut).encode()
    (folder / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(line + b"\n"))
    (folder / "recording.000000.tar").write_bytes(tar)
    return folder


GOOD = packed(member("a.flac", flac()), member("a.json", told()))


def with_manifest(content: bytes) -> bytes:
    return packed(member("a.flac", flac()), member("a.json", content))


def source(**changed: Any) -> bytes:
    return with_manifest(told(sources=[SHAR | changed]))


def of_cut(**changed: Any) -> Any:
    return CUT | changed


COMMAND = {"type": "command", "channels": [0], "source": "touch hacked"}
BAD_RESPONSE = {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": RECORDING | {"sources": [COMMAND]}}}
TARS = bad_tars(flac(), told(), ".flac", "audio", "a recording") | {
    "a manifest that is a list": (with_manifest(b"[]"), "audio of type 'None' is refused"),
    "a command": (source(**COMMAND), "audio of type 'command' is refused"),
    "an address": (source(type="url", source="http://localhost/a.wav"), "audio of type 'url' is refused"),
    "samples in the manifest": (source(type="memory", source="UklGRg=="), "audio of type 'memory' is refused"),
    "a file elsewhere": (source(type="file", source="/etc/passwd"), "audio of type 'file' is refused"),
    "a path in a placeholder": (source(source="pipe:touch hacked"), "is refused, because"),
    "a second source that is a command": (with_manifest(told(sources=[SHAR, COMMAND])), "type 'command' is refused"),
    "two sources": (with_manifest(told(sources=[SHAR, SHAR])), "has 2 sources"),
    "sources as text": (with_manifest(told(sources="touch hacked")), "audio of type 'None' is refused"),
    "a command as impulse response": (with_manifest(told(transforms=[BAD_RESPONSE])), "'command'"),
    "a rate in words": (with_manifest(told(sampling_rate="8000")), "field 'sampling_rate' must be int"),
}


@pytest.mark.parametrize(("tar", "said"), TARS.values(), ids=TARS.keys())
def test_a_tar_that_is_more_or_less_than_audio_is_refused(tmp_path, monkeypatch, tar, said):
    folder = write(tmp_path / "shar", tar)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"recording\.000000\.tar") as error:
        import_manifests(folder)
    assert said in str(error.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cuts.000000.jsonl.gz", "recording.000000.tar", "shar"]


def recording(**changed: Any) -> Any:
    return of_cut(recording=RECORDING | changed)


CUTS = {
    "a command": (recording(sources=[COMMAND]), "audio of type 'command' is refused"),
    "an address": (recording(sources=[SHAR | {"type": "url", "source": "s3://a/b"}]), "audio of type 'url' is refused"),
    "a file": (recording(sources=[SHAR | {"type": "file", "source": "/etc/passwd"}]), "type 'file' is refused"),
    "no sources": (recording(sources=None), "audio of type 'None' is refused"),
    "a mixed cut": (of_cut(type="MixedCut"), "a cut of type 'MixedCut' is not read"),
    "a type in a list": (of_cut(type=["MonoCut"]), "is not read"),
    "no id": (of_cut(id=None), "field 'id' must be str"),
    "an id of two lines": (of_cut(id="a\nb"), "field 'id' must be one line"),
    "supervisions in words": (of_cut(supervisions="x"), "field 'supervisions' must be list"),
    "a supervision in words": (of_cut(supervisions=["x"]), "an object in braces is expected"),
    "30,000 supervisions": (of_cut(supervisions=[SEGMENT] * 30_000), "30000 supervisions; at most"),
    "a transcript of 4 MB": (of_cut(supervisions=[SEGMENT | {"text": "a " * 2**21}]), "the transcript has"),
    "a line that is no JSON": (b"\x80\x04", "is no jsonl manifest"),
    "two cuts of one id": (json.dumps(CUT).encode() + b"\n" + json.dumps(CUT).encode(), "ends before the audio of 'a'"),
}


@pytest.mark.parametrize(("cut", "said"), CUTS.values(), ids=CUTS.keys())
def test_a_cut_that_is_more_than_audio_of_its_shard_is_refused(tmp_path, cut, said):
    folder = write(tmp_path / "shar", GOOD, cut)
    with pytest.raises(ValueError, match=r"000000\.(jsonl\.gz|tar)") as error:
        import_manifests(folder)
    assert said in str(error.value)


def test_a_plain_folder_is_let_through(tmp_path):
    (found,) = import_manifests(write(tmp_path, GOOD)).splits["all"].recordings
    assert audio_problem(found) is None
    assert found.load_audio().shape == (1, 8000)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def second(folder: Path) -> None:
    for name in ("cuts.{}.jsonl.gz", "recording.{}.tar"):
        (folder / name.format("000002")).write_bytes((folder / name.format("000000")).read_bytes())


def piped(folder: Path) -> None:
    without("recording.000000.tar")(folder)
    os.mkfifo(folder / "recording.000000.tar")


FOLDERS = {
    "audio without cuts": (without("cuts.000000.jsonl.gz"), "recording.000000.tar has no cuts"),
    "cuts without audio": (without("recording.000000.tar"), "no jsonl manifest|audio of type 'shar'"),
    "two of one number": (
        lambda folder: (folder / "cuts.0.jsonl.gz").write_bytes((folder / "cuts.000000.jsonl.gz").read_bytes()),
        r"cuts\.0\.jsonl\.gz and cuts\.000000\.jsonl\.gz are both of one shard; keep one",
    ),
    "packed and unpacked": (
        lambda folder: (folder / "cuts.000000.jsonl").write_text(""),
        r"cuts\.000000\.jsonl and cuts\.000000\.jsonl\.gz are both of one shard",
    ),
    "a gap in the numbers": (second, "shard 1 is missing, between 0 and 2"),
    "features alone": (
        lambda folder: (folder / "recording.000000.tar").rename(folder / "features.000000.tar"),
        "'a.json': the file beside it is .flac, no array of numpy",
    ),
    "a pipe in place of a tar": (piped, "is not a regular file"),
}


@pytest.mark.parametrize(("harm", "said"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_that_lacks_a_part_is_refused(tmp_path, harm, said):
    folder = write(tmp_path / "shar", GOOD)
    harm(folder)
    with pytest.raises(ValueError, match=said):
        import_manifests(folder)


def test_a_part_of_a_folder_is_refused_with_the_name_of_the_whole(tmp_path):
    folder = write(tmp_path / "shar", GOOD)
    with pytest.raises(ValueError, match=f"is a part of a Shar folder; name the folder: {folder}"):
        import_manifests(folder / "cuts.000000.jsonl.gz")


def test_a_folder_that_names_a_command_ends_in_a_line_and_runs_nothing(programs, tmp_path):
    write(tmp_path / "shar", source(**COMMAND))
    words = [word for word in TINY if not word.startswith("data.source")]
    ended = programs.run("prepare", *words, "data.source=shar", cwd=tmp_path)
    assert (ended.code, "audio of type 'command' is refused" in ended.last_line) == (2, True), ended.printed
    assert not (tmp_path / "hacked").exists()


PLACES = {
    "before the beginning": "{tar}:0+0",
    "after the end": "{tar}:100000+100",
    "of a terabyte": "{tar}:0+1099511627776",
    "of a gigabyte": "{tar}:0+1073741824",
    "of a device": "/dev/zero.tar:0+100",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_place_that_is_not_in_its_tar_is_refused_before_memory_is_taken(tmp_path, place):
    (tmp_path / "a.tar").write_bytes(GOOD)
    name = place.format(tar=tmp_path / "a.tar")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = ShardMember.find(name)
    if found is None:
        assert "1099511627776" in name
        return
    with pytest.raises(UnusableShard):
        found.read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize(
    "name", ["/a.tar", "/a.tar:", "a.tar:0+1", "/a.tar:-1+1", "/a.tar:0+1#x", "/a.tar:0+1|", 7, None]
)
def test_other_names_are_names_of_files(name):
    assert ShardMember.find(name) is None


def test_a_pipe_in_place_of_a_shard_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(UnusableShard, match="is not a regular file"):
        ShardMember(str(tmp_path / "a.tar"), 0, 10).read()


def test_years_of_silence_in_a_shard_are_not_decoded(tmp_path):
    content = io.BytesIO()
    with soundfile.SoundFile(content, "w", 8000, 1, "PCM_16", format="FLAC") as file:
        for _ in range(6000):
            file.write(np.zeros(8000, np.int16))
    folder = write(tmp_path, packed(member("a.flac", content.getvalue()), member("a.json", told())))
    (found,) = import_manifests(folder).splits["all"].recordings
    assert audio_problem(found).startswith("unexpected length: 48000000 samples, the manifest has 8000")
    with pytest.raises(ValueError, match="more than 43200000 samples in all channels"):
        found.load_audio()


@pytest.mark.parametrize("shards", [7, [], {"a.tar": 1}, {"/a.tar": "1"}, {"/a.tar": True}, {"/a\0.tar": 1}])
def test_an_index_with_impossible_shards_is_refused(tmp_path, shards):
    prepared = run(tmp_path, Recipe())
    path = prepared.folder / "prepared.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shards": shards}))
    with pytest.raises(DamagedData, match=r"'shards' of prepared\.json is"):
        PreparedData.load(prepared.folder)
