import importlib
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "configs" / "tokenizer"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_is_a_config_for_each_kind_of_tokenizer():
    assert [path.stem for path in FILES] == ["bpe", "char", "unigram"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_tokenizer_config_describes_itself_and_builds_a_trainer(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    # the size is the corpus's to choose
    options = yaml.safe_load(text.replace("${data.vocab_size}", "500"))
    module, name = options.pop("_target_").rsplit(".", 1)
    trainer = getattr(importlib.import_module(module), name)(**options)
    assert {"model_type": path.stem, "vocab_size": 500}.items() <= options.items() or path.stem == "char"
    assert callable(trainer.train)
