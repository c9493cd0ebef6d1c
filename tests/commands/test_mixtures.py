"""A mixture of corpora: trained by weights, resumed exactly, tested on the sets of each."""

import csv
import os
import re
import signal

import pytest
import torch
from omegaconf import OmegaConf

from asr.run_folder import DATA_RECORD
from tests.commands.conftest import TINY, Workplace
from tests.commands.test_resume import last, losses, same_weights, start, wait_for_update

WORDS = (*TINY, "logger=csv", "data.batch.max_duration_s=10")


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory):
    """Return a workplace with prepared digits, and a table of some of their recordings."""
    place = Workplace(tmp_path_factory.mktemp("mixture"))
    (data,) = (trained.folder / "data" / "digits").glob("*/audio")
    rows = ["audio\ttext\tsplit"]
    for split, most in (("train", 6), ("dev", 2), ("test", 3)):
        rows += [f"{file}\tone two\t{split}" for file in sorted(data.glob(f"{split}-*/*.flac"))[:most]]
    (place.folder / "own.tsv").write_text("\n".join(rows) + "\n")
    return place


SMALL = "prepare: {num_train: 40, num_dev: 8, num_test: 8}"


def own(place):
    return f"name: own, recipe: custom/transformer_ctc, source: {place.folder}/own.tsv"


def sources(first, *weights):
    told = [f", weight: {weight}" for weight in weights] or ["", ""]
    return f"data.sources=[{{{first}{told[0]}}}, {{recipe: digits/transformer_ctc, {SMALL}{told[1]}}}]"


def record(run_dir):
    return (run_dir / DATA_RECORD).read_text()


