import hashlib
import os

import pytest

from asr.data.loading.sampling import seed_for
from asr.data.manifests.import_manifests import manifest_files
from asr.data.preparation import prepared as module
from asr.data.preparation.prepared import describe_source, fingerprint


def test_a_fingerprint_depends_on_values_and_not_on_the_order_of_keys():
    assert fingerprint({"a": 1, "b": [2, "ü"]}) == fingerprint({"b": [2, "ü"], "a": 1})
    different = [{"a": 1}, {"a": "1"}, {"a": None}, {"b": 1}, [1, 2], [2, 1], "ü", "u"]
    assert len({fingerprint(value) for value in different}) == len(different)
    assert len(fingerprint("x")) == 10


def test_fingerprints_and_seeds_stay_what_they_were():
    # folders of prepared data and the order of batches hang on them
    assert fingerprint({"corpus": "ü", "seed": 1}) == "8fcd803979"
    assert seed_for("order", 1) == 8820227735363236343
    assert seed_for("order", 1) != seed_for("order", "1")


def test_a_file_is_described_by_its_content(tmp_path):
    first, second = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    described = describe_source(str(first))
    assert described == {"name": "a.tsv", "sha256": hashlib.sha256(b"one").hexdigest()}
    assert describe_source(str(second))["sha256"] != described["sha256"]
    os.utime(first, (0, 0))
    assert describe_source(str(first)) == described


def test_a_huge_file_is_described_by_its_size_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_HASHED_BYTES", 2)
    path = tmp_path / "a.tar"
    path.write_bytes(b"one")
    os.utime(path, ns=(5, 5))
    assert describe_source(str(path)) == {"name": "a.tar", "bytes": 3, "mtime_ns": 5}


def test_a_folder_is_described_by_the_names_and_contents_of_the_files_below_it(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "below").mkdir(parents=True)
    (source / "below" / "a").write_bytes(b"one")
    seen = [describe_source(str(source))]
    (source / "below" / "a").write_bytes(b"two")
    seen.append(describe_source(str(source)))
    (source / "below" / "a").rename(source / "below" / "b")
    seen.append(describe_source(str(source)))
    assert len({str(described) for described in seen}) == 3
    (copy / "below").mkdir(parents=True)
    (copy / "below" / "b").write_bytes(b"two")
    assert describe_source(str(copy)) == seen[-1]


def test_what_is_not_read_of_a_folder_does_not_count(tmp_path):
    (tmp_path / "recordings.jsonl").write_bytes(b"{}")
    (tmp_path / "notes.txt").write_bytes(b"one")
    everything, manifests = describe_source(str(tmp_path)), describe_source(str(tmp_path), manifest_files)
    for name in ("runs/first", "data", ".cache"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.jsonl").write_bytes(b"{}")
    (tmp_path / "notes.txt").write_bytes(b"two")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert describe_source(str(tmp_path), manifest_files) == manifests
    assert describe_source(str(tmp_path)) != everything
    (tmp_path / "recordings.jsonl").write_bytes(b"{ }")
    assert describe_source(str(tmp_path), manifest_files) != manifests


def test_a_folder_may_hold_names_that_are_no_utf_8(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.wav")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system allows UTF-8 names only")
    assert describe_source(str(tmp_path)) != describe_source(None)
