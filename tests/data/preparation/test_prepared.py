"""Prepared data are known by their source, and found again where they are moved to."""

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.features import read_features
from asr.data.loading.sampling import seed_for
from asr.data.manifests.import_manifests import manifest_files
from asr.data.preparation import prepared as module
from asr.data.preparation.prepare import PrepareSpec
from asr.data.preparation.prepared import PreparedData, describe_source, fingerprint
from asr.data.preparation.shards import AudioField, ShardStorage
from tests.data.corpora import PRECOMPUTED, SPEC, Recipe, contents, run
from tests.faults.spoken_corpus import TINY, write_corpus


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


TABLE = "audio\ttext\tsplit\n" + "".join(f"audio/{split}.wav\tone\t{split}\n" for split in ("train", "dev", "test"))


def features_of(prepared: PreparedData, spec: PrepareSpec) -> list[np.ndarray]:
    return [read_features(spec.features, cut) for split in prepared.splits for cut in prepared.cuts(split)]


@pytest.mark.parametrize("kind", ["audio", "stored features", "shards"])
def test_a_copied_folder_of_data_holds_all_that_was_made_below_it(tmp_path, monkeypatch, kind):
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    monkeypatch.chdir(project)
    shards = ShardStorage(project / "data" / "shards", AudioField())
    spec = {"audio": SPEC, "stored features": PRECOMPUTED, "shards": replace(SPEC, shards=shards)}[kind]
    before = features_of(run(project / "data", Recipe(), spec), spec)
    shutil.copytree(project / "data", other / "data")
    shutil.rmtree(project / "data")
    copied = contents(other)
    found = run(other / "data", lambda folder: pytest.fail("the corpus was made again"), spec)
    assert bool(found.shards) == (kind == "shards")
    for first, second in zip(before, features_of(found, spec), strict=True):
        np.testing.assert_array_equal(first, second)
    assert contents(other) == copied


def project_of(folder: Path, seed: int = 0) -> Path:
    """Write a table of relative names, and its audio."""
    (folder / "audio").mkdir(parents=True)
    (folder / "my.tsv").write_text(TABLE)
    for number, split in enumerate(("train", "dev", "test")):
        samples = np.random.default_rng([seed, number]).normal(size=16_000) * 0.1
        soundfile.write(folder / "audio" / f"{split}.wav", samples, 16_000)
    return folder


def prepare(programs, folder: Path, *words: str) -> PreparedData:
    ended = programs.run("prepare", "recipe=custom/transformer_ctc", *words, cwd=folder)
    (place,) = [line.split(": ", 1)[1] for line in ended.printed.splitlines() if line.startswith("prepared data: ")]
    return PreparedData.load(Path(place))


def audio_of(prepared: PreparedData) -> str:
    return str(prepared.cuts("train")[0].recording.sources[0].source)


@pytest.mark.parametrize("words", [(), ("data.storage=shar", "data.storage.dir=shards")], ids=["files", "shards"])
def test_a_moved_project_finds_its_data_and_audio(programs, tmp_path, words):
    project = project_of(tmp_path / "project")
    first = prepare(programs, project, "data.source=my.tsv", *words)
    moved = project.rename(tmp_path / "moved")
    written = contents(moved)
    second = prepare(programs, moved, "data.source=my.tsv", *words)
    assert second.fingerprint == first.fingerprint
    assert second.folder.is_relative_to(moved)
    assert contents(moved) == written, "nothing is prepared again"
    assert audio_of(second).startswith(str(moved))
    assert second.cuts("train")[0].load_audio().any()


def test_two_tables_of_one_text_have_audio_of_their_own(programs, tmp_path):
    twins = [project_of(tmp_path / name, seed) for seed, name in enumerate(("clean", "noisy"))]
    found = [prepare(programs, tmp_path, f"data.source={folder}/my.tsv") for folder in twins]
    assert [audio_of(prepared) for prepared in found] == [f"{folder}/audio/train.wav" for folder in twins]
    entries = [f"{{recipe: custom/transformer_ctc, name: {one.name}, source: {one}/my.tsv}}" for one in twins]
    mixture = prepare(programs, tmp_path, f"data.sources=[{','.join(entries)}]")
    sources = [cut.recording.sources[0].source for cut in mixture.cuts("train")]
    assert sources == [f"{folder}/audio/train.wav" for folder in twins]


def test_audio_outside_of_the_project_stays_where_it_is(programs, tmp_path):
    outside = project_of(tmp_path / "corpora")
    (project := tmp_path / "project").mkdir()
    first = prepare(programs, project, f"data.source={outside}/my.tsv")
    second = prepare(programs, project.rename(tmp_path / "moved"), f"data.source={outside}/my.tsv")
    assert second.fingerprint == first.fingerprint
    assert audio_of(second) == f"{outside}/audio/train.wav"


def test_a_run_of_a_moved_project_is_resumed_and_evaluated(programs, tmp_path):
    project = write_corpus(tmp_path / "project")
    programs.run("train", *TINY, "run_dir=run", cwd=project)
    moved = project.rename(tmp_path / "moved")
    longer = ("resume=run", "trainer.max_steps=9", "allow_changes=true")
    for command, words in (("train", longer), ("evaluate", ("run=run", "num_workers=0"))):
        ended = programs.run(command, *words, cwd=moved)
        assert "left out" not in ended.printed