def shares(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"].startswith("train/share/")]
    return {row["name"].rpartition("/")[2]: float(row["value"]) for row in rows}


@pytest.mark.parametrize("name", ["own", "fsdd"])
def test_a_mixture_trains_by_weight_and_resumes_exactly_and_tests_each_corpus(place, name, request):
    """Synthetic digits are mixed with a table of one's own, and with recordings of real digits."""
    if name == "own":
        first = own(place)
    else:
        archive = request.getfixturevalue("shared_data") / "fsdd_flac.tar"
        first = f"recipe: fsdd/transformer_ctc, source: {archive}, {SMALL}"
    words = (*WORDS, sources(first, 3, 1))
    whole, killed = place.folder / f"{name}_whole", place.folder / f"{name}_killed"
    printed = place.run("train", *words, f"run_dir={whole}")
    assert f"mixture, per epoch: {name} 7" in printed
    decoded = {path.name.partition(".")[0] for path in (whole / "decode").glob("*.hyp.txt")}
    assert decoded >= {f"test-{name}", "test-digits"}
    assert 0.6 < shares(whole)[name] < 0.9
    assert shares(whole)[name] + shares(whole)["digits"] == pytest.approx(1)
    saved = OmegaConf.load(whole / "config.yaml").data.sources
    prepared_by = "prepare_custom" if name == "own" else "prepare_fsdd"
    assert [entry.prepare._target_.rpartition(".")[2] for entry in saved] == [prepared_by, "prepare_digits"]

    process = start(place.folder, *words, f"run_dir={killed}")
    wait_for_update(killed, 8, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    refused = place.run("train", f"resume={killed}", "data.sources=null", code=2)
    assert re.search(r"have changed since the run was started:\s+data\.sources", refused), refused
    assert "resuming from update" in place.run("train", f"resume={killed}")
    assert same_weights(last(whole), last(killed))
    assert losses(whole) == losses(killed)


def test_weights_change_what_is_heard_and_not_the_data(place):
    for name, weights in (("by_size", ()), ("heavy", (1, 9))):
        place.run("train", *WORDS, sources(own(place), *weights), f"run_dir={name}", "decode_test=false")
    by_size, heavy = place.folder / "by_size", place.folder / "heavy"
    assert shares(heavy)["digits"] > shares(by_size)["digits"]
    assert record(by_size) == record(heavy)
    states = [last(folder)["state_dict"] for folder in (by_size, heavy)]
    assert any(not torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("data.sources=3", ["data.sources", "given 3"]),
        ("data.sources=[]", ["data.sources", "given []"]),
        ("data.sources=[{recipe: fsdd}]", ["recipe=fsdd", "fsdd/transformer_ctc"]),
        ("data.sources=[{recipe: ../x}]", ["data.sources.0.recipe", "'../x'"]),
        ("data.sources=[{recipe: digits/transformer_ctc, wait: 1}]", ["data.sources.0.wait"]),
        (
            "data.sources=[{recipe: digits/transformer_ctc}, {recipe: digits/zipformer_ctc}]",
            ["2 corpora are named digits; give each a name"],
        ),
        (
            "data.sources=[{recipe: digits/transformer_ctc, weight: 1}, {recipe: fsdd/transformer_ctc}]",
            ["give each corpus a weight, or none of them"],
        ),
        ("data.sources=[{recipe: digits/transformer_ctc, weight: 0}]", ["data.sources.0.weight", "0"]),
        ("data.sources=[{recipe: digits/transformer_ctc, name: a/b}]", ["data.sources.0.name", "'a/b'"]),
        (
            "data.sources=[{recipe: digits/transformer_ctc, prepare: {seeed: 1}}]",
            ["data.sources.0.prepare.seeed: prepare_digits has no such option"],
        ),
        (
            "data.sources=[{recipe: digits/transformer_ctc, prepare: {output_dir: x}}]",
            ["data.sources.0.prepare", "output_dir"],
        ),
        (
            "data.sources=[{recipe: custom/transformer_ctc, source: nowhere.tsv}]",
            ["data.sources.0.source: there is no file or folder 'nowhere.tsv'"],
        ),
        (
            "data.sources=[{recipe: custom/transformer_ctc}]",
            ["recipe custom needs your recordings: data.sources.0.source="],
        ),
    ],
)
def test_wrong_sources_are_refused_before_anything_is_prepared(programs, tmp_path, word, parts):
    ended = programs.run("train", *WORDS, word, cwd=tmp_path)
    assert (ended.code, [part for part in parts if part not in ended.printed]) == (2, []), ended.printed
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_source_beside_sources_is_refused(place):
    printed = place.run("train", *WORDS, sources(own(place)), "data.source=x", code=2)
    assert "data.sources says of each corpus where it lies; leave data.source out" in printed


@pytest.mark.parametrize(
    ("of_test", "of_train", "names", "message"),
    [
        ("test-b", "train", ("a", "a-b"), "a and a-b would both have a test set 'test-a-b'; give one of them another"),
        ("train", "test", ("a", "b"), "is in training of b and in the test set of a; leave it out of one of them"),
    ],
    ids=["one name for two sets", "held out by one and trained on by the other"],
)
def test_corpora_that_spoil_each_other_are_refused(place, of_test, of_train, names, message):
    """The second corpus has the same recordings as the first, in other splits."""
    splits = {"test": of_test, "train": of_train}
    rows = [row.rpartition("\t") for row in (place.folder / "own.tsv").read_text().splitlines()]
    other = [f"{row}\t{splits.get(split, split)}" for row, _, split in rows]
    (place.folder / "other.tsv").write_text("\n".join(other) + "\n")
    tables = ("other.tsv", "own.tsv") if of_train == "train" else ("own.tsv", "other.tsv")
    entries = ", ".join(
        f"{{recipe: custom/transformer_ctc, name: {name}, source: {table}}}"
        for name, table in zip(names, tables, strict=True)
    )
    words = ("recipe=digits/transformer_ctc", "tokenizer=char", f"data.sources=[{entries}]")
    assert message in place.run("prepare", *words, code=2)
