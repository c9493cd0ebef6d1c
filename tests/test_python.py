"""The examples of docs/python.md, on a small corpus."""

import re
from pathlib import Path

import pytest

import asr
from tests.test_own_code import SMALL

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
WORDS = ["logger=csv", *SMALL]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("python")


def run_block(block: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a block in a folder, with the options of a small corpus; return what it printed."""
    monkeypatch.chdir(folder)
    for name in ("train", "training_parts"):
        made = getattr(asr, name)
        monkeypatch.setattr(asr, name, lambda words, made=made: made([*words, *WORDS]), raising=False)
    audio = 'sorted(__import__("pathlib").Path("data").rglob("audio/test-*/*.flac"))[:2]'
    exec(block.replace('["a.flac", "b.wav"]', audio).replace("max_steps=1000,", "max_steps=4,"), {})
    return capsys.readouterr().out


def test_a_run_is_trained_and_transcribes(folder, capsys, monkeypatch):
    printed = run_block(BLOCKS[0], folder, capsys, monkeypatch)
    assert re.search(r"runs/digits/transformer_ctc/\S+ [\d.]+$", printed, re.MULTILINE)


def test_a_lightning_trainer_of_ones_own_trains(folder, capsys, monkeypatch):
    run_block(BLOCKS[2], folder, capsys, monkeypatch)


def test_a_wrong_option_is_an_error_of_its_kind(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(asr.ConfigError, match=r"optimizer\.lr"):
        asr.train(["optimizer.lr=fast", *WORDS])


def test_every_name_is_found():
    assert all(getattr(asr, name) for name in asr.__all__)
