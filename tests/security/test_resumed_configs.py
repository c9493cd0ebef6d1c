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


NOT_ALLOWED = "is not allowed here"
WANDB = {"_target_": "asr.tracking.wandb_logger.WandbTracking"}
CONFIGS = {
    "callback: copies files": (
        changed(
            callbacks__x={"_target_": "asr.training.checkpoints.files.duplicate", "source": "run", "path": "hacked"}
        ),
        NOT_ALLOWED,
    ),
    "callback: function of ours": (changed(callbacks__x={"_target_": "asr.training.fit.fit"}), NOT_ALLOWED),
    "callback: writes anywhere": (
        changed(callbacks__x={"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "dirpath": "hacked"}),
        NOT_ALLOWED,
    ),
    "callback: way through an import": (
        changed(callbacks__x={"_target_": "asr.training.callbacks.averaging.pl.callbacks.ModelCheckpoint"}),
        "there is no",
    ),
    "callback: another class": (changed(callbacks__x={"_target_": "asr.training.module.TrainingModule"}), NOT_ALLOWED),
    "callback: private": (changed(callbacks__x={"_target_": "asr.training.batch_size_search._Probe"}), NOT_ALLOWED),
    "callback: folder of its own": (changed(callbacks__checkpoints__run_dir="/tmp"), "run_dir cannot be given"),
    "plugin: writes a file": (
        changed(trainer__plugins={"_target_": "lightning.pytorch.core.saving.save_hparams_to_yaml"}),
        NOT_ALLOWED,
    ),
    "plugin: unpickles": (
        changed(trainer__plugins=[{"_target_": "lightning.pytorch.core.saving._load_from_checkpoint"}]),
        NOT_ALLOWED,
    ),
    "strategy: another class": (
        changed(trainer__strategy={"_target_": "lightning.pytorch.strategies.DeepSpeedStrategy"}),
        NOT_ALLOWED,
    ),
    "trainer: profiler": (changed(trainer__profiler="pytorch"), "trainer.profiler cannot be given"),
    "trainer: folder": (changed(trainer__default_root_dir="/tmp"), "trainer.default_root_dir cannot be given"),
    "trainer: another class": (changed(trainer___target_="lightning.Fabric"), NOT_ALLOWED),
    "encoder: torch.hub": (
        changed(encoder___target_="asr.models.encoders.transformer.torch.hub.load"),
        NOT_ALLOWED,
    ),
    "head: subprocess": (changed(head={"_target_": "subprocess.run", "args": ["touch", "hacked"]}), NOT_ALLOWED),
    "optimizer: loads": (changed(optimizer___target_="torch.optim.adamw.torch.load"), "there is no"),
    "optimizer: base class": (changed(optimizer___target_="torch.optim.Optimizer"), NOT_ALLOWED),
    "optimizer: function": (changed(optimizer___target_="optim.chain"), NOT_ALLOWED),
    "rules: another function": (changed(parameter_rules___target_="optim.parameter_groups.re.compile"), NOT_ALLOWED),
    "rules: optimizer of a rule": (
        changed(parameter_rules__rules=[{"pattern": ".*", "optimizer": {"_target_": "os.system", "_partial_": True}}]),
        NOT_ALLOWED,
    ),
    "schedule: function": (changed(schedule___target_="torch.optim.lr_scheduler.cast"), NOT_ALLOWED),
    "decoder: module": (changed(decoder___target_="asr.decoding.ctc_greedy"), NOT_ALLOWED),
    "features: numpy": (changed(features___target_="asr.data.features.np.load"), NOT_ALLOWED),
    "tokenizer: sentencepiece": (
        changed(tokenizer___target_="asr.text.subword.sentencepiece.SentencePieceTrainer"),
        NOT_ALLOWED,
    ),
    "prepare: imported": (changed(data__prepare___target_="asr.recipes.digits.prepare.Path"), NOT_ALLOWED),
    "prepare: another module": (changed(data__prepare___target_="asr.recipes.fsdd.sources.prepare_x"), NOT_ALLOWED),
    "prepare: no such recipe": (
        changed(data__prepare___target_="asr.recipes.x.prepare.prepare_x"),
        "add recipes_dir=PATH",
    ),
    "logger: another class": (changed(logger__x={"_target_": "lightning.pytorch.loggers.CSVLogger"}), NOT_ALLOWED),
    "logger: entity": (changed(logger__wandb={**WANDB, "entity": "stranger"}), "logger.wandb.entity=stranger"),
    "logger: project": (changed(logger__other={**WANDB, "project": "theirs"}), "logger.other.project=theirs"),
    "logger: online": (changed(logger__wandb={**WANDB, "mode": "online"}), "logger.wandb.mode=online"),
    "hydra's own": (changed(hydra={"callbacks": {"x": {"_target_": "os.mkdir", "path": "hacked"}}}), "keys of Hydra's"),
    "defaults": (changed(defaults=[{"/hydra/job_logging": "default"}]), "keys of Hydra's"),
    "environment": (changed(logger__wandb={**WANDB, "tags": ["${oc.env:HOME}"]}), "has no interpolations"),
    "interpolated key": (changed(seed="${trainer.max_steps}"), "has no interpolations"),
    "no encoder": (changed(encoder=None), "encoder must not be null"),
    "hundreds of processes": (changed(data__workers__num_workers=10_000), "num_workers must be at least 0 and at most"),
    "batches without end": (changed(data__workers__prefetch=10**9), "prefetch must be at least 1 and at most 1024"),
    "both": (changed(data__workers__num_workers=60, data__workers__prefetch=1000), "must be at most 1024, the micro-"),
    "an unknown key": (changed(foo={"_target_": "os.system"}), "there is no key 'foo' at the top level"),
    "data elsewhere": (changed(data__dir="theirs"), "the data of the run are not in"),
    "data without end": (changed(data__prepare__num_train=10**9), "the data of the run are not in"),
    "a source that is read forever": (changed(data__source="/proc/kmsg"), "the data of the run are not in"),
    "a source of many files": (changed(data__source="/usr"), "the data of the run are not in"),
    "a source that cannot be read": (changed(data__source="/"), "the data of the run are not in"),
    "layers without end": (changed(encoder__num_layers=100_000), "more than 10000 tensors of weights"),
    "layers a kilometer wide": (changed(encoder__d_model=10**6), "a quarter of this machine's memory"),
    "a width without end": (changed(encoder__d_feedforward=10**9), "encoder.d_feedforward=1e+09 is more than"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_strangers_config_builds_nothing_but_what_its_places_may_hold(programs, config, tmp_path, case):
    change, expected = CONFIGS[case]
    run_folder(tmp_path, change(config))
    ended = programs.run("train", "resume=run", cwd=tmp_path, timeout_s=20)
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
