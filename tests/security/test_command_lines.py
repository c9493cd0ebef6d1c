"""Pasted command lines and recipes: Hydra builds its own parts only, and a yaml alone runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from asr.training.wandb_access import chosen_mode
from tests.security.hostile_pickle import write_hostile_pickle

HYDRA = "only what belongs to Hydra and its plugins is built"
LINES = {
    "callback of the system": ("+hydra.callbacks.x={_target_:os.mkdir,path:hacked}", HYDRA),
    "callback of torch": ("+hydra.callbacks.x={_target_:torch.load,f:evil.pickle,weights_only:false}", HYDRA),
    "callback that pickles": (
        "+hydra.callbacks.x={_target_:hydra.experimental.callbacks.PickleJobInfoCallback}",
        HYDRA,
    ),
    "callback in a callback": (
        "+hydra.callbacks.sweep_table.x={_target_:os.mkdir,path:hacked}",
        HYDRA,
    ),
    "callback by interpolation": ("+hydra.callbacks.x={_target_:'${oc.env:EVIL,os.mkdir}',path:hacked}", HYDRA),
    "callback through Hydra": ("+hydra.callbacks.x={_target_:hydra.utils.get_method,path:os.mkdir}", HYDRA),
    "launcher": ("-m seed=1,2 hydra.launcher._target_=os.mkdir +hydra.launcher.path=hacked", HYDRA),
    "launcher with more": ("-m seed=1,2 +hydra.launcher.x={_target_:os.mkdir,path:hacked}", HYDRA),
    "sweeper": ("-m seed=1,2 hydra.sweeper._target_=os.mkdir", HYDRA),
    "logging to a file": (
        "+hydra.job_logging.handlers={x:{class:logging.FileHandler,filename:hacked}}",
        "hydra.job_logging cannot be changed",
    ),
    "logging of Hydra": ("hydra/hydra_logging=default", "hydra.hydra_logging cannot be changed"),
    "rerun": ("--experimental-rerun=evil.pickle", "--experimental-rerun is not used here: it unpickles a file"),
    "rerun, shortened": ("--exp evil.pickle", "--experimental-rerun is not used here"),
    "another config": ("--config-name=evaluate", "--config-name is not used here"),
    "another folder of configs": ("-cp /tmp", "--config-path is not used here"),
    "target": ("encoder._target_=os.mkdir", "is not allowed here"),
    "nested target": ("+encoder.d_model={_target_:os.mkdir,path:hacked}", "is not allowed here"),
    "target in a list": ("+parameter_rules.rules.0.x=[{_target_:os.mkdir,path:hacked}]", "parameter_rules"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_pasted_command_line_runs_nothing(programs, tmp_path, case):
    line, expected = LINES[case]
    write_hostile_pickle(tmp_path)
    ended = programs.run("train", *line.split(" "), cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.last_line, ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["evil.pickle"]


RECIPE = """# @package _global_
# {name}
defaults:
  - digits/transformer_ctc
{more}
"""
YAMLS = {
    "a callback of Hydra": ("hydra:\n  callbacks:\n    x: {_target_: os.mkdir, path: hacked}", HYDRA),
    "our table as callback": (
        "hydra:\n  callbacks:\n    x: {_target_: asr.cli.sweep_table.SweepTable}",
        "changes hydra.callbacks",
    ),
    "the environment": (
        "hydra:\n  job:\n    env_set: {PYTHONPATH: evil}",
        "only a command line may set",
    ),
    "logging that builds": ("hydra:\n  job_logging:\n    handlers: {x: {(): os.mkdir, path: hacked}}", HYDRA),
    "logging": (
        "hydra:\n  job_logging:\n    handlers: {x: {class: logging.FileHandler, filename: hacked}}",
        "hydra.job_logging cannot be changed",
    ),
    "a function of the system": ("encoder: {_target_: os.mkdir, path: hacked}", "is not allowed here"),
    "a prepare function that is none": (
        "data:\n  prepare: {_target_: os.mkdir, path: hacked}",
        "is not allowed here",
    ),
    "a tag": ("seed: !!python/object/apply:os.mkdir [hacked]", "python/object/apply"),
}


@pytest.fixture
def recipes(tmp_path) -> Path:
    folder = tmp_path / "theirs" / "mine"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("case", YAMLS)
def test_a_yaml_alone_in_recipes_dir_runs_nothing(programs, recipes, tmp_path, case):
    more, expected = YAMLS[case]
    (recipes / "x.yaml").write_text(RECIPE.format(name=case, more=more))
    ended = programs.run("train", "recipes_dir=theirs", "recipe=mine/x", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.printed.split("name only what you trust\n")[1], ended.printed
    assert "Traceback" not in ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("case", YAMLS)
@pytest.mark.parametrize("swept", ["recipe=mine/x,mine/y", "recipe=choice(mine/x)"])
def test_a_yaml_that_is_swept_runs_nothing_either(programs, recipes, tmp_path, case, swept):
    more, expected = YAMLS[case]
    for name in "xy":
        (recipes / f"{name}.yaml").write_text(RECIPE.format(name=case, more=more))
    if expected == "is not allowed here":
        pytest.skip("a job of the sweep refuses it, which the case of a single recipe shows")
    ended = programs.run("train", "-m", "recipes_dir=theirs", swept, cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.printed, ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


FOREIGN = {
    "the environment": ("hydra: {job: {env_set: {PYTHONPATH: evil}}}", "hydra.job.env_set.PYTHONPATH"),
    "a run folder of Hydra": ("hydra: {job: {chdir: true}}", "a yaml of another folder changes hydra.job"),
    "a callback": ("hydra: {callbacks: {x: {_target_: os.mkdir, path: hacked}}}", HYDRA),
}


def write_group(folder: Path, group: str, content: str) -> None:
    """Write ``mine.yaml`` of a group of configs."""
    (folder / group).mkdir(parents=True)
    (folder / group / "mine.yaml").write_text(f"# @package _global_\n{content}\n")


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("flag", ["--config-dir theirs", "hydra.searchpath=[file://theirs]"])
def test_a_yaml_of_an_added_folder_does_not_change_hydra(programs, tmp_path, case, flag):
    content, expected = FOREIGN[case]
    write_group(tmp_path / "theirs", "optimizer", content)
    ended = programs.run("train", *flag.split(" "), "optimizer=mine", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.last_line, ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


ENDLESS = {
    "aliases": ("a: &a [1,1]\nb: &b [*a,*a]\nseed: 1", "it has aliases"),
    "depth": ("seed: " + "[" * 500 + "]" * 500, "nested deeper than 50"),
    "itself": ("defaults: [_self_, mine]", ""),
}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("group", ["optimizer", "recipe"])
def test_a_yaml_without_end_is_refused(programs, tmp_path, case, group):
    content, expected = ENDLESS[case]
    write_group(tmp_path / "theirs", group, content)
    ended = programs.run("train", "--config-dir", "theirs", f"{group}=mine", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert "Traceback" not in ended.printed
    assert expected in ended.last_line, ended.printed


def test_a_pattern_that_never_ends_is_refused(programs, tmp_path):
    rules = "parameter_rules.rules=[{pattern:'(\\w+\\.?)+!',weight_decay:0.0},{pattern:'.*'}]"
    ended = programs.run("train", rules, "logger=none", cwd=tmp_path, timeout_s=60)
    assert ended.code == 2, ended.printed
    assert "parameter_rules: a pattern takes longer than" in ended.last_line, ended.printed


SWEEPS = {
    "run_dir=a,b": "jobs of a sweep get folders of their own",
    "run_dir=a seed=1,2": "jobs of a sweep get folders of their own",
    "resume=a,b": "jobs of a sweep get folders of their own",
    "seed=range(1,1000000000)": "at most 10000 values",
    "sweep.name=../../x seed=1,2": "sweep.name must be",
    "recipe=glob(nothing/*)": "the sweep has no job",
}


@pytest.mark.parametrize("line", SWEEPS)
def test_a_sweep_that_cannot_be_is_refused(programs, tmp_path, line):
    ended = programs.run("train", "-m", *line.split(" "), "logger=none", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert SWEEPS[line] in ended.last_line, ended.printed
    assert not any(path.name in ("a", "b", "x") for path in tmp_path.rglob("*"))


def test_children_import_nothing_from_the_current_folder(programs, tmp_path):
    (tmp_path / "yaml.py").write_text("open('hacked', 'w')")
    words = ("-m", "seed=1,2", "trainer.max_steps=0", "logger=none", "sweep.name=x")
    ended = programs.run("train", *words, cwd=tmp_path, timeout_s=60)
    assert "2 jobs: 0 finished" in ended.printed, ended.printed
    assert not (tmp_path / "hacked").exists()


def test_a_variable_of_the_launcher_is_not_obeyed_from_elsewhere(programs, tmp_path):
    (tmp_path / "precious").mkdir()
    words = ("logger=none", "trainer.max_steps=1")
    ended = programs.run("train", *words, cwd=tmp_path, environment={"WERDICT_RUN_DIR": str(tmp_path / "precious")})
    assert (ended.code, ended.last_line) == (
        2,
        f"asr-train: the variable WERDICT_RUN_DIR={tmp_path}/precious is for this program alone; unset it",
    )


@pytest.mark.parametrize("name", ["wandb/settings", ".wandb/settings"])
def test_a_server_that_the_current_folder_names_is_not_sent_the_key(tmp_path, monkeypatch, name):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="names the server of wandb"):
        chosen_mode("auto")
    assert chosen_mode("offline") == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert chosen_mode("auto") == "online"


def test_code_in_recipes_dir_is_announced_first(programs, recipes, tmp_path):
    (recipes / "x.yaml").write_text(RECIPE.format(name="mine", more=""))
    words = ("recipes_dir=theirs", "recipe=mine/x", "trainer.max_steps=0")
    printed = programs.run("train", *words, cwd=tmp_path).printed
    assert printed.splitlines()[0] == (
        f"recipes_dir: runs the Python code in {tmp_path}/theirs; name only what you trust"
    )
    assert "runs the Python code in that folder" in programs.run("train", "--help", cwd=tmp_path).printed


MARKUP = ("[/bold]", "[red]", "[link=x]y[/link]", ":boom:", "\x1b]0;title\x07", "\x1b[2J", "a\rb")


@pytest.mark.parametrize("name", MARKUP)
def test_text_of_users_is_shown_as_it_stands(programs, tmp_path, name):
    words = (f"resume='{name}'", f"run='{name}'", f"audio='{name}'")
    for command, word in zip(("train", "evaluate", "transcribe"), words, strict=True):
        more = ("run=x",) if command == "transcribe" else ()
        printed = programs.run(command, word, *more, cwd=tmp_path).printed
        assert "Traceback" not in printed
        assert name.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\r", "\\r") in printed
        assert not set(printed) & {"\x1b", "\x07", "\r"}
