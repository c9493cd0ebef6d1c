"""The readers that strangers' bytes reach, each with small valid files to begin with."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from asr.data.features import PrecomputedFeatures
from asr.data.manifests.archives import extract
from asr.data.manifests.import_manifests import import_manifests
from asr.data.manifests.lhotse_jsonl import read_cuts, read_features, read_recordings, read_supervisions
from asr.data.manifests.tables import read_table
from asr.data.preparation.cuts import SourceCheck, supervised_cuts
from asr.evaluation.comparison.inputs.run_folders import read_runs
from asr.evaluation.report import ERROR_COLUMNS
from asr.language_models.arpa import read_arpa
from asr.training.checkpoints.loading import FORMAT, load_checkpoint
from asr.training.running_averages import RunningAverages
from asr.training.weights import KINDS, choose_weights

SEPARATOR = b"\n--- next file ---\n"


@dataclass(frozen=True)
class Reader:
    """One way for foreign bytes into the program.

    Attributes:
        read: puts an input as files into a folder, and reads them.
        seeds: makes valid inputs.
    """

    read: Callable[[bytes, Path], object]
    seeds: Callable[[], list[bytes]]


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _files(folder: Path, names: tuple[str, ...], data: bytes) -> Path:
    """Write the parts of an input under their names; an empty part is no file."""
    for name, part in zip(names, data.split(SEPARATOR), strict=False):
        if part:
            _file(folder, name, part)
    return folder


def _lines(*items: dict[str, Any]) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in items).encode()


def _table_seeds() -> list[bytes]:
    return [
        b"audio\ttext\n\xef\xbb\xbfa.wav\tone two\n",
        "audio\ttext\tspeaker\tsplit\tid\na.wav\tgr\u00fc\u00dfe\tx\ttrain\t1\n/b.wav\t\t\tval\t2\r\n".encode(
            "utf-8-sig"
        ),
    ]


SOURCE = {"type": "file", "channels": [0], "source": "a.wav"}
RECORDING = {"id": "r", "sources": [SOURCE], "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
SUPERVISION = {"id": "s", "recording_id": "r", "start": 0.0, "duration": 1.0, "channel": 0, "text": "a", "speaker": "x"}
FEATURES = {"recording_id": "r", "start": 0.0, "duration": 1.0, "num_frames": 100, "num_features": 80} | {
    "frame_shift": 0.01,
    "sampling_rate": 8000,
    "storage_type": "numpy_files",
    "storage_path": "/a",
    "storage_key": "b.npy",
    "channels": 0,
}
CUT = {"id": "c", "start": 0.0, "duration": 1.0, "channel": 0, "type": "MonoCut", "supervisions": [SUPERVISION]}
CUT |= {"recording": RECORDING}
IN_TAR, WIDTH = {"type": "shar", "source": ""}, 4
TEMPO = {"name": "Speed", "kwargs": {"factor": 1.1}}
JSONL: tuple[tuple[Callable[[Path], object], dict[str, Any]], ...] = (
    (read_recordings, RECORDING),
    (read_recordings, {**RECORDING, "channel_ids": [0], "transforms": [TEMPO]}),
    (read_supervisions, SUPERVISION),
    (read_features, FEATURES),
    (lambda path: read_cuts(path, "dev"), CUT),
)


def _read_jsonl(data: bytes, folder: Path) -> object:
    """Read a manifest whose kind the first byte says, and whether it is compressed."""
    kind = data[0] if data else 0
    name = "items.jsonl.gz" if kind >= 128 else "items.jsonl"
    return JSONL[kind % 128 % len(JSONL)][0](_file(folder, name, data[1:]))


def _jsonl_seeds() -> list[bytes]:
    plain = [bytes([kind]) + _lines(item) for kind, (_, item) in enumerate(JSONL)]
    two = bytes([2]) + _lines(SUPERVISION, {"id": "t", "recording_id": "r", "start": 1, "duration": 2})
    return [*plain, two, bytes([128 + 2]) + gzip.compress(_lines(SUPERVISION))]


def _read_archive(data: bytes, folder: Path) -> object:
    """Unpack an archive; the first byte says whether its tar headers get the right checksums, and are compressed."""
    form, content = data[:1], data[1:]
    content = _with_checksums(content) if form in b"tz" else content
    archive = _file(folder, "corpus.archive", gzip.compress(content, 1) if form == b"z" else content)
    return extract(archive, folder / "out")


def _with_checksums(tar: bytes) -> bytes:
    """Return a tar with right checksums: without them the reader looks at no changed header."""
    mended, at = bytearray(tar), 0
    while at + tarfile.BLOCKSIZE <= len(mended) and any(mended[at : at + tarfile.BLOCKSIZE]):
        mended[at + 148 : at + 156] = b" " * 8
        mended[at + 148 : at + 156] = b"%06o\0 " % sum(mended[at : at + tarfile.BLOCKSIZE])
        digits = bytes(mended[at + 124 : at + 135])
        size = int(digits, 8) if digits.strip(b"01234567") == b"" else 0
        at += tarfile.BLOCKSIZE * (1 + -(-size // tarfile.BLOCKSIZE))
    return bytes(mended)


def _archive_seeds() -> list[bytes]:
    made = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            info = tarfile.TarInfo("top/" + "n" * 99 + "/\u00e4.txt")
            info.size, info.mtime = 3, 1.5 if form == tarfile.PAX_FORMAT else 1
            tar.addfile(info, io.BytesIO(b"abc"))
        made.append(buffer.getvalue())
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top/\u00e4.txt", "abc" * 20)
        archive.writestr("top/folder/", "")
    return [b"t" + made[0], b"t" + made[1], b"z" + made[2], b"r" + gzip.compress(made[0]), b"r" + zipped.getvalue()]


def _read_checkpoint(data: bytes, folder: Path) -> object:
    """Read a checkpoint; after ``p`` the input is what was pickled, and gets a file in order around it."""
    content = _around(data[1:]) if data[:1] == b"p" else data[1:]
    loaded = load_checkpoint(_file(folder, "last.ckpt", content))
    for kind in KINDS:
        _refusing(choose_weights, loaded, kind)
    return loaded


def _refusing(call: Callable[..., object], *arguments: Any) -> None:
    with contextlib.suppress(ValueError):
        call(*arguments)


def _around(pickled: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        parts = {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n"}
        parts |= {f"data/{key}": bytes(size) for key, size in enumerate((8, 16, 8, 8))}
        for name, content in parts.items():
            file.writestr(f"last/{name}", content)
    return buffer.getvalue()


def _checkpoint_seeds() -> list[bytes]:
    weights = {"w": torch.zeros(2)}
    averages = RunningAverages(weights)
    averages.add(1, weights, ema_decay=0.9)
    data = {"folder": "x", "fingerprint": "f", "notes": ["a"]}
    extra = {"format": FORMAT, "config": {"a": [1, 2.0, None]}, "tokenizer": {"kind": "char"}, "data": data}
    state = {"state_dict": {"recognizer.w": weights["w"]}, "global_step": 1, "werdict": extra, "callbacks": {}}
    made = []
    for content in (state, {**state, "averages": averages.state_dict()}):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        with zipfile.ZipFile(buffer) as file:
            pickled = next(file.read(name) for name in file.namelist() if name.endswith("data.pkl"))
        made += [b"r" + buffer.getvalue(), b"p" + pickled]
    return made


RUN_FILES = ("config.yaml", "overrides.yaml", "report/summary.json", "metrics.csv", "decode/test.errors.tsv")


def _run_seeds() -> list[bytes]:
    cost = {"training_seconds": 1.5, "optimizer_state_bytes": 8}
    summary = {"test": {"test": {"wer": 0.5}}, "cost": cost, "notes": ["a"], "num_parameters": 3, "data": "d/e"}
    parts = [
        b"seed: 1\ntrainer: {max_steps: 5}\noptimizer:\n  _target_: torch.optim.AdamW\n  lr: 0.1\n",
        b"- optimizer=adamw\n- 'seed=1'\n",
        json.dumps(summary).encode(),
        b"step,name,value\n0,train/loss,1.5\n0,train/elapsed_s,2\n0,val/wer,0.5\n",
        ("\t".join(ERROR_COLUMNS) + "\na\tx\t2\t1\t0\t0\n").encode(),
    ]
    return [SEPARATOR.join(parts), SEPARATOR.join([*parts[:1], b"", *parts[2:]])]


BROUGHT = (
    "recordings_train.jsonl",
    "supervisions_train.jsonl",
    "features_dev.jsonl",
    "supervisions_dev.jsonl",
    "cuts_test.jsonl",
)


def _manifest_seeds() -> list[bytes]:
    return [
        SEPARATOR.join([_lines(RECORDING), _lines(SUPERVISION)]),
        SEPARATOR.join([b"", b"", _lines(FEATURES), _lines(SUPERVISION)]),
        SEPARATOR.join([b"", b"", b"", b"", _lines(CUT, {**CUT, "id": "d"})]),
    ]


SHAR = ("cuts.000000.jsonl", "recording.000000.tar", "features.000000.tar")


def _read_shar(data: bytes, folder: Path) -> object:
    """Read a Shar folder and what its tars hold; after ``t`` their headers get the right checksums."""
    cuts, *tars = data[1:].split(SEPARATOR)
    tars = list(map(_with_checksums, tars)) if data[:1] == b"t" else tars
    imported = import_manifests(_files(folder / "in", SHAR, SEPARATOR.join([cuts, *tars])))
    check = SourceCheck(PrecomputedFeatures(WIDTH))
    return [check(cut) for manifests in imported.splits.values() for cut in supervised_cuts(manifests)]


def _shar_seeds() -> list[bytes]:
    audio, array = io.BytesIO(), io.BytesIO()
    soundfile.write(audio, np.zeros(800), 8000, format="FLAC")
    np.save(array, np.zeros((10, WIDTH), np.float16))
    recording = RECORDING | {"sources": [SOURCE | IN_TAR], "num_samples": 800, "duration": 0.1}
    features = FEATURES | {"storage_type": "shar", "storage_path": "", "storage_key": ""}
    features |= {"duration": 0.1, "num_frames": 10, "num_features": WIDTH}
    cut = {**CUT, "recording": recording, "supervisions": [SUPERVISION | {"duration": 0.1}]}
    empty = _lines({**CUT, "recording": None}), _packed({"c.nodata": b"", "c.nometa": b""})
    return [
        SEPARATOR.join([b"t" + _lines(cut), _packed({"c.flac": audio.getvalue(), "c.json": _lines(recording)})]),
        SEPARATOR.join([b"t" + _lines(cut), b"", _packed({"c.npy": array.getvalue(), "c.json": _lines(features)})]),
        SEPARATOR.join([b"r" + empty[0], b"", empty[1]]),
    ]


def _packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue().rstrip(b"\0") + bytes(4 * tarfile.BLOCKSIZE)


def _arpa_seeds() -> list[bytes]:
    unigrams = b"\\1-grams:\n-99 <s>%b\n-1 </s>\n-0.5\ta%b\n"
    bigrams = b"\n\\2-grams:\n-0.1\t<s> a\n-0.2\ta a\n"
    return [
        b"\\data\\\nngram 1=3\n" + unigrams % (b"", b"") + b"\\end\\\n",
        b"\\data\\\nngram 1=3\nngram 2=2\n\n" + unigrams % (b" -0.5", b"\t-0.25") + bigrams + b"\n\\end\\\n",
    ]


READERS = {
    "table": Reader(lambda data, folder: read_table(_file(folder, "table.tsv", data)), _table_seeds),
    "jsonl": Reader(_read_jsonl, _jsonl_seeds),
    "archive": Reader(_read_archive, _archive_seeds),
    "checkpoint": Reader(_read_checkpoint, _checkpoint_seeds),
    "run_folder": Reader(lambda data, folder: read_runs([_files(folder / "run", RUN_FILES, data)]), _run_seeds),
    "manifest": Reader(lambda data, folder: import_manifests(_files(folder / "in", BROUGHT, data)), _manifest_seeds),
    "shar": Reader(_read_shar, _shar_seeds),
    "arpa": Reader(lambda data, folder: read_arpa(_file(folder, "lm.arpa", data)).suffixes(), _arpa_seeds),
}
