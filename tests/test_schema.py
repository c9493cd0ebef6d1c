"""The table of types has every key of every command, and no other."""

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from asr.commands.__main__ import COMMANDS
from asr.config.help import config_folder
from asr.config.schema import GROUPS, KINDS, check_options
from asr.errors import ConfigError

OPTIONAL = {*GROUPS, "trainer.strategy"}
BUILT = {"scoring", "data", "sweep"}  # mappings whose values are checked where they are read


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_has_a_type(command):
    folder = config_folder(command)
    own = yaml.safe_load((folder / f"{'train' if command == 'prepare' else command}.yaml").read_text())
    typed = {key.partition(".")[0] for key in KINDS[command]}
    assert own.keys() - {"defaults", "hydra"} <= typed | BUILT
    with initialize_config_dir(str(folder), version_base="1.3"):
        config = compose(command)
    for key in KINDS[command]:
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        assert name in {*map(str, node)} or key in OPTIONAL, key


def test_a_key_that_only_a_command_has_beside_a_choice_is_known():
    folder = config_folder("convert")
    with initialize_config_dir(str(folder), version_base="1.3"):
        config = compose("convert", overrides=["model=a.pt", "bpe_model=b.model", "output=c.ckpt"])
    check_options("convert", config, folder)
    OmegaConf.update(config, "data.corpsu", "x", force_add=True)
    with pytest.raises(ConfigError, match=r"data\.corpsu"):
        check_options("convert", config, folder)
