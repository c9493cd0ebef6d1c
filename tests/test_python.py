"""What docs/python.md promises beyond its blocks, which test_blocks.py runs."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import asr


def test_a_wrong_option_is_an_error_of_its_kind():
    with pytest.raises(asr.ConfigError, match=r"optimizer\.lr"):
        asr.train(["optimizer.lr=fast"])


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


def test_every_name_is_found():
    assert all(getattr(asr, name) for name in asr.__all__)
