"""Resuming somebody else's run: its folder is read as data, and only what is typed now is obeyed."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from asr.plain_data import read_yaml
from tests.security.hostile_pickle import write_hostile_pickle

LAST = "trainer.max_steps must be a whole number of at least 1, given 0"  # after composing, before any work


@pytest.fixture(scope="module")
def config(programs, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("composed")
    shown = programs.run("train", "--cfg", "job", "--resolve", "logger=csv", cwd=folder).printed
    return yaml.safe_load(shown)


def run_folder(place: Path, config: Any, overrides: Any = ()) -> Path:
    folder = place / "run"
    folder.mkdir()
    for name, content in (("config.yaml", config), ("overrides.yaml", list(overrides))):
        (folder / name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return folder


WORDS = [
    "--multirun",
    "+hydra.callbacks.x={_target_:os.mkdir,path:hacked}",
    "hydra.searchpath=[file:///tmp]",
    "logger.wandb.entity=stranger",
    "++allow_changes=true",
    "recipes_dir=.",
    "run_dir=hacked",
    "encoder._target_=os.system",
]


@pytest.mark.parametrize("word", WORDS)
def test_what_was_typed_for_the_run_is_never_obeyed(programs, config, tmp_path, word):
    write_hostile_pickle(tmp_path)
    run_folder(tmp_path, config, [word])
    ended = programs.run("train", "resume=run", "trainer.max_steps=0", cwd=tmp_path)
    assert (ended.code, ended.last_line) == (2, f"asr-train: {LAST}"), ended.printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.pickle", "run"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "overrides.yaml"]


def changed(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a change of a config: ``a__b=1`` sets a.b."""

    def change(config: dict[str, Any]) -> dict[str, Any]:
        made = yaml.safe_load(yaml.safe_dump(config))
        for key, value in values.items():
            *parents, name = key.split("__")
            node = made
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = value
        return made

    return change


