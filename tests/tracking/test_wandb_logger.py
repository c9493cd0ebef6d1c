"""When wandb is online, and what happens where it cannot be."""

import os

import pytest
import wandb

from asr.tracking.wandb_access import chosen_mode, has_api_key, refuse_unwritable_folders
from asr.tracking.wandb_logger import WandbTracking


@pytest.fixture(autouse=True)
def no_key(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_a_key_is_found_in_the_environment_and_in_netrc(monkeypatch, tmp_path):
    assert not has_api_key()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    assert has_api_key()
    (tmp_path / "netrc").write_text("machine example.org login user password x")
    assert not has_api_key()
    (tmp_path / "netrc").write_text("not a netrc at all {")
    assert not has_api_key()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert has_api_key()


def test_without_a_key_a_run_is_offline_and_says_how_to_upload(tmp_path):
    logger = WandbTracking(tmp_path, {"seed": 1})
    try:
        assert logger.experiment.settings._offline
    finally:
        upload = logger.close(0)
    assert upload == f"wandb sync {next((tmp_path / 'wandb').glob('offline-run-*'))}"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("WANDB_MODE", "disabled", "WANDB_MODE"),
        ("WANDB_DISABLED", "true", "WANDB_DISABLED"),
        ("WANDB_MODE", "often", "WANDB_MODE .*'often'"),
    ],
)
def test_a_mode_that_cannot_be_followed_is_said(monkeypatch, tmp_path, variable, value, said):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=said):
        WandbTracking(tmp_path, {"seed": 1})
    assert not (tmp_path / "wandb").exists()


@pytest.mark.parametrize(("named", "mode"), [("dryrun", "offline"), ("run", "online"), ("online", "online")])
def test_former_names_of_modes_are_known(monkeypatch, named, mode):
    monkeypatch.setenv("WANDB_MODE", named)
    assert chosen_mode("auto") == mode


def test_wandb_is_told_the_home_that_no_variable_names(monkeypatch):
    home = os.path.expanduser("~")
    monkeypatch.delenv("HOME", raising=False)
    refuse_unwritable_folders()
    assert os.environ["HOME"] == home


def test_where_wandb_cannot_start_the_message_says_what_to_do(tmp_path, monkeypatch):
    def fail(**options):
        raise wandb.errors.CommError("no route to host")

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(ValueError, match=r"no route to host.*logger\.wandb\.mode=offline"):
        WandbTracking(tmp_path, {"seed": 1}, mode="online")
