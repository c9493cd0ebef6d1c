"""Each recipe trains a miniature of its corpus by its README's command, and evaluating finds its error rate again."""

import json
import re
from pathlib import Path

import pytest

from tests.recipes.miniatures import MINI_PARTS, write_aishell, write_commonvoice, write_librispeech, write_table

RECIPES = Path(__file__).parents[2] / "recipes"
ON_A_CPU = (
    *("trainer=cpu", "trainer.max_steps=3", "trainer.val_check_interval=2", "data.workers.num_workers=0"),
    *("tokenizer=char", "data.batch.max_duration_s=8", "logger=csv", "torch_threads=1", "run_dir=run"),
)
SMALL = ("encoder=transformer_xxs", "data.prepare.num_train=24", "data.prepare.num_dev=4", "data.prepare.num_test=4")
LARGE = ("encoder=zipformer_xs",)
# how the source of each is made of what fixtures give, and its options
CASES = {
    "aishell": (lambda given, folder: write_aishell(folder, given("words")), LARGE),
    "an4": (lambda given, _: given("an4_archive"), ("encoder=transformer_xxs", "data.prepare.num_dev_speakers=2")),
    "commonvoice": (lambda given, folder: write_commonvoice(folder, given("words")), LARGE),
    "custom": (lambda given, folder: write_table(folder, given("words")), ("encoder=transformer_xxs",)),
    "digits": (None, SMALL),
    "fsdd": (lambda given, _: given("shared_data") / "fsdd_flac.tar", SMALL),
    "librispeech": (
        lambda given, folder: write_librispeech(folder, given("words"), MINI_PARTS),
        (*LARGE, "data.prepare.subsets=mini"),
    ),
    "phrases": (None, SMALL),
}


def test_every_recipe_is_here():
    assert sorted(CASES) == sorted(folder.parent.name for folder in RECIPES.glob("*/prepare.py"))


def command(corpus: str, source: Path | None, *words: str) -> list[str]:
    """Return the README's first command that trains from such a source, with other words in place of its own."""
    readme = (RECIPES / corpus / "README.md").read_text(encoding="utf-8")
    told = "" if source is None else r"data\.source=\S+"
    line = re.search(rf"^asr-train (recipe={corpus}/.*{told}.*)$", readme, re.M)
    asked = {word.partition("=")[0]: word for word in line[1].partition("#")[0].split()}
    asked |= {word.partition("=")[0]: word for word in words}
    if source is not None:
        asked["data.source"] = f"data.source={source}"
    return list(asked.values())


@pytest.mark.parametrize("corpus", CASES)
def test_a_miniature_is_trained_by_the_command_of_the_readme(corpus, request, programs, tmp_path):
    make, options = CASES[corpus]
    source = None if make is None else make(request.getfixturevalue, tmp_path / "source")
    ended = programs.run("train", *command(corpus, source, *ON_A_CPU, *options), cwd=tmp_path)
    summary = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert ", 3 updates, " in ended.printed  # as typed, and not the epochs of the recipe
    if corpus == "librispeech":
        assert summary["test"] == {}  # mini LibriSpeech has none
        return
    rate_name = "CER" if corpus == "aishell" else "WER"
    assert summary["test"]["test"]["unit"] == ("character" if rate_name == "CER" else "word")
    assert re.search(rf"^test  {rate_name} \d+\.\d\d % \[", ended.printed, re.M)
    assert ("WER" in ended.printed) == (rate_name == "WER")
    again = programs.run("evaluate", "run=run", "num_workers=0", "torch_threads=1", cwd=tmp_path)
    lines = [line for line in ended.printed.splitlines() if line.startswith(f"test  {rate_name}")]
    assert lines[-1] in again.printed.splitlines()  # what comes before it is without a language model