WANDB = {"_target_": "asr.tracking.wandb_logger.WandbTracking"}
CSV = {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "/tmp"}
CONFIGS = {
    "a function of ours as a callback": (changed(callbacks__x={"_target_": "asr.training.fit.fit"}), "callbacks.x"),
    "a logger as a callback": (changed(callbacks__x=WANDB), "callbacks.x"),
    "a callback that writes anywhere": (
        changed(callbacks__x={"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "dirpath": "/tmp"}),
        "callbacks.x",
    ),
    "a folder of its own for checkpoints": (changed(callbacks__checkpoints__run_dir="/tmp"), "run_dir"),
    "a plugin that unpickles": (
        changed(trainer__plugins=[{"_target_": "lightning.pytorch.core.saving._load_from_checkpoint"}]),
        "trainer.plugins.0",
    ),
    "another trainer": (changed(trainer___target_="lightning.Fabric"), "trainer._target_"),
    "a function found through an import": (
        changed(encoder___target_="asr.models.encoders.transformer.torch.hub.load"),
        "encoder",
    ),
    "code of another package": (changed(encoder___target_="tests.own_code.raising.MyEncoder"), "trust=[tests]"),
    "a function of the system": (changed(head={"_target_": "subprocess.run", "args": ["touch", "hacked"]}), "head"),
    "a function of an optimizer's module": (changed(optimizer___target_="torch.optim.adamw.torch.load"), "optimizer"),
    "a function in a rule": (
        changed(parameter_rules__rules=[{"pattern": ".*", "optimizer": {"_target_": "os.system", "_partial_": True}}]),
        "parameter_rules.rules.0.optimizer",
    ),
    "a class in a prepare module": (changed(data__prepare___target_="asr.recipes.digits.prepare.Path"), "data.prepare"),
    "a logger that writes anywhere": (changed(logger__x=CSV), "logger.x"),
    "a logger's entity": (changed(logger__wandb={**WANDB, "entity": "stranger"}), "logger.wandb.entity=stranger"),
    "a logger's project": (changed(logger__other={**WANDB, "project": "theirs"}), "logger.other.project=theirs"),
    "a logger's mode": (changed(logger__wandb={**WANDB, "mode": "online"}), "logger.wandb.mode=online"),
    "hydra's own": (changed(hydra={"callbacks": {"x": {"_target_": "os.mkdir", "path": "hacked"}}}), "keys of Hydra's"),
    "defaults": (changed(defaults=[{"/hydra/job_logging": "default"}]), "keys of Hydra's"),
    "environment": (changed(logger__wandb={**WANDB, "tags": ["${oc.env:HOME}"]}), "has no interpolations"),
    "interpolated key": (changed(seed="${trainer.max_steps}"), "has no interpolations"),
    "no encoder": (changed(encoder=None), "encoder must not be null"),
    "an unknown key": (changed(foo={"_target_": "os.system"}), "there is no key 'foo' at the top level"),
    "data elsewhere": (changed(data__dir="theirs"), "the data of the run are not in"),
    "data without end": (changed(data__prepare__num_train=10**9), "the data of the run are not in"),
    "a source that is read forever": (changed(data__source="/proc/kmsg"), "the data of the run are not in"),
    "a source of many files": (changed(data__source="/usr"), "the data of the run are not in"),
    "a source that cannot be read": (changed(data__source="/"), "the data of the run are not in"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_strangers_config_builds_nothing_but_what_its_places_may_hold(programs, config, tmp_path, case):
    change, expected = CONFIGS[case]
    run_folder(tmp_path, change(config))
    ended = programs.run("train", "resume=run", cwd=tmp_path, timeout_s=60)
    assert ended.code == 2, ended.printed
    assert expected in ended.last_line, ended.printed
    assert "Traceback" not in ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "overrides.yaml"]


def test_a_config_is_read_as_it_was_written(tmp_path):
    config = {
        "floats": [1e-08, -0.8, 1e300, -1.5e-300, 0.1 + 0.2, 1.0],
        "others": [7, -1, None, True, "1:30", "2026-01-01", "1e-08", "0x1f", "yes", "=", "", "1" * 5000, "a " * 300],
        "nested": {"empty": {}, "none": []},
    }
    (tmp_path / "a.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    assert read_yaml(tmp_path / "a.yaml") == config


def test_the_users_own_word_decides_where_numbers_go(programs, config, tmp_path):
    made = changed(logger__wandb={**WANDB, "entity": "mine", "project": "ours"})(config)
    run_folder(tmp_path, made)
    for words in (
        ("logger.wandb.entity=mine", "logger.wandb.project=ours"),
        ("resume_logger=true",),
        ("logger=csv",),
    ):
        ended = programs.run("train", "resume=run", "trainer.max_steps=0", *words, cwd=tmp_path)
        assert ended.last_line == f"asr-train: {LAST}", ended.printed
    ended = programs.run("train", "resume=run", "logger.wandb.entity=mine", cwd=tmp_path)
    assert "logger.wandb.project=ours; give that too" in ended.last_line


OTHER_SEED = ("resume=run", "seed=7", "allow_changes=true", "logger=csv")


def test_a_run_that_another_process_writes_to_is_not_changed(small_run, tmp_path):
    folder = small_run.copy(tmp_path / "run")
    before = {name: (folder / name).read_text() for name in ("config.yaml", "overrides.yaml")}
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = small_run.programs.run("train", *OTHER_SEED, f"data.dir={small_run.data_dir}", cwd=tmp_path)
    assert (ended.code, "another process is training in" in ended.last_line) == (2, True), ended.printed
    assert {name: (folder / name).read_text() for name in before} == before
    assert not list(folder.glob("*.backup*"))


def test_shards_are_not_written_where_only_the_folder_of_a_run_says(small_run, tmp_path):
    folder = small_run.copy(tmp_path / "run")
    made = read_yaml(folder / "config.yaml")
    made["data"]["storage"] = {"kind": "shar", "dir": str(tmp_path / "home" / ".ssh"), "audio": "flac"}
    (folder / "config.yaml").write_text(yaml.safe_dump(made))
    for words in (("data.dir=new",), ("data.dir=new", "allow_changes=true")):
        ended = small_run.programs.run("train", "resume=run", *words, cwd=tmp_path)
        assert (ended.code, "and data.storage.dir=PATH of their shards" in ended.printed) == (2, True), ended.printed
    assert not (tmp_path / "home").exists()


def test_a_disk_without_room_for_a_config_leaves_the_one_that_was(small_run, tmp_path):
    folder = small_run.interrupted(tmp_path / "run")
    before = (folder / "config.yaml").read_text()
    ended = small_run.programs.run(
        "train", *OTHER_SEED, f"data.dir={small_run.data_dir}", cwd=tmp_path, limits={"RLIMIT_FSIZE": 2500}
    )
    assert (ended.code, "File too large" in ended.last_line) == (1, True), ended.printed
    assert (folder / "config.yaml").read_text() == before


def test_a_resumed_run_keeps_its_recipe(programs, config, tmp_path):
    run_folder(tmp_path, config)
    ended = programs.run("train", "resume=run", "recipe=fsdd/transformer_ctc", cwd=tmp_path)
    assert (ended.code, ended.last_line.startswith("asr-train: recipe: ")) == (2, True)
