"""A mixture of corpora: trained by weights, resumed exactly, tested on the sets of each."""

import csv

import pytest
import torch

from asr.run.folder import DATA_RECORD
from tests.commands.conftest import TINY, Workplace
from tests.commands.test_resume import last, losses, same_weights, train_until_killed

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


def test_a_mixture_trains_by_weight_and_resumes_exactly_and_tests_each_corpus(place):
    words = (*WORDS, sources(own(place), 3, 1))
    whole, killed = place.folder / "whole", place.folder / "killed"
    place.run("train", *words, f"run_dir={whole}")
    decoded = {path.name.partition(".")[0] for path in (whole / "decode").glob("*.hyp.txt")}
    assert decoded >= {"test-own", "test-digits"}
    assert 0.6 < shares(whole)["own"] < 0.9
    assert shares(whole)["own"] + shares(whole)["digits"] == pytest.approx(1)

    train_until_killed(killed, 8, *words)
    assert "data.sources" in place.run("train", f"resume={killed}", "data.sources=null", code=2)
    assert "resuming from update" in place.run("train", f"resume={killed}")
    assert same_weights(last(whole), last(killed))
    assert losses(whole) == losses(killed)


def test_weights_change_what_is_used_in_training_and_not_the_data(place):
    for name, weights in (("by_size", ()), ("heavy", (1, 9))):
        place.run("train", *WORDS, sources(own(place), *weights), f"run_dir={name}", "decode_test=false")
    by_size, heavy = place.folder / "by_size", place.folder / "heavy"
    assert shares(heavy)["digits"] > shares(by_size)["digits"]
    assert record(by_size) == record(heavy)
    states = [last(folder)["state_dict"] for folder in (by_size, heavy)]
    assert any(not torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("data.sources=[{recipe: fsdd}]", ["recipe=fsdd", "fsdd/transformer_ctc"]),
        ("data.sources=[{recipe: digits/transformer_ctc}, {recipe: digits/zipformer_ctc}]", ["digits", "name"]),
        ("data.sources=[{recipe: digits/transformer_ctc, weight: 1}, {recipe: fsdd/transformer_ctc}]", ["weight"]),
        ("data.sources=[{recipe: digits/transformer_ctc, prepare: {seeed: 1}}]", ["data.sources.0.prepare.seeed"]),
        ("data.sources=[{recipe: custom/transformer_ctc, source: nowhere.tsv}]", ["data.sources.0.source", "nowhere"]),
        ("data.sources=[{recipe: custom/transformer_ctc}]", ["data.sources.0.source"]),
        (["data.sources=[{recipe: digits/transformer_ctc}]", "data.source=x"], ["data.source"]),
    ],
)
def test_wrong_sources_are_refused_before_anything_is_prepared(programs, tmp_path, words, parts):
    ended = programs.run("train", *WORDS, *([words] if isinstance(words, str) else words), cwd=tmp_path, code=2)
    assert [part for part in parts if part not in ended.printed] == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_what_one_corpus_holds_out_and_another_trains_on_is_refused(place):
    """The second corpus has the same recordings as the first, in other splits."""
    other = {"train": "test", "test": "train", "dev": "dev", "split": "split"}
    rows = [row.rpartition("\t") for row in (place.folder / "own.tsv").read_text().splitlines()]
    (place.folder / "other.tsv").write_text("".join(f"{row}\t{other[split]}\n" for row, _, split in rows))
    entries = ", ".join(
        f"{{recipe: custom/transformer_ctc, name: {name}, source: {name}.tsv}}" for name in ("own", "other")
    )
    words = ("recipe=digits/transformer_ctc", "tokenizer=char", f"data.sources=[{entries}]")
    assert "is in training of other and in the test set of own" in place.run("prepare", *words, code=2)
