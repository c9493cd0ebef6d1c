"""Prepared data of strangers: whatever a cut or an index asks for, nothing runs and one line says so."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.data.manifests.numpy_files import check_npy, load_npz
from asr.data.preparation.cut_json import parse_cut
from asr.data.preparation.indexed_cut_set import IndexedCutSet
from asr.data.preparation.prepared import DamagedData, PreparedData
from tests.data.corpora import Recipe, ids, run

Change = Callable[[dict[str, Any]], Any]

FILE = {"type": "file", "channels": [0], "source": "/tmp/a.wav"}
RECORDING = {"id": "r", "sources": [FILE], "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
ARRAY = {"storage_type": "numpy_files", "storage_path": "/tmp/f", "storage_key": "a/a.npy"}
SEGMENT = {"id": "s", "recording_id": "r", "start": 0, "duration": 1.0, "text": "a", "speaker": "x"}
CUT = {
    "id": "c",
    "start": 0,
    "duration": 1.0,
    "channel": 0,
    "supervisions": [],
    "recording": RECORDING,
    "type": "MonoCut",
}


def of_source(**changed: Any) -> dict[str, Any]:
    return {"recording": RECORDING | {"sources": [FILE | changed]}}


def reverb(**changed: Any) -> dict[str, Any]:
    rir = RECORDING | {"sources": [FILE | changed]}
    return {"recording": RECORDING | {"transforms": [{"name": "ReverbWithImpulseResponse", "kwargs": {"rir": rir}}]}}


HOSTILE = {
    "a command as audio": of_source(type="command", source="touch hacked"),
    "an address as audio": of_source(type="url", source="http://localhost/a.wav"),
    "samples in the manifest": of_source(type="memory", source="UklGRg=="),
    "samples of a shard": of_source(type="shar", source="/tmp/a.tar"),
    "audio without a type": {"recording": RECORDING | {"sources": [{"source": "/tmp/a.wav"}]}},
    "a type in capitals": of_source(type="COMMAND"),
    "a path that is a pipe": of_source(source="touch hacked |"),
    "a path that begins with pipe:": of_source(source="pipe:touch hacked"),
    "an address that claims to be a file": of_source(source="s3://bucket/a.wav"),
    "a relative path": of_source(source="a.wav"),
    "a path that is a number": of_source(source=7),
    "no sources": {"recording": RECORDING | {"sources": []}},
    "sources as text": {"recording": RECORDING | {"sources": "touch hacked"}},
    "a source as text": {"recording": RECORDING | {"sources": ["touch hacked"]}},
    "a command as impulse response": reverb(type="command", source="touch hacked"),
    "a command in a custom field": {"custom": {"noise": of_source(type="command")["recording"]}},
    "a command in a supervision": {"supervisions": [{"custom": {"x": of_source(type="command")["recording"]}}]},
    "a command deep in lists": {"custom": {"x": [[[{"y": [of_source(type="command")]}]]]}},
    "features that are unpickled": {"features": ARRAY | {"storage_type": "memory_raw"}},
    "features of kaldi": {"features": ARRAY | {"storage_type": "kaldiio", "storage_path": "touch hacked |"}},
    "features at an address": {"features": ARRAY | {"storage_type": "lilcom_url"}},
    "features in a relative folder": {"features": ARRAY | {"storage_path": "features"}},
    "features in a pipe": {"features": ARRAY | {"storage_path": "pipe:touch hacked"}},
    "features that are unpacked": {"features": ARRAY | {"storage_key": "a.npy.gz"}},
    "features without a key": {"features": {"storage_type": "numpy_files", "storage_path": "/tmp/f"}},
    "features without a type": {"features": {"storage_path": "/tmp/f", "storage_key": "a.npy"}},
    "an array in a custom field": {"custom": {"a": {"array": ARRAY | {"storage_type": "memory_raw", "shape": [1]}}}},
    "a mixed cut": {"type": "MixedCut", "tracks": []},
    "a padding cut": {"type": "PaddingCut"},
    "a cut of an old version": {"type": "Cut"},
    "a list as type": {"type": ["MonoCut"]},
    "a duration that is no number": {"duration": float("nan")},
    "an endless duration": {"duration": float("inf")},
    "a negative duration": {"duration": -1},
    "a start that is text": {"start": "0"},
    "true as duration": {"duration": True},
    "an id that is a list": {"id": ["c"]},
    "no supervisions": {"supervisions": None},
    "a supervision in words": {"supervisions": ["hello"]},
    "a transcript that is a number": {"supervisions": [SEGMENT | {"text": 5}]},
    "a transcript in a list": {"supervisions": [SEGMENT | {"text": ["a", "b"]}]},
    "a transcript of 4 MB": {"supervisions": [SEGMENT | {"text": "a " * 2**21}]},
    "a transcript in many supervisions": {"supervisions": [SEGMENT | {"text": "a " * 6000}] * 2},
    "a speaker that is a number": {"supervisions": [SEGMENT | {"speaker": 3}]},
    "a speaker in a list": {"supervisions": [SEGMENT | {"speaker": ["x"]}]},
    "a channel in words": {"channel": "0"},
    "custom fields in a list": {"custom": [1]},
    "a recording in a list": {"recording": [RECORDING]},
    "a rate in words": {"recording": RECORDING | {"sampling_rate": "8000"}},
    "a duration of a recording in words": {"recording": RECORDING | {"duration": "1"}},
    "2000 sources": {"recording": RECORDING | {"sources": [FILE] * 2000}},
}


@pytest.mark.parametrize("changed", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_cut_that_would_do_more_than_read_files_is_refused(changed):
    with pytest.raises(ValueError, match="there: "):
        parse_cut(json.dumps(CUT | changed).encode(), "there")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"7",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 10**5,
        b"9" * 10**5,
        b" " * (2**24 + 1),
        b'{"type":1}',
    ],
    ids=lambda line: repr(line[:5]),
)
def test_a_line_that_is_no_cut_is_refused(line):
    with pytest.raises(ValueError, match="there: "):
        parse_cut(line, "there")


def test_a_plain_cut_is_let_through():
    cut = CUT | {"supervisions": [SEGMENT], "features": ARRAY, "custom": {"bytes": 7, "names": ["a"]}}
    assert parse_cut(json.dumps(cut).encode(), "there") == cut


def test_a_cut_that_lasts_longer_than_its_index_says_is_refused(tmp_path):
    prepared = run(tmp_path, Recipe())
    path = prepared.folder / "cuts_train.npz"
    with np.load(path) as index:
        np.savez(path, offsets=index["offsets"], durations=index["durations"] / 1000)
    with pytest.raises(ValueError, match=r"cuts_train\.jsonl, byte 0: the cut lasts .* s, its index says 0\.00"):
        IndexedCutSet(prepared.folder / "cuts_train").check()


def set_to(**values: Any) -> Change:
    return lambda index: index | values


INDEX = {
    "a tokenizer that is null": set_to(tokenizer=None),
    "a tokenizer of another kind": set_to(tokenizer={"kind": "pickle"}),
    "a tokenizer without pieces": set_to(tokenizer={"kind": "character"}),
    "a tokenizer whose pieces are numbers": lambda index: set_to(tokenizer=index["tokenizer"] | {"pieces": 3})(index),
    "means that are text": set_to(mean="0"),
    "means that are not finite": lambda index: set_to(mean=[float("nan"), *index["mean"][1:]])(index),
    "means of another length": lambda index: set_to(mean=index["mean"][1:])(index),
    "no means": set_to(mean=[], std=[]),
    "deviations of zero": lambda index: set_to(std=[0.0 for _ in index["std"]])(index),
    "deviations that are 0 in float32": lambda index: set_to(std=[1e-300 for _ in index["std"]])(index),
    "means that are not finite in float32": lambda index: set_to(mean=[1e308 for _ in index["mean"]])(index),
    "a note that was not written": set_to(notes=["x"]),
    "a tokenizer that was not trained": set_to(tokenizer={"kind": "character", "pieces": ["<blk>", "<unk>", "a"]}),
    "splits that are a list": set_to(splits=["train"]),
    "a split that leads elsewhere": lambda index: set_to(splits=index["splits"] | {"test/../../x": {}})(index),
    "a split without counts": lambda index: set_to(splits=index["splits"] | {"dev": {}})(index),
    "a split whose counts are text": lambda index: set_to(
        splits=index["splits"] | {"dev": dict.fromkeys(index["splits"]["dev"], "2")}
    )(index),
    "another number of cuts": lambda index: set_to(
        splits=index["splits"] | {"train": index["splits"]["train"] | {"num_utterances": 9}}
    )(index),
    "a split whose files are missing": lambda index: set_to(
        splits=index["splits"] | {"test-y": index["splits"]["dev"]}
    )(index),
    "notes that are a mapping": set_to(notes={}),
    "notes that are numbers": set_to(notes=[1]),
    "no digests": set_to(files={}),
    "digests as a list": set_to(files=[]),
    "a digest that is text": lambda index: set_to(files=dict.fromkeys(index["files"], "x"))(index),
    "a list": lambda index: [index],
    "text": lambda index: "text",
    "too much": set_to(notes=["x"] * 200_000),
    "too deep": lambda index: set_to(notes=json.loads("[" * 500 + "]" * 500))(index),
}


@pytest.mark.parametrize("change", INDEX.values(), ids=INDEX.keys())
def test_a_malformed_index_is_named_in_one_line_and_replaced_when_preparing(tmp_path, capsys, change):
    prepared = run(tmp_path, Recipe())
    path = prepared.folder / "prepared.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=r"prepared\.json|cannot be used|holds 3 cuts") as refused:
        PreparedData.load(prepared.folder).cuts("train")
    assert "\n" not in str(refused.value)
    again = run(tmp_path, Recipe())
    assert ids(again, "train") == ids(prepared, "train")
    assert "; preparing again" in capsys.readouterr().out
    assert (again.mean, again.std, again.splits) == (prepared.mean, prepared.std, prepared.splits)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


DAMAGE = {"cut short": cut_short, "changed": flip_a_bit, "missing": Path.unlink, "a dead link": link_to_nothing}


@pytest.mark.parametrize(
    "name", ["cuts_train.jsonl", "cuts_train.npz", "cuts_test-x.npz", "ctc_lengths_dev.npz", "dropped.tsv"]
)
@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files_are_noticed_and_prepared_again(tmp_path, capsys, name, harm):
    prepared = run(tmp_path, Recipe())
    harm(prepared.folder / name)
    with pytest.raises(DamagedData, match=name):
        PreparedData.load(prepared.folder)
    recipe = Recipe()
    assert ids(run(tmp_path, recipe), "train") == ids(prepared, "train")
    assert recipe.folders == []  # the corpus is whole
    assert name in capsys.readouterr().out
    run(tmp_path, recipe)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["corpus.json", "recordings_train.jsonl.gz", "supervisions_dev.jsonl.gz"])
@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_manifests_are_noticed_and_made_again(tmp_path, capsys, name, harm):
    first = run(tmp_path, Recipe())
    harm(tmp_path / "corpus" / name)
    recipe = Recipe()
    again = run(tmp_path, recipe, spec_name="other")
    assert ids(again, "train") == ids(first, "train")
    # a flipped bit of a date or a name changes nothing that counts
    assert recipe.folders == [tmp_path / "corpus"] or harm is flip_a_bit


def npy(shape: tuple[int, ...], dtype: Any = np.float32, held: int = 100) -> bytes:
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)
    return file.getvalue() + bytes(held)


ARRAYS = {
    "a huge claim": npy((2**40,)),
    "a claim beyond 64 bits": npy((2**62, 2**62)),
    "a negative claim": npy((-1, 8)),
    "pickled objects": npy((2,), object),
    "one byte too few": npy((26,), held=103),
    "no array": b"no array",
    "nothing": b"",
    "an array of a later format": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("content", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_that_claims_more_than_it_holds_is_refused(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises((ValueError, OSError)):
        check_npy(tmp_path / "a.npy", (2**62, 2**62))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as parts:
        parts.writestr("a.npy", content)
    with pytest.raises(ValueError, match=r"a\.npz"):
        load_npz(tmp_path / "a.npz", {"a": np.floating})


@pytest.mark.parametrize("shape", [(99, 40), (100, 39), (4000,), (1, 100, 40)])
def test_an_array_larger_than_its_manifest_says_is_refused_before_it_is_read(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros((100, 40), np.float32))
    check_npy(tmp_path / "a.npy", (100, 40))
    with pytest.raises(ValueError, match=r"a\.npy holds an array of shape \(100, 40\), not"):
        check_npy(tmp_path / "a.npy", shape)


def test_an_array_that_would_fill_memory_is_refused_whatever_its_manifest_says(tmp_path):
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (2**22, 40))  # takes no room on the disk
    with pytest.raises(
        ValueError, match=r"a\.npy has 671088768 bytes, more than the 268435456 that are read; divide it"
    ):
        check_npy(tmp_path / "a.npy", (2**22, 40))


def test_an_npz_that_unpacks_to_more_than_is_read_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(2**20))
    with pytest.raises(ValueError, match=r"unpacks to .* more than the 1000000"):
        load_npz(tmp_path / "a.npz", {"a": np.floating}, max_unpacked_bytes=10**6)


def packed(folder: Path) -> None:
    np.savez_compressed(folder / "cuts.npz", offsets=np.zeros(2**20, np.int64), durations=np.zeros(2**20))


def overlapping(folder: Path) -> None:
    """Let the directory of a zip name one part twice."""
    np.savez(folder / "cuts.npz", offsets=np.arange(1000), durations=np.ones(1000))
    with zipfile.ZipFile(folder / "cuts.npz", "a") as parts:
        for copy in range(3):
            part = zipfile.ZipInfo(f"copy{copy}.npy")
            for name in ("file_size", "compress_size", "CRC", "header_offset"):
                setattr(part, name, getattr(parts.getinfo("offsets.npy"), name))
            parts.filelist.append(part)
        parts._didModify = True  # type: ignore[attr-defined]


def large(folder: Path) -> None:
    np.savez(folder / "cuts.npz", offsets=np.arange(10_000), durations=np.ones(10_000))


PACKED = {
    "compressed": (packed, "'offsets.npy' is compressed, which prepared data are not"),
    "parts that overlap": (overlapping, "bytes, more than the"),
    "too many cuts": (large, "it unpacks to 160"),
}


@pytest.mark.parametrize(("make", "said"), PACKED.values(), ids=PACKED.keys())
def test_an_index_of_cuts_takes_no_more_memory_than_its_file_has_bytes(tmp_path, monkeypatch, make, said):
    if make is large:
        monkeypatch.setattr("asr.data.manifests.numpy_files.MAX_NPZ_BYTES", 10_000)
    (tmp_path / "cuts.jsonl").write_text("{}\n")
    make(tmp_path)
    with pytest.raises(ValueError, match=said):
        IndexedCutSet(tmp_path / "cuts")


OFFSETS = {
    "offsets that fall": ([5, 0], [1.0, 1.0]),
    "offsets after the end": ([0, 10**9], [1.0, 1.0]),
    "negative offsets": ([-5, 0], [1.0, 1.0]),
    "offsets in a matrix": ([[0, 5]], [[1.0, 1.0]]),
    "too few durations": ([0, 5], [1.0]),
    "durations of zero": ([0, 5], [0.0, 1.0]),
    "durations that are no numbers": ([0, 5], [float("nan"), 1.0]),
    "offsets that are fractions": ([0.0, 5.0], [1.0, 1.0]),
}


@pytest.mark.parametrize(("offsets", "durations"), OFFSETS.values(), ids=OFFSETS.keys())
def test_a_table_whose_index_cannot_be_is_refused(tmp_path, offsets, durations):
    (tmp_path / "cuts.jsonl").write_text("{}  \n{}  \n")
    np.savez(tmp_path / "cuts.npz", offsets=np.array(offsets), durations=np.array(durations))
    with pytest.raises(ValueError, match=r"cuts\.npz"):
        IndexedCutSet(tmp_path / "cuts")


@pytest.mark.parametrize("name", [".corpus.lock", "corpus/audio", "corpus/a.wav"])
def test_links_in_a_folder_of_data_are_not_followed_when_preparing(tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    link = tmp_path / "data" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(mine)
    with pytest.raises(ValueError, match="symbolic link"):
        run(tmp_path / "data", Recipe())
    assert mine.read_text() == "precious"
    assert link.is_symlink()
