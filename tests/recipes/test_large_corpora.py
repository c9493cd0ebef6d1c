"""Recipes of large corpora: sizes as published, and a training of each on a miniature by its README's command."""

import json
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from asr.cli.builders.parts import outline_recognizer, plain
from asr.cli.config.explanations import CONFIGS
from tests.recipes.miniatures import MINI_PARTS, write_aishell, write_commonvoice, write_librispeech

RECIPES = Path(__file__).parents[2] / "recipes"
# numbers of parameters, in icefall's RESULTS.md of LibriSpeech and AISHELL, and of tokens
PUBLISHED = {
    "librispeech/zipformer_s_cr_ctc": (22_118_279, 500),
    "librispeech/zipformer_m_cr_ctc": (64_250_603, 500),
    "librispeech/zipformer_m_transducer": (65_549_011, 500),
    "aishell/zipformer_m_cr_ctc": (66_218_471, 4336),
    "aishell/zipformer_m_transducer": (73_412_551, 4336),
}
ON_A_CPU = (
    *("trainer=cpu", "trainer.max_steps=3", "trainer.val_check_interval=2", "data.workers.num_workers=0"),
    *("tokenizer=char", "data.batch.max_duration_s=8", "logger=csv", "torch_threads=1", "run_dir=run"),
)
CASES = {
    "librispeech": (
        lambda folder, words: write_librispeech(folder, words, MINI_PARTS),
        ("data.prepare.subsets=mini", "encoder=zipformer_xs"),
        "WER",
    ),
    "commonvoice": (write_commonvoice, ("encoder=zipformer_xs",), "WER"),
    "aishell": (write_aishell, ("encoder=zipformer_xs",), "CER"),
}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_recognizers_have_the_published_sizes(recipe):
    published, vocab_size = PUBLISHED[recipe]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = plain(compose("train", overrides=[f"recipe={recipe}"]))
    outline = outline_recognizer(config, vocab_size, 80)
    assert sum(p.numel() for p in outline.parameters()) == pytest.approx(published, rel=2e-4)


def command(corpus: str, source: Path, *words: str) -> list[str]:
    """Return the README's first command that reads a source, with other words in place of its own."""
    readme = (RECIPES / corpus / "README.md").read_text(encoding="utf-8")
    line = re.search(rf"^asr-train (recipe={corpus}/.*data\.source=PATH.*)$", readme, re.M)
    asked = {word.partition("=")[0]: word for word in line[1].partition("#")[0].split()}
    asked |= {"data.source": f"data.source={source}"} | {word.partition("=")[0]: word for word in words}
    return list(asked.values())


@pytest.mark.parametrize("corpus", CASES)
def test_a_miniature_is_trained_by_the_command_of_the_readme(corpus, words, programs, tmp_path):
    write, changed, rate_name = CASES[corpus]
    source = write(tmp_path / "source", words)
    ended = programs.run("train", *command(corpus, source, *ON_A_CPU, *changed), cwd=tmp_path)
    assert ended.code == 0, ended.printed
    summary = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert ", 3 updates, " in ended.printed  # as typed, and not the epochs of the recipe
    if corpus == "librispeech":
        assert summary["test"] == {}  # mini LibriSpeech has none
        return
    assert summary["test"]["test"]["unit"] == ("character" if rate_name == "CER" else "word")
    assert re.search(rf"^test  {rate_name} \d+\.\d\d % \[", ended.printed, re.M)
    assert ("WER" in ended.printed) == (rate_name == "WER")
    again = programs.run("evaluate", "run=run", "num_workers=0", "torch_threads=1", cwd=tmp_path)
    line = next(line for line in ended.printed.splitlines() if line.startswith(f"test  {rate_name}"))
    assert line in again.printed.splitlines()
