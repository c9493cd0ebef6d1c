"""When wandb is online, and what happens where it cannot be."""

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import wandb
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from asr.run.instantiate import instantiate
from asr.tracking.wandb_logger import WandbTracking, chosen_mode, has_api_key, refuse_unwritable_folders
from tests.commands.wandb_file import read_wandb
from tests.configs import composed
from werdict.errors import ConfigError
from werdict.scoring import Utterance, score

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_key(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    yield
    wandb.teardown()  # it keeps variables and settings


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


def finished(run_dir, config=None, use=lambda logger: None, **options):
    """Return what a run leaves offline, and the line that uploads it."""
    run_dir.mkdir(exist_ok=True)
    logger = WandbTracking(run_dir, {"seed": 1} if config is None else config, mode="offline", **options)
    try:
        use(logger)
    finally:
        upload = logger.close(0)
        wandb.teardown()  # waits until all is written
    return read_wandb(run_dir), upload


def test_wandbs_variables_and_settings_hold_where_nothing_is_set(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nproject = of_the_folder\nentity = us\nmode = offline\n")
    assert chosen_mode("auto") == "offline"
    run = finished(tmp_path / "first")[0].run
    assert (run.project, run.entity, run.job_type) == ("of_the_folder", "us", "train")
    assert run.display_name == f"{tmp_path.name}/first"
    variables = {"PROJECT": "ours", "NAME": "mine", "TAGS": "a,b", "JOB_TYPE": "try", "RUN_GROUP": "g", "NOTES": "why"}
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = finished(tmp_path / "second")[0].run
    assert (run.project, run.display_name, run.job_type, run.run_group) == ("ours", "mine", "try", "g")
    assert ([*run.tags], run.notes) == (["a", "b"], "why")
    given = {"project": "p", "name": "n", "tags": ["t"], "job_type": "j", "group": "gg", "notes": "nn"}
    run = finished(tmp_path / "third", **given)[0].run
    assert (run.project, run.display_name, [*run.tags]) == ("p", "n", ["t"])
    assert (run.job_type, run.run_group, run.notes) == ("j", "gg", "nn")


def test_a_job_of_a_sweep_is_called_by_its_own_name(tmp_path):
    assert finished(tmp_path / "lr-0.1-ab", {"sweep": {"name": "first"}})[0].run.display_name == "lr-0.1-ab"


def test_arguments_of_wandb_pass_and_no_others():
    node = {"_target_": "asr.tracking.wandb_logger.WandbTracking", "_partial_": True}
    instantiate(
        {**node, "save_code": True, "checkpoint_name": "best", "settings": {"x_stats_sampling_interval": 5}}, "l"
    )
    with pytest.raises(ConfigError, match=r"logger\.wandb\.note"):
        instantiate({**node, "note": "why"}, "logger.wandb")
    with pytest.raises(ConfigError, match=r"logger\.wandb\.tags"):
        instantiate({**node, "tags": [""]}, "logger.wandb")


def test_a_resumed_run_has_its_minima_its_audio_its_checkpoint_and_one_line_for_all_its_parts(tmp_path):
    scored = score([Utterance("u1", "a b", "a c"), Utterance("u2", "a", "a")]).utterances

    def use(logger):
        for step, wer in enumerate((0.5, 0.7)):
            logger.log_metrics({"val/wer": wer, "val/dev/loss": wer, "train/loss": wer}, step)
        logger.log_samples("val/dev", scored, 2, {"u1": np.zeros(1600, np.float32)}, 16_000)
        logger.log_checkpoint(tmp_path / "best.ckpt", 2)

    (tmp_path / "best.ckpt").write_bytes(b"weights")
    run_dir = tmp_path / "run"
    _, alone = finished(run_dir)
    (run_dir / "metrics.csv").write_text("step,name,value\n0,val/wer,0.4\n1,val/wer,nan\n")
    time.sleep(1)  # wandb names folders by seconds
    found, upload = finished(run_dir, use=use, log_model=True)
    assert found.minima == {"val/wer", "val/dev/loss"}
    assert float(found.summary["best_wer"]) == 0.4, "that of the part before"
    assert [one.type for one in found.artifacts if one.name.startswith("model-")] == ["model"]
    files = [entry.path for one in found.artifacts for entry in one.manifest.contents]
    assert len([path for path in files if path.endswith(".wav")]) == 1
    parts = sorted((run_dir / "wandb").glob("offline-run-*"))
    assert alone == f"wandb sync {parts[0]}"
    assert upload == f"wandb sync {parts[0]} {parts[1]}"


def test_the_address_of_a_run_is_printed(tmp_path, monkeypatch, capsys):
    online = SimpleNamespace(url="https://wandb.example/runs/1", define_metric=lambda *_, **__: None)
    monkeypatch.setattr(wandb, "init", lambda **_: online)
    WandbTracking(tmp_path, {"seed": 1}, mode="online")
    assert online.url in capsys.readouterr().out


def test_an_agent_of_a_wandb_sweep_drives_asr_train(tmp_path, monkeypatch):
    """The agent's own code makes the command of the documented sweep; only its server is missing."""
    text = (ROOT / "docs" / "wandb.md").read_text(encoding="utf-8")
    sweep = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.S)[1])
    assert sweep["metric"] == {"name": "best_wer", "goal": "minimize"}
    job = {"args": {name: {"value": one["values"][-1]} for name, one in sweep["parameters"].items()}}
    expanded = create_sweep_command_args(job)
    words = [word for part in create_sweep_command(sweep["command"]) for word in expanded.get(part[2:-1], [part])]
    assert words[0] == "asr-train"
    options = composed(*words[1:]).options
    lr = job["args"]["optimizer.lr"]["value"]
    assert (options.optimizer.target, options.optimizer.lr, options.decode_test) == ("optim.Eve", lr, False)
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "chosen1")
    assert finished(tmp_path / "run")[0].run.run_id == "chosen1"
    time.sleep(1)  # wandb names folders by seconds
    monkeypatch.setenv("WANDB_RUN_ID", "another")
    monkeypatch.delenv("WANDB_SWEEP_ID")
    assert finished(tmp_path / "run")[0].run.run_id == "chosen1", "a resumed run keeps its own id"
