"""What docs/python.md promises beyond its blocks, which test_blocks.py runs."""

import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import asr
from tests.commands.conftest import TINY

APP = f"""
import hydra
from hydra import compose
from hydra.core.hydra_config import HydraConfig

import asr

SMALL = {TINY!r} + ("logger=none", "trainer.max_steps=2", "trainer.val_check_interval=2")

@hydra.main(version_base=None, config_path="conf", config_name="app")
def main(config):
    for number in (1, 2):
        module, data = asr.training_parts(SMALL)
        run = asr.train([*SMALL, f"run_dir=run{{number}}", f"recipe={{config.recipe}}", "optimizer=eve"])
        print(number, run.summary["test"]["test"]["wer"])
        assert HydraConfig.get().job.name == "app"
        assert compose("app", ["recipe=mine"]).recipe == "mine"
    print("all", HydraConfig.get().overrides.task)

main()
"""


def test_an_application_of_hydra_trains_twice_and_stays_itself(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "app.yaml").write_text("recipe: ???\n")
    (tmp_path / "app.py").write_text(APP)
    words = [sys.executable, "app.py", "recipe=digits/transformer_ctc"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all ['recipe=digits/transformer_ctc']"


def test_a_hydra_application_of_the_callers_stays_as_it_was(tmp_path):
    (tmp_path / "mine.yaml").write_text("value: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        HydraConfig.instance().set_config(compose("mine", return_hydra_config=True))
        for _ in range(2):
            with pytest.raises(asr.ConfigError, match=r"trainer\.max_steps"):
                asr.training_parts(["trainer.max_steps=0"])
            assert compose("mine", ["value=2"]).value == 2
            assert HydraConfig.get().job.config_name == "mine"
    assert not GlobalHydra.instance().is_initialized()


def test_wrong_words_are_named():
    with pytest.raises(asr.ConfigError, match=r"moun.*muon"):
        asr.training_parts(["optimizer=moun"])
    with pytest.raises(TypeError, match="list"):
        asr.training_parts("optimizer=muon")


def test_every_name_is_found():
    assert all(getattr(asr, name) for name in asr.__all__)
