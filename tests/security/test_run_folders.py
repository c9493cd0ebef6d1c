"""Resuming somebody else's run: its folder is read as data, and only what is given now is obeyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from asr.tracking.wandb_logger import _run_id
from werdict.files import read_yaml

LAST = "trainer.max_steps: Input should be greater than 0; given 0"  # after composing, before any work
WANDB = {"_target_": "asr.tracking.wandb_logger.WandbTracking"}


@pytest.fixture(scope="module")
def config(programs, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("composed")
    shown = programs.run("train", "--cfg", "job", "--resolve", "logger=csv", cwd=folder).printed
    return yaml.safe_load(shown)


def write_run(place: Path, config: dict[str, Any], overrides: tuple[str, ...] = (), **values: Any) -> None:
    """Write a run's folder; ``a__b=1`` sets a.b of the config."""
    made = yaml.safe_load(yaml.safe_dump(config))
    for key, value in values.items():
        *parents, name = key.split("__")
        node = made
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    (place / "run").mkdir()
    for name, content in (("config.yaml", made), ("overrides.yaml", list(overrides))):
        (place / "run" / name).write_text(yaml.safe_dump(content))


def nothing_else(place: Path) -> bool:
    return sorted(path.name for path in place.rglob("*")) == ["config.yaml", "overrides.yaml", "run"]


def test_what_was_given_for_the_run_is_never_obeyed(programs, config, tmp_path):
    words = (
        *("--multirun", "+hydra.callbacks.x={_target_:os.mkdir,path:hacked}", "hydra.searchpath=[file:///tmp]"),
        *("logger.wandb.entity=stranger", "recipes_dir=.", "run_dir=hacked", "encoder._target_=os.system"),
    )
    write_run(tmp_path, config, words)
    ended = programs.run("train", "resume=run", "trainer.max_steps=0", cwd=tmp_path, code=2)
    assert ended.last_line == f"asr-train: {LAST}", ended.printed
    assert nothing_else(tmp_path)


MKDIR = {"_target_": "os.mkdir", "path": "hacked"}
CSV = {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "/tmp"}
CHECKPOINT = {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "dirpath": "/tmp"}
RULE = {"pattern": ".*", "optimizer": {"_target_": "os.system", "_partial_": True}}
# what the config of the run says, what the last line says of it
CONFIGS = {
    "a function of the system": ({"head": MKDIR}, "head"),
    "a function in a rule": ({"parameter_rules__rules": [RULE]}, "parameter_rules.rules.0.optimizer"),
    "a function of ours as a callback": ({"callbacks__x": {"_target_": "asr.run.train.fit"}}, "callbacks.x"),
    "a function found through an import": (
        {"encoder___target_": "asr.models.encoders.transformer.torch.hub.load"},
        "encoder",
    ),
    "code of another package": ({"encoder___target_": "tests.own_code.raising.MyEncoder"}, "trust=[tests]"),
    "a class of another kind": ({"callbacks__x": WANDB}, "callbacks.x"),
    "a callback that writes anywhere": ({"callbacks__x": CHECKPOINT}, "callbacks.x"),
    "a logger that writes anywhere": ({"logger__x": CSV}, "logger.x"),
    "a logger's entity": ({"logger__wandb": {**WANDB, "entity": "stranger"}}, "logger.wandb.entity=stranger"),
    "a logger's project": ({"logger__other": {**WANDB, "project": "theirs"}}, "logger.other.project=theirs"),
    "a logger's server": (
        {"logger__wandb": {**WANDB, "settings": {"base_url": "http://127.0.0.1:1"}}},
        "logger.wandb.settings",
    ),
    "a logger that uploads code": ({"logger__wandb": {**WANDB, "save_code": True}}, "logger.wandb.save_code=True"),
    "keys of Hydra's": ({"hydra": {"callbacks": {"x": MKDIR}}}, "hydra"),
    "an interpolation": ({"logger__wandb": {**WANDB, "tags": ["${oc.env:HOME}"]}}, "interpolations"),
    "data elsewhere": ({"data__dir": "theirs"}, "the data of the run are not in"),
}


@pytest.mark.parametrize(("values", "expected"), CONFIGS.values(), ids=CONFIGS)
def test_a_strangers_config_builds_nothing_but_what_its_places_may_hold(programs, config, tmp_path, values, expected):
    write_run(tmp_path, config, **values)
    ended = programs.run("train", "resume=run", cwd=tmp_path, timeout_s=60, code=2)
    assert "Traceback" not in ended.printed
    assert expected.lower() in ended.last_line.lower(), ended.printed
    assert nothing_else(tmp_path)


def test_the_users_own_word_decides_where_numbers_go(programs, config, tmp_path):
    write_run(tmp_path, config, logger__wandb={**WANDB, "entity": "mine", "project": "ours"})
    given = ("logger.wandb.entity=mine", "logger.wandb.project=ours")
    for words in (given, ("resume_logger=true",), ("logger=csv",)):
        ended = programs.run("train", "resume=run", "trainer.max_steps=0", *words, cwd=tmp_path, code=2)
        assert ended.last_line == f"asr-train: {LAST}", ended.printed
    ended = programs.run("train", "resume=run", given[0], cwd=tmp_path, code=2)
    assert "logger.wandb.project=ours" in ended.last_line


@pytest.mark.parametrize("held", ["", "../../x", "a\n"])
def test_the_id_of_a_wandb_run_is_no_path(tmp_path, held):
    (tmp_path / "wandb_id").write_text(held)
    with pytest.raises(ValueError, match="not the id of a wandb run"):
        _run_id(tmp_path)


def test_shards_are_not_written_where_only_the_folder_of_a_run_says(small_run, tmp_path):
    folder = small_run.copy(tmp_path / "run")
    made = read_yaml(folder / "config.yaml")
    made["data"]["storage"] = {"kind": "shar", "dir": str(tmp_path / "home" / ".ssh"), "audio": "flac"}
    (folder / "config.yaml").write_text(yaml.safe_dump(made))
    words = ("resume=run", "data.dir=new", "allow_changes=true")
    ended = small_run.programs.run("train", *words, cwd=tmp_path, code=2)
    assert "data.storage.dir=PATH" in ended.printed
    assert not (tmp_path / "home").exists()


def test_a_job_of_a_sweep_imports_no_code_of_the_folder_that_it_is_started_in(programs, tmp_path):
    (tmp_path / "yaml.py").write_text("open('hacked', 'w')")
    words = ("optimizer.lr=-1", "seed=1", "logger=none", "sweep.name=x")
    ended = programs.run("train", "-m", *words, cwd=tmp_path, code=1)
    assert "1 jobs: 0 finished" in ended.last_line, ended.printed
    assert not (tmp_path / "hacked").exists()


def test_a_config_is_read_as_it_was_written(tmp_path):
    config = {
        "floats": [1e-08, -0.8, 1e300, -1.5e-300, 0.1 + 0.2, 1.0],
        "others": [7, -1, None, True, "1:30", "2026-01-01", "1e-08", "0x1f", "yes", "=", "", "1" * 5000, "a " * 300],
        "nested": {"empty": {}, "none": []},
    }
    (tmp_path / "a.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    assert read_yaml(tmp_path / "a.yaml") == config
