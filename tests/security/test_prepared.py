"""Prepared data of strangers: whatever a cut or an index asks for, nothing runs and one line says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.data.preparation.indexed_cut_set import IndexedCutSet
from asr.data.preparation.prepared import DamagedData, PreparedData
from tests.data.corpora import Recipe, ids, run

Change = Callable[[dict[str, Any]], Any]


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


@pytest.mark.parametrize(
    "text", ["[" + "{}," * 300_000 + "{}]", "[" + "[]," * 300_000 + "1]", "[" + "1," * 300_000 + "1]"]
)
def test_json_of_empty_values_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, text):
    monkeypatch.setattr("asr.plain_data.json.loads", None)
    (tmp_path / "prepared.json").write_text(text)
    with pytest.raises(ValueError, match=r"prepared\.json is not JSON: it has more than 200000 brackets and commas"):
        PreparedData.load(tmp_path)


def test_a_corpus_whose_list_of_dropped_items_is_a_bomb_is_made_again(tmp_path, monkeypatch, capsys):
    prepared = run(tmp_path, Recipe())
    (tmp_path / "corpus" / "corpus.json").write_text("[" + "{}," * 1000 + "{}]")
    monkeypatch.setattr("asr.data.preparation.saved_corpus.MAX_CORPUS_INDEX_VALUES", 1000)
    assert ids(run(tmp_path, Recipe(), spec_name="other"), "train") == ids(prepared, "train")
    assert "it has more than 1000 brackets and commas; making them again" in capsys.readouterr().out


OFFSETS = {
    "offsets that fall": ([5, 0], [1.0, 1.0]),
    "offsets after the end": ([0, 10**9], [1.0, 1.0]),
    "negative offsets": ([-5, 0], [1.0, 1.0]),
    "offsets in a matrix": ([[0, 5]], [[1.0, 1.0]]),
    "too few durations": ([0, 5], [1.0]),
    "durations of zero": ([0, 5], [0.0, 1.0]),
    "durations that are no numbers": ([0, 5], [float("nan"), 1.0]),
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
