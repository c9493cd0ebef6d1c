"""Shar folders of features of strangers: whatever arrays, manifests or tar ask for, nothing runs, one line says so."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.data.features import read_features
from asr.data.manifests.corpus import Corpus
from asr.data.manifests.import_manifests import import_manifests
from asr.data.manifests.shar.members import UnusableShard
from asr.data.preparation.cut_json import parse_cut
from asr.data.preparation.cuts import supervised_cuts
from tests.data.corpora import dropped, ids, run
from tests.data.feature_corpora import FEATURES_SPEC, FeatureRecipe
from tests.faults.spoken_corpus import TINY
from tests.security.hostile_pickle import MakesFolder
from tests.security.hostile_tars import Member, bad_tars, member, packed

SHAR = {"storage_type": "shar", "storage_path": "", "storage_key": ""}
FEATURES = SHAR | {"type": "mfcc", "start": 0, "duration": 1.0, "num_frames": 100, "num_features": 5}
FEATURES |= {"frame_shift": 0.01, "sampling_rate": 8000, "channels": 0}
SEGMENT = {"id": "s", "recording_id": "r", "start": 0, "duration": 1.0, "text": "a", "channel": 0}
CUT = {"id": "a", "start": 0, "duration": 1.0, "channel": 0, "supervisions": [SEGMENT], "features": FEATURES}
CUT["type"] = "MonoCut"


def npy(array: Any = None) -> bytes:
    content = io.BytesIO()
    np.save(content, np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32) if array is None else array)
    return content.getvalue()


def headed(header: str, version: bytes = b"\x01\x00", claimed: int | None = None, data: bytes = bytes(2000)) -> bytes:
    """Return an array with a header of our own."""
    length = (len(header) if claimed is None else claimed).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + header.encode() + data


def described(shape: str = "(100, 5)", dtype: str = "'<f4'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"


def told(**changed: Any) -> bytes:
    return f"{json.dumps(FEATURES | changed)}\n".encode()


def pair(array: bytes, manifest: bytes | None = None, name: str = "a", ending: str = ".npy") -> tuple[Member, Member]:
    return member(f"{name}{ending}", array), member(f"{name}.json", told() if manifest is None else manifest)


def holding(array: bytes, **changed: Any) -> bytes:
    return packed(*pair(array, told(**changed)))


def saying(manifest: bytes) -> bytes:
    return packed(*pair(npy(), manifest))


def write(folder: Path, tar: bytes, cut: Any = CUT) -> Path:
    folder.mkdir(exist_ok=True)
    lines = cut if isinstance(cut, bytes) else json.dumps(cut).encode()
    (folder / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(lines + b"\n"))
    (folder / "features.000000.tar").write_bytes(tar)
    return folder


GOOD = packed(*pair(npy()))
OBJECTS = np.array([[MakesFolder()]], dtype=object)
OTHER_STORAGE = "are refused, because reading them could run a command"
TARS = bad_tars(npy(), told(), ".npy", "features", "features") | {
    "pickled objects": (holding(npy(OBJECTS)), "pickled objects, which could run code"),
    "a pickle": (holding(pickle.dumps(MakesFolder())), "the magic string is not correct"),
    "records": (holding(npy(np.zeros((100, 5), "f4,f4"))), "its array holds [('f0'"),
    "records with objects": (holding(headed(described(dtype="[('a', '|O')]"))), "pickled objects"),
    "words": (holding(npy(np.full((100, 5), "1.0"))), "its array holds <U3, no numbers"),
    "times": (holding(npy(np.zeros((100, 5), "M8[s]"))), "its array holds datetime64[s], no numbers"),
    "complex numbers": (holding(npy(np.zeros((100, 5), complex))), "its array holds complex128, no numbers"),
    "nothing in each number": (holding(headed(described(dtype="'|V0'"))), "no numbers"),
    "another width": (holding(npy(np.zeros((100, 6)))), "has the shape (100, 6), the manifest says (100, 5)"),
    "fewer frames": (holding(npy(np.zeros((90, 5)))), "has the shape (90, 5), the manifest says (100, 5)"),
    "more frames": (holding(npy(np.zeros((110, 5)))), "has the shape (110, 5), the manifest says (100, 5)"),
    "frames in a row": (holding(npy(np.zeros(500))), "has the shape (500,), the manifest says"),
    "a number": (holding(npy(np.zeros(()))), "has the shape (), the manifest says"),
    "three dimensions": (holding(npy(np.zeros((1, 100, 5)))), "has the shape (1, 100, 5), the manifest says"),
    "a terabyte in a tiny file": (
        holding(headed(described("(100000000000, 5)")), num_frames=10**11, duration=1e9),
        "claims float32 of shape (100000000000, 5), 2000000000000 bytes, and holds 2000",
    ),
    "a shape below zero": (holding(headed(described("(-100, -5)"))), "of shape (-100, -5)"),
    "a shape of words": (holding(headed(described("'ab'"))), "shape is not valid"),
    "a shape without end": (holding(headed(described(f"({'9' * 900}, 5)"))), "and holds 2000"),
    "half an array": (holding(npy()[:1000]), "claims float32 of shape (100, 5), 2000 bytes, and holds"),
    "half a header": (holding(npy()[:40]), "EOF: reading array header"),
    "no header": (holding(b"x"), "EOF: reading magic string"),
    "another format": (holding(headed(described(), b"\x09\x00")), "format (9, 0) is not read"),
    "a header of 4 GB": (holding(headed(described(), b"\x02\x00", 2**32 - 1)), "EOF: reading array header"),
    "a header of 60 kB": (holding(headed(described() + " " * 60_000)), "EOF: reading array header"),
    "a header of 2 kB": (holding(headed(described() + " " * 2000)), "Header info length"),
    "a header nested deeply": (holding(headed("[" * 900)), "has no header of numpy that can be read"),
    "a header of signs": (holding(headed("-" * 900 + "1")), "malformed node"),
    "a header that is code": (holding(headed("__import__('os').system('touch hacked')")), "malformed node"),
    "lilcom": (
        packed(*pair(b"L", ending=".llc")),
        'is .llc, features compressed by lilcom, and is not read; write them with numpy: SharWriter(…, fields={"fea',
    ),
    "hdf5": (packed(*pair(b"L", ending=".h5")), "is .h5, no array of numpy, and is not read"),
    "the manifest first": (packed(*reversed(pair(npy()))), "'a.npy': the file beside it is .json"),
    "a name without an ending": (packed(*pair(npy(), ending="")), "is , no array of numpy"),
    "a manifest that is a list": (saying(b"[]"), "features in storage 'None' are refused"),
    "a pickle in the manifest": (saying(told(storage_type="memory_raw", storage_key="gASV")), OTHER_STORAGE),
    "a command": (saying(told(storage_type="kaldiio", storage_path="x|", storage_key="touch hacked|")), OTHER_STORAGE),
    "an address": (saying(told(storage_type="lilcom_url", storage_path="http://localhost")), OTHER_STORAGE),
    "a file elsewhere": (saying(told(storage_type="numpy_files", storage_path="/etc")), OTHER_STORAGE),
    "a part of another tar": (saying(told(storage_type="numpy_shard", storage_path="/a.tar")), OTHER_STORAGE),
    "a path in a placeholder": (saying(told(storage_path="pipe:touch hacked")), OTHER_STORAGE),
    "a key in a placeholder": (saying(told(storage_key="/etc/passwd")), OTHER_STORAGE),
    "frames in words": (saying(told(num_frames="100")), "field 'num_frames' must be int"),
    "a width that is no number": (saying(told(num_features=float("nan"))), "field 'num_features' must be int"),
    "a shift that is no number": (saying(told(frame_shift=float("nan"))), "field 'frame_shift' must be from"),
    "endless features": (saying(told(duration=float("inf"))), "field 'duration' must be from"),
    "no rate": (saying(told(sampling_rate=None)), "field 'sampling_rate' must be int"),
}


@pytest.mark.parametrize(("tar", "said"), TARS.values(), ids=TARS.keys())
def test_a_tar_that_is_more_or_less_than_features_is_refused(tmp_path, monkeypatch, tar, said):
    folder = write(tmp_path / "shar", tar)
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"features\.000000\.tar") as error:
        import_manifests(folder)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cuts.000000.jsonl.gz", "features.000000.tar", "shar"]


def of_cut(**changed: Any) -> Any:
    return CUT | changed


CUTS = {
    "a pickle": (of_cut(features=FEATURES | {"storage_type": "memory_raw", "storage_key": "gASV"}), OTHER_STORAGE),
    "a file": (of_cut(features=FEATURES | {"storage_type": "numpy_files", "storage_path": "/"}), OTHER_STORAGE),
    "a path": (of_cut(features=FEATURES | {"storage_path": "pipe:touch hacked"}), OTHER_STORAGE),
    "features in words": (of_cut(features="touch hacked"), OTHER_STORAGE),
    "a mixed cut": (of_cut(type="MixedCut"), "a cut of type 'MixedCut' is not read"),
    "no id": (of_cut(id=None), "field 'id' must be str"),
    "supervisions in words": (of_cut(supervisions=["x"]), "an object in braces is expected"),
    "a line that is no JSON": (b"\x80\x04", "is no jsonl manifest"),
    "a cut too many": (json.dumps(CUT).encode() + b"\n" + json.dumps(CUT).encode(), "ends before the features of 'a'"),
}


@pytest.mark.parametrize(("cut", "said"), CUTS.values(), ids=CUTS.keys())
def test_a_cut_that_is_more_than_features_of_its_shard_is_refused(tmp_path, cut, said):
    folder = write(tmp_path / "shar", GOOD, cut)
    with pytest.raises(ValueError, match=r"000000\.(jsonl\.gz|tar)") as error:
        import_manifests(folder)
    assert said in str(error.value)


def test_members_in_another_order_than_the_cuts_are_refused(tmp_path):
    cuts = b"\n".join(json.dumps(of_cut(id=name)).encode() for name in "ab")
    with pytest.raises(ValueError, match=r"holds features of 'b' where cuts\.000000\.jsonl\.gz has the cut 'a'"):
        import_manifests(write(tmp_path, packed(*pair(npy(), name="b"), *pair(npy(), name="a")), cuts))


def test_a_command_as_audio_of_a_cut_is_never_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = {"id": "r", "sources": [{"type": "command", "channels": [0], "source": "touch hacked"}]}
    imported = import_manifests(write(tmp_path / "shar", GOOD, of_cut(recording=command)))
    (cut,) = supervised_cuts(imported.splits["all"])
    assert not cut.has_recording
    assert read_features(FEATURES_SPEC.features, cut).shape == (100, 5)
    assert imported.notes == ["fields of Shar folders that were ignored: recording"]
    assert not (tmp_path / "hacked").exists()


BAD_NUMBERS = {
    "NaN": (np.full((100, 5), np.nan), {}, "unreadable features: .*not finite"),
    "infinity": (np.full((100, 5), np.inf), {}, "unreadable features: .*not finite"),
    "beyond float32": (np.full((100, 5), 1e300), {}, "unreadable features: .*not finite"),
    "frames that do not fit the duration": (np.zeros((50, 5)), {"num_frames": 50}, "contradictory features: "),
    "no shift": (np.zeros((100, 5)), {"frame_shift": 0}, "contradictory features: "),
    "a negative rate": (np.zeros((100, 5)), {"sampling_rate": -8000}, "contradictory features: "),
}


@pytest.mark.parametrize(("array", "changed", "reason"), BAD_NUMBERS.values(), ids=BAD_NUMBERS.keys())
@pytest.mark.filterwarnings("ignore:overflow")
def test_what_feature_files_drop_is_dropped_from_shards_too(tmp_path, array, changed, reason):
    cuts = b"\n".join(json.dumps(of_cut(id=name, supervisions=[SEGMENT | {"id": name}])).encode() for name in "ab")
    tar = packed(*pair(npy()), *pair(npy(array), told(**changed), name="b"))
    imported = import_manifests(write(tmp_path / "shar", tar, cuts))

    def make(folder: Path) -> Corpus:
        corpus = FeatureRecipe()(folder)
        corpus.splits["train"] = imported.splits["all"]
        return Corpus(corpus.splits, [*imported.dropped])

    prepared = run(tmp_path / "data", make, FEATURES_SPEC)
    assert ids(prepared, "train") == ["a"]
    found = {item: why for (_, item), why in dropped(prepared).items()} | {d.item: d.reason for d in imported.dropped}
    assert list(found) == ["b"]
    assert re.match(reason, found["b"])


FOLDERS = {
    "cuts without features": (("cuts.1.jsonl.gz",), "cuts.1.jsonl.gz has no features…tar beside it"),
    "features without cuts": (("features.1.tar",), "features.1.tar has no cuts….jsonl.gz beside it"),
    "two of one number": (("features.0.tar",), "features.0.tar and features.000000.tar are both of one shard"),
    "a gap in the numbers": (("cuts.2.jsonl.gz", "features.2.tar"), "shard 1 is missing, between 0 and 2"),
}


@pytest.mark.parametrize(("names", "said"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_that_lacks_a_part_is_refused(tmp_path, names, said):
    write(tmp_path, GOOD)
    for name in names:
        (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(ValueError, match=said):
        import_manifests(tmp_path)


def test_an_archive_of_features_beside_other_manifests_is_nobodys_shard(tmp_path):
    (tmp_path / "features.tar").write_bytes(b"somebody's own")
    with pytest.raises(ValueError, match="no manifests are there"):
        import_manifests(tmp_path)


PLACES = {
    "a relative path": ("a.tar", "0+10"),
    "a path that is no tar": ("/dev/zero", "0+10"),
    "a command": ("pipe:touch hacked", "0+10"),
    "a file as key": ("/a.tar", "b.npy"),
    "a command as key": ("/a.tar", "0+10|"),
    "a place below zero": ("/a.tar", "-1+10"),
    "half of the path in the key": ("/a", ".tar:0+10"),
}


@pytest.mark.parametrize(("path", "key"), PLACES.values(), ids=PLACES.keys())
def test_prepared_cuts_name_parts_of_tars_alone(path, key):
    stored = FEATURES | {"storage_type": "numpy_shard", "storage_path": path, "storage_key": key}
    with pytest.raises(ValueError, match="an array in storage 'numpy_shard'"):
        parse_cut(json.dumps(of_cut(features=stored)).encode(), "line 1")


@pytest.mark.parametrize(
    ("key", "error"),
    [("0+0", UnusableShard), ("100000+10", UnusableShard), ("0+9999999999", UnusableShard), ("0+100", ValueError)],
)
def test_a_place_that_holds_no_array_is_refused_before_memory_is_taken(tmp_path, key, error):
    folder = write(tmp_path, GOOD)
    (cut,) = supervised_cuts(import_manifests(folder).splits["all"])
    cut.features.storage_key = key
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(error):
        read_features(FEATURES_SPEC.features, cut)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_folder_with_pickled_features_ends_in_a_line_and_runs_nothing(programs, tmp_path):
    write(tmp_path / "shar", holding(npy(OBJECTS)))
    words = [word for word in TINY if not word.startswith("data.source")]
    words += ["features=precomputed", "data.num_features=5", "data.source=shar"]
    ended = programs.run("prepare", *words, cwd=tmp_path)
    assert (ended.code, "pickled objects, which could run code" in ended.last_line) == (2, True), ended.printed
    assert not (tmp_path / "hacked").exists()
