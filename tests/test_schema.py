"""Every key of every command is an option with a type, and what an option decides is found by its key."""

from typing import get_args

import pytest
import yaml
from omegaconf import OmegaConf

from asr.commands.__main__ import COMMANDS as NAMES
from asr.data.manifests.layouts import ALIASES
from asr.run.command_line import config_file, config_folder
from asr.run.compose import changes
from asr.run.options import COMMANDS, Columns, decides, fields, has_effect, options_of
from tests.configs import composed
from werdict.errors import ConfigError

# of some choices of their groups, or told to the jobs of a sweep
OPTIONAL = {
    "decoder",
    "logger",
    "trainer.strategy",
    "trainer.replicate",
    "trainer.shard",
    "callbacks.averaging",
    "encoder.gradient_checkpointing",
    "encoder.model_folder",
    "sweep.swept",
    "sweep.tuned",
}


@pytest.mark.parametrize("command", NAMES)
def test_the_options_are_the_keys_of_the_yaml_files(command):
    folder = config_folder(command)
    own = yaml.safe_load(config_file(command, folder).read_text(encoding="utf-8"))
    assert own.keys() - {"defaults", "hydra"} <= fields(COMMANDS[command]).keys()
    required = [f"{key}=x" for key, value in own.items() if value == "???"]
    config = composed(*required, command=command).config
    for key, _, _ in options_of(COMMANDS[command]):
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        assert name in {*map(str, node)} or key in OPTIONAL, key


def test_a_key_that_only_a_command_has_beside_a_choice_is_known():
    known = composed("model=a.pt", "bpe_model=b.model", "output=c.ckpt", command="convert")
    assert known.options.data.corpus == "icefall"
    with pytest.raises(ConfigError, match=r"data\.corpsu"):
        _ = known.with_values({"data.corpsu": "x"}).options


@pytest.mark.parametrize("name", ["my set", "a/b", ".a", "a" * 101, -1])
def test_a_name_that_no_file_of_results_can_have_is_refused(name):
    named = composed("run=x", "name=test-2", command="evaluate")
    assert named.options.name == "test-2"
    with pytest.raises(ConfigError, match=r"^name: "):
        _ = named.with_values({"name": name}).options


def test_every_column_that_is_read_can_be_named():
    assert {*get_args(get_args(Columns)[0])} == ALIASES.keys()


def test_an_option_decides_what_it_says_or_what_those_around_it_say_or_else_the_updates():
    found = {key: decides(key) for key in ("data.workers.prefetch", "data", "logger.wandb.tags", "optimizer.lr", "own")}
    assert found == {
        "data.workers.prefetch": "speed",
        "data": "updates",
        "logger.wandb.tags": "place",
        "optimizer.lr": "updates",
        "own": "updates",
    }
    assert decides("callbacks.averaging.ema_decay") == "updates"
    assert decides("callbacks.progress") == "result"
    assert decides("resume") == "this_start"


@pytest.mark.parametrize(
    ("key", "is_free", "counts"),
    [("seed", False, True), ("weights", True, True), ("torch_threads", True, False), ("run_dir", True, False)],
)
def test_what_an_option_decides_says_what_may_change_at_a_resumption(key, is_free, counts):
    assert bool(changes({key: 1}, {key: 2})) is not is_free
    assert has_effect(key) is counts


def test_a_comparison_is_sent_to_wandb_as_documented():
    assert composed("sweep=first", "logger=wandb", command="compare").options.logger["wandb"]["mode"] == "auto"
