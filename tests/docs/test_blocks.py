"""Every block of the documentation runs, page by page, in its order; trainings are shortened.

A block of sh runs as it stands, one of python in the namespace of its page, an example of a docstring of `asr` by
itself; a block whose first line is a comment
with a path is written to that file. ``<!-- not run: REASON -->`` before a block leaves it out, and
``<!-- needs: PACKAGE -->`` too if none of the packages, separated by "or", is installed.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import asr
from asr.commands import api
from tests.commands.conftest import TINY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- ((?:not run|needs):.+?) -->\n+)?^```(sh|python|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = [test for test in doctest.DocTestFinder().find(api, "api", globs={"asr": asr}) if test.examples]
SMALL = tuple(word for word in TINY if not word.startswith("encoder."))
SIZES = {
    "transformer": tuple(word for word in TINY if word.startswith("encoder.")),
    "zipformer": (
        *(
            "encoder.encoder_dim=[16,24,16]",
            "encoder.encoder_unmasked_dim=[16,16,16]",
            "encoder.feedforward_dim=[16,16,16]",
        ),
        *("encoder.num_encoder_layers=[1,1,1]", "encoder.subsampling_channels=[2,4,4]"),
    ),
    "zapformer": (
        *("encoder.input_dim=16", "encoder.encoder_dim=[16,24,16]", "encoder.num_encoder_layers=[1,1,1]"),
        "encoder.subsampling_channels=[2,4,4]",
    ),
}
SWEPT = ("trainer.max_steps=4", "trainer.val_check_interval=2")
TUNED = ("sweep.trials=2", "sweep.max_extra_trials=0")


def shortened(line: str) -> str:
    """Return a command that trains a little; others stay as they are."""
    if not re.match(r"asr-(train|prepare)\b", line) or "resume=" in line or "--cfg" in line:
        return line
    own = "encoder._target_" in line
    kind = next((kind for kind in ("zipformer", "zapformer") if kind in line), "transformer")
    size = () if own else SIZES[kind]
    if "recipe=finetune" in line:
        size = ("trainer=cpu",)
    has_source = re.search("recipe=(custom|finetune)", line)
    sizes = [word for word in (*SMALL, *size) if not has_source or not word.startswith("data.prepare.")]
    return " ".join([line, *sizes, *(SWEPT if " -m " in line else ()), *(TUNED if "sweep=optimizers" in line else ())])


def is_left_out(note: str) -> bool:
    """Return whether a block is not run here: by its own words, or because a package that it needs is missing."""
    kind, _, what = note.partition(": ")
    return kind == "not run" or (
        kind == "needs" and not any(importlib.util.find_spec(name) for name in what.split(" or "))
    )


@pytest.fixture(scope="session")
def stage(trained, tmp_path_factory) -> Path:
    """A folder with a run, and recordings, texts and noise of one's own."""
    folder = tmp_path_factory.mktemp("stage")
    shutil.copytree(trained.folder / "data", folder / "data", symlinks=True)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "werdict").symlink_to("../data")
    shutil.copytree(trained.run_dir, folder / "runs" / "digits" / "first")
    (folder / "runs" / "latest").symlink_to("digits/first")
    audio = sorted((folder / "data").rglob("audio/*/*.flac"))[:48]
    rows = [f"{path.relative_to(folder)}\tone two three" for path in audio]
    for name, part in (("my.tsv", rows), ("quiet.tsv", rows[:4]), ("noisy.tsv", rows[4:8])):
        (folder / name).write_text("\n".join(["audio\ttext", *part]) + "\n")
    for number, path in enumerate(audio[:3]):
        (folder / "recordings").mkdir(exist_ok=True)
        shutil.copy(path, folder / "recordings" / f"{number}.flac")
    samples, rate = zip(*(soundfile.read(path) for path in audio[:4]), strict=True)
    soundfile.write(folder / "talk.flac", np.concatenate(samples), rate[0])
    (folder / "noise").mkdir()
    soundfile.write(folder / "noise" / "rain.wav", np.random.default_rng(0).normal(0, 0.1, 80_000), 16_000)
    (folder / "sentences.txt").write_text("one two three\nfour five six\n" * 20)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "names.txt").write_text("one two\nseven\n")
    return folder


def run_sh(block: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "WANDB_MODE": "offline", "PATH": path, "PYTHONPATH": f"{folder}:{ROOT}"}
    del environment["WERDICT_CACHE"]
    environment |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / ".cache")}
    for line in block.replace("\\\n", " ").splitlines():
        done = subprocess.run(
            ["bash", "-c", shortened(line)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture
def place(stage, tmp_path, monkeypatch) -> Path:
    """The folder of a page, where trainings from Python are shortened."""
    folder = tmp_path / "place"
    shutil.copytree(stage, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("train", "training_parts"):
        made = getattr(asr, name)
        monkeypatch.setattr(asr, name, lambda words, made=made: made([*words, *SMALL]), raising=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_runs(page, place):
    folder = place
    names: dict[str, object] = {}
    for note, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        file = re.match(r"# ([\w./-]+\.\w+)\n", block)
        if file:
            (folder / file[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / file[1]).write_text(block)
        elif is_left_out(note):
            print(f"{note}\n{block}")
        elif language == "sh":
            run_sh(block, folder)
        elif language == "python":
            with contextlib.redirect_stdout(sys.stderr):
                exec(block, names)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_of_a_docstring_runs(example, place, causal):
    (place / "runs" / "causal").symlink_to(causal)
    assert doctest.DocTestRunner(_Checker()).run(example).failed == 0


class _Checker(doctest.OutputChecker):
    """Compares only what an example says that it prints: trainings print more."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)
