"""The notebooks of the documentation run to their end; trainings are shortened by their first cells."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
# notebook: variables of its first cell, and what the outputs must show
SHORTENED = {
    "which_optimizer": (
        {"UPDATES": 12, "NUM_TRAIN": 40, "SEEDS": '"1,2"'},
        ["4 jobs: 4 finished", "Training cost", "<IPython.core.display.Image object>", "adamw"],
    ),
    "my_own_corpus": (
        {"UPDATES": 12, "NUM_RECORDINGS": 120},
        ["empty text", "unreadable audio", "test  WER", "<IPython.core.display.Image object>", "-->"],
    ),
}


def text_of(output: nbformat.NotebookNode) -> str:
    return output["text"] if "text" in output else output["data"]["text/plain"]


def test_every_notebook_is_in_the_table():
    assert SHORTENED.keys() == {path.stem for path in TUTORIALS.glob("*.ipynb")}


@pytest.mark.parametrize("name", SHORTENED)
def test_a_notebook_holds_its_outputs_and_no_place_of_a_machine(name):
    path = TUTORIALS / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w.])/(?:tmp/(?!tutorial)|work|home|root)\b", text)) == set()
    assert all(cell.outputs for cell in nbformat.reads(text, 4).cells[-3:] if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORTENED)
def test_a_notebook_runs_to_its_end(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(TUTORIALS.parents[1]), prepend=":")
    nbclient = pytest.importorskip("nbclient")
    values, shown = SHORTENED[name]
    notebook = nbformat.read(TUTORIALS / f"{name}.ipynb", 4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for variable, value in values.items():
        first.source, num = re.subn(rf"(?m)^{variable} = [^#\n]*", f"{variable} = {value}  ", first.source)
        assert num == 1, variable
    if shutil.which("asr-train") is None:
        pytest.skip("the commands are not installed")
    nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "\n".join(text_of(output) for cell in notebook.cells for output in cell.get("outputs", []))
    assert [text for text in shown if text not in printed] == []
