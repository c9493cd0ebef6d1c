"""Sources and prepared data of strangers, given to the real programs: one line, soon, and nothing is run or left."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.spoken_corpus import TINY, TRAIN, write_corpus

Make = Callable[[Path], str]


def special(make: Callable[[str], Any]) -> Make:
    def source(folder: Path) -> str:
        make(str(folder / "special"))
        return "special"

    return source


def bind(path: str) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path)


def pipe_named(name: str) -> Make:
    def source(folder: Path) -> str:
        (folder / "brought").mkdir()
        os.mkfifo(folder / "brought" / name)
        return "brought"

    return source


def text(name: str, content: str | bytes) -> Make:
    def source(folder: Path) -> str:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return name

    return source


def cut_gz(name: str) -> Make:
    def source(folder: Path) -> str:
        packed = gzip.compress(b"audio\ttext\n" + os.urandom(2000).hex().encode())
        (folder / name).write_bytes(packed[:-100])
        return name

    return source


def sparse(folder: Path) -> str:
    with (folder / "huge.tsv").open("wb") as file:
        file.truncate(2**40)
    return "huge.tsv"


def zeros(folder: Path) -> str:
    with (folder / "zeros.tsv").open("wb") as file:
        file.truncate(2**30)
    return "zeros.tsv"


def link_loop(folder: Path) -> str:
    (folder / "loop").symlink_to("loop")
    return "loop"


def folder_of_loops(folder: Path) -> str:
    (folder / "loops").mkdir()
    (folder / "loops" / "again").symlink_to(folder / "loops")
    for kind in ("recordings", "supervisions"):
        (folder / "loops" / f"{kind}.jsonl").symlink_to(f"{kind}.jsonl")
    return "loops"


def manifests(recording: dict[str, Any]) -> Make:
    def source(folder: Path) -> str:
        brought = folder / "brought"
        brought.mkdir()
        item = {"id": "a", "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0} | recording
        (brought / "recordings.jsonl").write_text(json.dumps(item) + "\n")
        segment = {"id": "a", "recording_id": "a", "start": 0, "duration": 1.0, "text": "a"}
        (brought / "supervisions.jsonl").write_text(json.dumps(segment) + "\n")
        return "brought"

    return source


def manifest_of(*lines: dict[str, Any]) -> Make:
    return text("cuts.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def packed_rows(*first: str) -> Make:
    """A table that is refused at its beginning, with a million rows after it."""
    rows = b"".join(b"%d.wav\ta\tb%d\n" % (number, number) for number in range(10**6))
    return text("a.tsv.gz", "".join(f"{line}\n" for line in first).encode() + rows)


FILE = {"type": "file", "channels": [0], "source": "/nowhere/a.wav"}
RECORDING = {"id": "a", "sources": [FILE], "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
SEGMENT = {"id": "a", "recording_id": "a", "start": 0, "duration": 1.0, "text": "a"}
CUT = {"type": "MonoCut", "id": "a", "start": 0, "recording": RECORDING, "supervisions": [SEGMENT]}
COMMAND = {"type": "command", "channels": [0], "source": "touch hacked"}
SOURCES = {
    "a device without end": (lambda folder: "/dev/zero", "neither a regular file nor a folder"),
    "a device of random bytes": (lambda folder: "/dev/urandom", "neither a regular file nor a folder"),
    "a terminal": (lambda folder: "/dev/tty", "neither a regular file nor a folder"),
    "a pipe": (special(os.mkfifo), "neither a regular file nor a folder"),
    "a socket": (special(bind), "neither a regular file nor a folder"),
    "a link to a device": (special(lambda path: os.symlink("/dev/zero", path)), "neither a regular file nor a folder"),
    "a link to itself": (link_loop, "there is no file or folder"),
    "a name of 300 characters": (lambda folder: "n" * 300, "there is no file or folder"),
    "a path of 5000 characters": (lambda folder: "n/" * 2500, "there is no file or folder"),
    "nothing": (lambda folder: "nowhere", "there is no file or folder"),
    "a folder of links to itself": (folder_of_loops, "no jsonl manifest"),
    "an empty folder": (lambda folder: (folder / "e").mkdir() or "e", "no manifests are there"),
    "a pipe named recordings": (pipe_named("recordings.jsonl"), "not both"),
    "a pipe named cuts": (pipe_named("cuts.jsonl"), "not a regular file"),
    "a pipe named cuts, packed": (pipe_named("cuts_train.jsonl.gz"), "not a regular file"),
    "a table of a terabyte": (sparse, "is no table, but a binary file"),
    "a table of zeros": (zeros, "is no table, but a binary file"),
    "a line of 40 million characters": (text("a.tsv", "audio\ttext\n" + "a" * 4 * 10**7), "line 2: a line has more"),
    "a table of NUL bytes": (text("a.tsv", b"\0" * 1000), "is no table, but a binary file"),
    "a table that is a picture": (text("a.tsv", b"\x89PNG\r\n\x1a\n" + bytes(range(256))), "not UTF-8"),
    "an archive": (text("corpus.tar.xz", b"\xfd7zXZ"), "corpus.tar.xz is an archive; unpack it"),
    "a table without rows": (text("a.tsv", "audio\ttext\n"), "a header and no rows"),
    "a table without columns": (text("a.tsv", "\n\n"), "the header lacks audio and text"),
    "a table of a pipe": (text("a.tsv", "audio\ttext\n/dev/stdin\ta\ntouch hacked |\tb\n"), "can be used"),
    "a table of devices": (text("a.tsv", "audio\ttext\n/dev/zero\ta\n/dev/random\tb\n"), "can be used"),
    "a table of impossible names": (text("a.tsv", f"audio\ttext\n{'n' * 300}\ta\n{'n/' * 3000}\tb\n"), "can be used"),
    "a packed table of a million missing files": (
        text("a.tsv.gz", b"audio\ttext\n" + b"".join(b"%d\t\n" % number for number in range(10**6))),
        "none of the first 10000 audio files is there",
    ),
    "a split that leads elsewhere": (
        text("a.tsv", "audio\ttext\tsplit\na.wav\ta\ttest/../../x\n"),
        "there is no split",
    ),
    "escape sequences": (text("a.tsv", "audio\x1b[31m\ttext\n"), "the header lacks audio"),
    "a gz bomb of spaces": (text("cuts.jsonl.gz", b" " * 2**27), "a line has more than"),
    "a gz bomb of lines": (text("cuts.jsonl.gz", b"\n" * 2**26), "lines in a row are blank"),
    "a table cut short": (cut_gz("a.tsv.gz"), "line 2: it cannot be decompressed: Compressed file ended"),
    "a table that is no gz": (
        lambda folder: (folder / "a.tsv.gz").write_text("audio\ttext\n") and "a.tsv.gz",
        "line 1: it cannot be decompressed: Not a gzipped file",
    ),
    "a gz cut short": (text("cuts.jsonl.gz", b""), "can be used"),
    "no gz": (lambda folder: (folder / "c.jsonl.gz").write_text("{}") and "c.jsonl.gz", "no jsonl manifest"),
    "brackets without end": (text("cuts.jsonl", "[" * 10**6), "no jsonl manifest"),
    "a number without end": (text("cuts.jsonl", "9" * 10**6), "no jsonl manifest"),
    "a manifest of NeMo": (text("cuts.jsonl", '{"audio_filepath": "a.wav", "text": "a"}'), "a manifest of NeMo, which"),
    "a mixed cut": (text("cuts.jsonl", '{"type": "MixedCut", "tracks": []}'), "a cut of type 'MixedCut' is not read"),
    "a million channels": (
        manifests({"sources": [FILE | {"channels": list(range(10**6))}]}),
        "line 1: the recording has",
    ),
    "a million ids of channels": (
        manifests({"sources": [FILE], "channel_ids": list(range(10**6))}),
        "1000000 channels",
    ),
    "20,000 sources": (manifests({"sources": [FILE] * 20_000}), "line 1: the recording has 20000 channels"),
    "50,000 transforms": (
        manifests({"sources": [FILE], "transforms": [{"name": "Volume", "kwargs": {"factor": 1.0}}] * 50_000}),
        "line 1: the recording has 50000 transforms",
    ),
    "a cut of 30,000 supervisions": (
        manifest_of(CUT, CUT | {"supervisions": [SEGMENT] * 30_000}),
        "line 2: the cut has 30000 supervisions",
    ),
    "a supervision of a million channels": (
        manifest_of(CUT | {"supervisions": [SEGMENT | {"channel": list(range(10**6))}]}),
        "line 1: the supervision has more than 1024 channels",
    ),
    "a supervision whose channels are no numbers": (
        manifest_of(CUT | {"supervisions": [SEGMENT | {"channel": [{}]}]}),
        "line 1: field 'channel' must hold whole numbers, given [{}]",
    ),
    "a recording without sources": (
        manifests({"sources": []}),
        "recordings.jsonl, line 1: field 'sources' must name the file and the channels of the audio, given neither",
    ),
    "a recording without channels": (
        manifests({"sources": [FILE | {"channels": []}]}),
        "recordings.jsonl, line 1: field 'sources' must name",
    ),
    "a transcript of 60,000 words": (
        text("a.tsv", "audio\ttext\na.wav\ta\nb.wav\t" + "a " * 60_000),
        "a.tsv, line 3: the transcript has 120000 characters",
    ),
    "a transcript of 60,000 words in a manifest": (
        manifest_of(CUT, CUT | {"supervisions": [SEGMENT | {"text": "a " * 60_000}]}),
        "line 2: the transcript has 120000 characters",
    ),
    **{
        f"{field} of {str(value)[:9]}": (
            manifests({"sources": [FILE], **changed}),
            f"recordings.jsonl, line 1: field '{field}' must be from",
        )
        for field, value, changed in [
            ("num_samples", 10**30, {"num_samples": 10**30, "duration": 10**30 / 8000}),
            ("num_samples", -(10**30), {"num_samples": -(10**30)}),
            ("sampling_rate", 10**30, {"sampling_rate": 10**30}),
            ("duration", 1e-300, {"duration": 1e-300}),
            ("duration", 1e300, {"duration": 1e300}),
            ("duration", float("inf"), {"duration": float("inf")}),
            ("duration", float("nan"), {"duration": float("nan")}),
            ("duration", 10**4000, {"duration": 10**4000}),
        ]
    },
    **{
        f"a supervision with {field} of {str(value)[:9]}": (
            manifest_of(CUT, CUT | {"supervisions": [SEGMENT | {field: value}]}),
            f"cuts.jsonl, line 2: field '{field}' must be from",
        )
        for field, value in [("duration", 1e-300), ("duration", -1e300), ("start", 1e300), ("start", float("nan"))]
    },
    "a cut that starts at 1e300": (
        manifest_of(CUT | {"start": 1e300}),
        "line 1: field 'start' must be from 0 to 1e+09",
    ),
    "a duration of minus zero": (manifests({"sources": [FILE], "duration": -0.0}), "brought"),
    "half of a surrogate pair": (
        manifest_of(CUT, CUT | {"supervisions": [SEGMENT | {"text": "a\ud800"}]}),
        r"line 2: this is no jsonl manifest: it holds '\ud800', half of a surrogate pair",
    ),
    "a path with half of a surrogate pair": (
        manifests({"sources": [FILE | {"source": "/\udfff"}]}),
        r"line 1: this is no jsonl manifest: it holds '\udfff', half of a surrogate pair",
    ),
    "a byte that is not UTF-8": (
        text("a.tsv", b"audio\ttext\na.wav\ta\nb.wav\ta\xff\nc.wav\ta\n"),
        "a.tsv, line 3: not UTF-8 text: byte 0xff at character 8",
    ),
    "a byte that is not UTF-8 in a manifest": (
        text("cuts.jsonl.gz", b'\n\n{"id": "\xe4"}\n'),
        "near line 3: this is no jsonl manifest: not UTF-8 text: byte 0xe4",
    ),
    "a packed table that repeats a column": (packed_rows("audio\ttext\tid\tid"), "column 'id' occurs more than once"),
    "a packed table that repeats an id": (
        packed_rows("audio\ttext\tid", "x.wav\ta\tx", "y.wav\ta\tx"),
        "line 3: the id 'x' occurs in line 2 too",
    ),
    "a command": (manifests({"sources": [COMMAND]}), "audio of type 'command'"),
    "a command as impulse response": (
        manifests(
            {
                "sources": [COMMAND | {"type": "file", "source": "a.wav"}],
                "transforms": [{"name": "ReverbWithImpulseResponse", "kwargs": {"rir": {"sources": [COMMAND]}}}],
            }
        ),
        "brought",
    ),
}


@pytest.mark.parametrize(("source", "message"), SOURCES.values(), ids=SOURCES.keys())
def test_a_source_that_would_harm_is_refused_in_one_line(programs, tmp_path, source, message):
    given = source(tmp_path)
    before = {path for path in tmp_path.rglob("*") if not path.is_symlink()}
    ended = programs.run("prepare", *TINY, f"data.source={given}", cwd=tmp_path, timeout_s=30)
    assert (ended.code, "Traceback" in ended.printed) == (2, False), ended.printed
    assert message in ended.last_line
    assert "\x1b" not in ended.printed
    assert ended.seconds < 10
    assert ended.peak_mb < 1000
    left = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if not path.is_symlink()} - {
        path.relative_to(tmp_path) for path in before
    }
    assert not [path for path in left if path.name == "hacked" or path.name.endswith((".json", ".npz", ".partial"))]


@pytest.fixture(scope="module")
def run_dir(programs, tmp_path_factory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("security") / "corpus")
    ended = programs.run("train", *TRAIN, "decode_test=false", cwd=folder)
    assert ended.code == 0, ended.printed
    return folder / "run"


def change_cut(**changed: Any) -> Callable[[Path], None]:
    """Change the last test cut, and all digests with it, as an adversary would."""
    return change_cuts("test", lambda cut: cut | changed, slice(-1, None))


def change_segment(**changed: Any) -> Callable[[Path], None]:
    return change_cuts("test", lambda cut: cut | {"supervisions": [cut["supervisions"][0] | changed]}, slice(-1, None))


def change_cuts(
    split: str, changed: Callable[[dict[str, Any]], dict[str, Any]], which: slice = slice(None)
) -> Callable[[Path], None]:
    def change(data: Path) -> None:
        path = data / f"cuts_{split}.jsonl"
        cuts = [json.loads(line) for line in path.read_text().splitlines()]
        cuts[which] = [changed(cut) for cut in cuts[which]]
        path.write_text("".join(json.dumps(cut) + "\n" for cut in cuts))
        offsets = np.cumsum([0, *(len(json.dumps(cut)) + 1 for cut in cuts)])[:-1]
        np.savez(path.with_suffix(".npz"), offsets=offsets, durations=np.array([cut["duration"] for cut in cuts]))
        seal(data)

    return change


def seal(data: Path) -> None:
    """Let the digests fit what is there."""
    index = json.loads((data / "prepared.json").read_text())
    for name in index["files"]:
        content = (data / name).read_bytes()
        index["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    index.pop("sha256")
    index["sha256"] = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (data / "prepared.json").write_text(json.dumps(index))


def change_index(**changed: Any) -> Callable[[Path], None]:
    def change(data: Path) -> None:
        index = json.loads((data / "prepared.json").read_text())
        (data / "prepared.json").write_text(json.dumps(index | changed))

    return change


def recording(**source: Any) -> dict[str, Any]:
    sources = [{"type": "file", "channels": [0], "source": "/tmp/a.wav"} | source]
    return {"id": "r", "sources": sources, "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}


PREPARED = {
    "a command as audio": (change_cut(recording=recording(type="command", source="touch hacked")), "type 'command'"),
    "an address as audio": (change_cut(recording=recording(type="url", source="http://localhost:1/")), "type 'url'"),
    "features of kaldi": (
        change_cut(features={"storage_type": "kaldiio", "storage_path": "touch hacked |", "storage_key": "a"}),
        "storage 'kaldiio'",
    ),
    "features that are unpickled": (
        change_cut(features={"storage_type": "memory_raw", "storage_path": "", "storage_key": "gASV"}),
        "storage 'memory_raw'",
    ),
    "a transcript that is a number": (change_segment(text=5), "field 'text' must be str, given '5'"),
    "a transcript of 4 MB": (change_segment(text="a " * 2**21), "the transcript has 4194304 characters"),
    "a speaker in a list": (change_segment(speaker=["x"]), "field 'speaker' must be str, given"),
    "a mixed cut": (change_cut(type="MixedCut", tracks=[]), "this is no cut of type"),
    "cuts cut short": (lambda data: os.truncate(data / "cuts_test.jsonl", 100), "cuts_test.jsonl has 100 bytes"),
    "an index cut short": (lambda data: os.truncate(data / "cuts_test.npz", 100), "cuts_test.npz has 100 bytes"),
    "a pipe as cuts": (
        lambda data: (data / "cuts_test.jsonl").unlink() or os.mkfifo(data / "cuts_test.jsonl"),
        "cuts_test.jsonl is missing, or is no file",
    ),
    "a tokenizer that is null": (change_index(tokenizer=None), "'tokenizer' of prepared.json"),
    "splits in a list": (change_index(splits=["test"]), "'splits' of prepared.json"),
    "a split that leads elsewhere": (change_index(splits={"test/../../x": {}}), "a split 'test/../../x'"),
    "no test set": (lambda data: (data / "prepared.json").unlink(), "no longer at"),
}


@pytest.mark.parametrize(("change", "message"), PREPARED.values(), ids=PREPARED.keys())
def test_the_data_folder_of_a_checkpoint_is_not_trusted(programs, run_dir, change, message):
    index = next((run_dir.parent / "data").glob("*/*/prepared.json"))
    kept = run_dir.parent / "kept"
    shutil.copytree(index.parent, kept)
    try:
        change(index.parent)
        ended = programs.run("evaluate", "run=run", "num_workers=0", cwd=run_dir.parent, timeout_s=30)
        assert (ended.code, "Traceback" in ended.printed) == (2, False), ended.printed
        assert message in ended.last_line
        assert "manifest=PATH" in ended.last_line
        assert not (run_dir.parent / "hacked").exists()
        assert not (run_dir / "decode").exists()
    finally:
        shutil.rmtree(index.parent)
        kept.rename(index.parent)


def test_prepared_audio_of_another_rate_than_its_cuts_say_is_not_resampled(programs, run_dir, tmp_path):
    data = next((run_dir.parent / "data").glob("*/*/prepared.json")).parent
    kept = shutil.copytree(data, tmp_path / "kept")
    change_cuts("train", lambda cut: cut | {"recording": cut["recording"] | {"sampling_rate": 1}})(data)
    try:
        ended = programs.run("train", *TRAIN[:-1], f"run_dir={tmp_path / 'run'}", cwd=run_dir.parent, timeout_s=30)
    finally:
        shutil.rmtree(data)
        kept.rename(data)
    assert (ended.code, "Traceback" in ended.printed) == (1, False), ended.printed
    assert "the first: train" in ended.last_line
    assert "impossible rate: 1 Hz" in ended.last_line
    assert ended.peak_mb < 500
