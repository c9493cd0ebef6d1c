"""Command lines: what they name is found by every process of the command, and shown as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from asr.config.help import config_folder
from asr.config.schema import KINDS
from tests.programs import Ended

RECIPE = """# @package _global_
# mine
defaults:
  - digits/transformer_ctc
"""


@pytest.fixture
def recipes(tmp_path) -> Path:
    folder = tmp_path / "theirs" / "mine"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def refused_job(programs, tmp_path_factory) -> tuple[Path, Ended]:
    """Return the folder of a sweep, with how it ended: its one job is refused.

    The folder has a name that needs quotes everywhere, and holds code that a job must not import.
    """
    folder = tmp_path_factory.mktemp("sweep") / "a\nb, {c}=d"
    for group, parent, content in (("optimizer", "adamw", "lr: -1"), ("schedule", "constant", "warmup_steps: 3")):
        place = folder / f"their {group}" / group
        place.mkdir(parents=True)
        (place / "mine.yaml").write_text(f"defaults: [{parent}]\n{content}\n")
    (folder / "yaml.py").write_text("open('hacked', 'w')")
    places = ("--config-dir=their optimizer", "hydra.searchpath=['their schedule']")
    words = ("optimizer=mine", "schedule=mine", "seed=1", "logger=none", "sweep.name=x")
    return folder, programs.run("train", "-m", *places, *words, cwd=folder)


def test_a_job_of_a_sweep_in_a_folder_of_any_name_finds_added_configs_and_no_code_of_the_folder(refused_job):
    folder, ended = refused_job
    assert "asr-train: optimizer: lr must be a number" in ended.printed, ended.printed
    assert "1 jobs: 0 finished" in ended.last_line
    assert len(list((folder / "runs" / "x" / "jobs").glob("*.json"))) == 1
    assert not (folder / "hacked").exists()


@pytest.mark.parametrize("flag", ["--config-dir=it's", 'hydra.searchpath=["it\'s"]'])
def test_recipes_and_another_folder_of_configs_are_found_together(programs, recipes, tmp_path, flag):
    folder = tmp_path / "it's" / "optimizer"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults: [adamw]\nlr: -1\n")
    words = (flag, "recipes_dir=theirs", "recipe=mine/x", "optimizer=mine")
    ended = programs.run("train", *words, cwd=tmp_path)
    assert ended.printed.startswith(f"recipes_dir: runs the Python code in {tmp_path}/theirs; name only what you trust")
    assert (ended.code, "lr must be a number" in ended.printed) == (2, True), ended.printed


WRONG = {
    "a sweep of another command": ("evaluate", "-m run=RUN", "-m"),
    "no sweep of this name": ("compare", "sweep=../x", "sweep"),
    "no folder of a sweep": ("train", "-m sweep.name=../../x seed=1,2", "sweep.name"),
    "nothing that is swept": ("train", "-m recipe=glob(nothing/*) logger=none", "no job"),
    "no run": ("evaluate", "", "run must be given"),
    "a list as run": ("transcribe", "run=[a] audio=x", "run"),
    "a truth as seconds": ("evaluate", "run=RUN batch_duration_s=true", "batch_duration_s"),
    "no choice of a list": ("transcribe", "run=RUN audio=x output_format=[pdf]", "output_format"),
    "a path as name": ("evaluate", "run=RUN name=../x", "name"),
    "an option of a decoder without decoder": ("evaluate", "run=RUN decoder.lm=x", "decoder: none is chosen"),
    "a group of another command": ("evaluate", "run=RUN head=ctc", "head"),
    "a key that nothing reads": ("stream", "run=RUN audio=x +foo=1", "foo"),
    "no folder of recipes": ("train", "recipes_dir=nowhere", "recipes_dir"),
}


@pytest.mark.parametrize(("command", "line", "key"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_in_one_line(small_run, tmp_path, command, line, key):
    words = [word.replace("RUN", str(small_run.run_dir)) for word in line.split()]
    ended = small_run.programs.run(command, *words, cwd=tmp_path, timeout_s=20)
    lines = [line for line in ended.printed.splitlines() if "HYDRA_FULL_ERROR=1 shows" not in line]
    assert (ended.code, len(lines)) == (2, 1), ended.printed
    assert lines[0].startswith(f"asr-{command}: ")
    assert key in lines[0]


def test_every_key_of_a_command_for_decoding_or_comparing_has_a_kind():
    # these say themselves what they allow
    own = {"weights", "average_since", "torch_threads", "trust"}
    for command in ("evaluate", "transcribe", "lm", "compare"):
        config = yaml.safe_load((config_folder(command) / f"{command}.yaml").read_text(encoding="utf-8"))
        groups = {key for item in config["defaults"] if isinstance(item, dict) for key in item if " " not in key}
        assert (config.keys() | groups) - {"defaults", "hydra"} - own == KINDS[command].keys()


def test_a_variable_of_the_launcher_is_not_obeyed_from_elsewhere(programs, tmp_path):
    (tmp_path / "precious").mkdir()
    words = ("logger=none", "trainer.max_steps=1")
    ended = programs.run("train", *words, cwd=tmp_path, environment={"WERDICT_RUN_DIR": str(tmp_path / "precious")})
    assert (ended.code, ended.last_line) == (
        2,
        f"asr-train: the variable WERDICT_RUN_DIR={tmp_path}/precious is only for this program itself; unset it",
    )


MARKUP = ("[/bold]", ":boom:", "\x1b]0;title\x07", "a\rb")


@pytest.mark.parametrize("name", MARKUP)
def test_text_of_users_is_shown_as_it_stands(programs, tmp_path, name):
    words = (f"resume='{name}'", f"run='{name}'", f"audio='{name}'")
    for command, word in zip(("train", "evaluate", "transcribe"), words, strict=True):
        more = ("run=x",) if command == "transcribe" else ()
        printed = programs.run(command, word, *more, cwd=tmp_path).printed
        assert "Traceback" not in printed
        assert name.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\r", "\\r") in printed
        assert not set(printed) & {"\x1b", "\x07", "\r"}
