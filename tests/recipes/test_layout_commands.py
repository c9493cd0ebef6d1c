"""Corpora in the layouts that people have train by one command, and are evaluated by another."""

import json

import pytest

from tests.commands.conftest import Workplace
from tests.data.corpora import utterance
from tests.data.manifests.test_layouts import rows, write
from tests.small_runs import TINY_MODEL

NAMES = [f"{name}.wav" for name in "abcdefghijkl"]
SPLITS = {"train": NAMES[:6], "val": NAMES[6:8], "test": NAMES[8:]}
LAYOUTS = {
    "a split folder": (
        {
            f"mine/{split}.tsv": rows("audio\ttext", *(f"{name}\tab" for name in names))
            for split, names in SPLITS.items()
        },
        ["data.source=mine"],
        ["test"],
    ),
    "a table with columns of its own, and two test sets": (
        {
            f"mine/{split}.csv": rows("my_path,my_text", *(f"{name},ab" for name in names))
            for split, names in {**SPLITS, "test": NAMES[8:10], "more": NAMES[10:]}.items()
        },
        [
            "data.source={train: mine/train.csv, dev: mine/val.csv, test: [mine/test.csv, mine/more.csv]}",
            "data.columns={audio: my_path, text: my_text}",
        ],
        ["test-mine", "test-more"],
    ),
    "an audiofolder": (
        {
            f"mine/{split}/metadata.csv": rows("file_name,transcription", *(f"../{name},ab" for name in names))
            for split, names in SPLITS.items()
        },
        ["data.source=mine"],
        ["test"],
    ),
}


@pytest.mark.parametrize(("files", "words", "tests"), LAYOUTS.values(), ids=LAYOUTS)
def test_it_trains_by_one_command(files, words, tests, tmp_path):
    write(tmp_path, files)
    for name in NAMES:
        utterance(tmp_path / "mine", name.removesuffix(".wav"))
    place = Workplace(tmp_path)
    model = ("recipe=custom/transformer_ctc", "data.transcripts_lm=0", *TINY_MODEL, "run_dir=run")
    place.run("train", *model, *words)
    summary = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert sorted(summary["test"]) == tests
    place.run("evaluate", "run=run", f"manifest={next(name for name in files if 'test' in name)}")
