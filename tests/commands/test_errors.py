"""A wrong command line ends with a message that names the key, what was given and what is allowed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from asr.commands import train as train_module
from asr.commands.__main__ import COMMANDS
from asr.commands.app import run_app
from asr.config.help import config_folder
from asr.errors import OutOfMemory, RunFailed


def run(monkeypatch, capsys, tmp_path: Path, *words: str) -> str:
    """Compose and dry_run as asr-train does; return what it says to standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asr-train", "logger=none", *words])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as left:
        run_app("train", lambda config: train_module.dry_run(train_module.plain(config)))
    assert left.value.code == 2
    assert list(tmp_path.iterdir()) == [], "a refused command must leave nothing behind"
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("decode=best", ["decode", "given 'best'"]),
        ("decode=[best,raw]", ["decode", "'raw'"]),
        ("decode=[best,average] callbacks.averaging=null", ["decode=[best,average]", "callbacks.averaging=null"]),
        ("+datta.dir=x", ["datta", "Did you mean 'data'?"]),
        ("+data.limit=1", ["data.limit", "Did you mean 'limits'?"]),
        ("optimizer.lrr=1", ["optimizer.lrr", "Did you mean 'lr'?", "weight_decay"]),
        ("+optimizer.lrr=1", ["optimizer.lrr", "Did you mean 'lr'?", "weight_decay"]),
        ("optimizer.lr=-1", ["optimizer", "-1"]),
        ("optimizer.lr=fast", ["optimizer", "fast"]),
        ("data.max_unreadable=2", ["data.max_unreadable must be in [0, 1]", "2"]),
        ("data.storage=shar", ["data.storage=shar needs a folder for the shards: data.storage.dir=PATH"]),
        (
            "data.storage=shar data.storage.dir=new data.storage.audio=mp3",
            ["data.storage.audio must be one of", "'mp3'"],
        ),
        ("optimiser=adamw", ["optimiser", "Did you mean 'optimizer'?"]),
        ("optimizer=adamm", ["optimizer=adamm", "Did you mean 'adamw'?", "eve"]),
        ("trainer.max_epochs=1 trainer.max_steps=null", ["given None; leave it out where trainer.max_epochs says how"]),
        ("optimizer.lr=inf", ["optimizer", "lr", "inf"]),
        ("optimizer.lr=1e31", ["lr must be", "in [0, 1e30]", "1e+31"]),
        ("optimizer.betas=[0.9]", ["optimizer.betas", "[0.9]"]),
        ("trainer.accelerator=tpu", ["trainer.accelerator", "'tpu'", "cpu, gpu, cuda, auto"]),
        ("trainer.precision=16", ["trainer.precision", "32-true, 16-mixed, bf16-mixed", "16"]),
        ("+trainer.default_root_dir=/tmp", ["trainer.default_root_dir cannot be given", "run_dir"]),
        ("+trainer.max_time=1", ["trainer.max_time cannot be given", "trainer.max_steps"]),
        ("+callbacks.checkpoints.run_dir=/tmp", ["callbacks.checkpoints.run_dir cannot be given"]),
        ("logger=csv +logger.metrics_csv.run_dir=/tmp", ["logger.metrics_csv.run_dir cannot be given"]),
        ("encoder.d_model=-3", ["encoder", "d_model", "-3", "at least 1"]),
        ("encoder.d_model=wide", ["encoder.d_model", "'wide'"]),
        ("encoder.num_layers=1.5", ["encoder.num_layers", "1.5"]),
        ("recipe=digits/transfomer_ctc", ["transfomer_ctc", "Did you mean 'digits/transformer_ctc'?"]),
        ("seed=abc", ["seed", "'abc'"]),
        ("trainer.max_steps=0", ["trainer.max_steps", "0", "at least 1"]),
        ("trainer.val_check_interval=0.5", ["trainer.val_check_interval", "0.5"]),
        ("seed=99999999999999999999", ["seed", "99999999999999999999"]),
        ("trainer.max_steps=1e3", ["trainer.max_steps", "1000.0", "whole number"]),
        ("trainer.max_steps=null", ["trainer.max_steps", "None", "at least 1"]),
        ("trainer.max_steps=[1]", ["trainer.max_steps", "[1]", "at least 1"]),
        ("data.scoring_unit=words", ["data.scoring_unit", "words", "word or character"]),
        ("trainer.max_epochs=0", ["trainer.max_epochs", "0", "at least 1"]),
        ("trainer.max_epochs=-3", ["trainer.max_epochs", "-3", "at least 1"]),
        ("trainer.max_epochs=1.5", ["trainer.max_epochs", "1.5", "whole number"]),
        ("trainer.accumulate_grad_batches=0", ["trainer.accumulate_grad_batches", "0", "at least 1"]),
        ("trainer.gradient_clip_val=-1", ["trainer.gradient_clip_val", "-1", "at least 0"]),
        ("trainer.gradient_clip_val=nan", ["trainer.gradient_clip_val", "nan"]),
        ("trainer.num_nodes=2", ["trainer.num_nodes=2", "torchrun or srun"]),
        ("resume=nowhere", ["resume", "nowhere", "not the folder of a run"]),
        ("trainer.devices=0", ["trainer.devices must be a whole number of at least 1", "given 0"]),
        ("trainer.max_stepz=5", ["trainer.max_stepz", "Did you mean 'max_steps'?"]),
        ("trainer.precision=17", ["trainer", "17"]),
        ("trainer.precision=bf16-true", ["trainer.precision", "32-true, 16-mixed, bf16-mixed", "'bf16-true'"]),
        ("trainer.precision=64", ["trainer.precision", "32-true, 16-mixed, bf16-mixed", "64"]),
        ("+encoder.num_features=40", ["encoder.num_features cannot be given"]),
        ("+head.vocab_size=40", ["head.vocab_size cannot be given"]),
        ("encoder=zipformer_xs encoder.encoder_dim=96", ["encoder.encoder_dim", "96"]),
        (
            "encoder=zipformer_xs encoder.num_encoder_layers=[true,1,1]",
            ["encoder.num_encoder_layers.0", "True"],
        ),
        ("data.batch.max_duration_s=0", ["data.batch", "max_duration_s", "0"]),
        ("data.workers.num_workers=-1", ["data.workers", "num_workers", "-1"]),
        ("data.text.case=title", ["data.text.case", "title", "lower"]),
        ("features.num_mels=-1", ["features", "num_mels", "-1"]),
        ("augment.features.max_time_fraction=2", ["augment.features", "max_time_fraction", "2"]),
        ("tokenizer=char +tokenizer.vocab_size=9", ["tokenizer.vocab_size", "no options"]),
        ("head.dropout=1", ["head", "dropout", "1"]),
        ("head=cr_ctc augment=none", ["head: CrCtcHead compares 2 views", "not augmented", "choose an augmentation"]),
        ("head=cr_ctc head.consistency_weight=0", ["head", "consistency_weight", "0"]),
        ("head=inter_ctc head.intermediate_layers=[9]", ["head: intermediate_layers=[9]", "from 1 to"]),
        ("head=inter_ctc head.intermediate_layers=all", ["head.intermediate_layers", "'all'"]),
        ("head=inter_ctc encoder=zipformer_xs", ["head", "intermediate_layers=[3]", "ZipformerEncoder", "conformer"]),
        ("encoder=conformer_xs encoder.kernel_width=4", ["encoder", "kernel_width must be odd", "4"]),
        ("schedule=eden schedule.lr_batches=0", ["schedule", "lr_batches", "0"]),
        ("parameter_rules.rules=[{pattern:nothing_like_it}]", ["parameter_rules", "nothing_like_it"]),
        ("encoder._target_=asr.models.encoders.Nothing", ["encoder._target_", "Nothing"]),
        ("data.prepare=3", ["data.prepare", "3"]),
        ("data.limits.min_duration_s=9999", ["data.limits", "9999"]),
        ("~optimizer", ["optimizer is missing"]),
        ("~seed", ["seed is missing"]),
        (
            "optimizer=scaled_adam optimizer.clipping_update_period=600000000",
            ["clipping_update_period must be", "100000", "600000000"],
        ),
        ("find_batch_size=maybe", ["find_batch_size", "'maybe'"]),
        ("run_dir='~nobody-knows/x'", ["'~nobody-knows/x': no user is called 'nobody-knows'"]),
        ("data.dir='~nobody-knows/x'", ["no user is called 'nobody-knows'"]),
        ("trainer.peer_timeout_s=0", ["trainer.peer_timeout_s must be a whole number of at least 1, given 0"]),
        ("+trainer.strategy=ddp_notebook", ["trainer.strategy must be one of auto, ddp", "'ddp_notebook'"]),
        ("+trainer.strategy=fsdp", ["trainer.strategy must be one of auto, ddp", "'fsdp'"]),
        ("torch_threads=0", ["torch_threads", "0", "at least 1"]),
        ("torch_threads=-1", ["torch_threads", "-1", "at least 1"]),
        ("torch_threads=many", ["torch_threads", "many", "whole number"]),
        ("~callbacks", ["callbacks is missing"]),
        ("weights=mean", ["weights", "raw, average, ema", "'mean'"]),
        ("weights=average callbacks.averaging=null", ["weights=average", "callbacks.averaging=null"]),
        ("weights=ema callbacks.averaging.ema_decay=null", ["weights=ema", "ema_decay=null", "raw, average"]),
        ("callbacks.averaging.every=0", ["callbacks.averaging", "every must be at least 1", "given 0"]),
        ("callbacks.optimizer_health.every=0", ["callbacks.optimizer_health", "every must be at least 1", "given 0"]),
        ("callbacks.checkpoints.keep_last=0", ["callbacks.checkpoints", "keep_last must be at least 1", "given 0"]),
        (
            "+callbacks.lr={_target_:lightning.pytorch.callbacks.LearningRateMonitor,logging_interval:never}",
            ["callbacks.lr", "logging_interval", "never"],
        ),
        ("+logger.wandb=5", ["logger.wandb", "5"]),
        (
            "+logger.w={_target_:asr.tracking.wandb_logger.WandbTracking,mode:often}",
            ["logger.w.mode", "often", "'offline'"],
        ),
        ("run_dir=/dev/null/run", ["run_dir", "/dev/null", "is not a folder"]),
        ("run_dir=/etc", ["run_dir", "/etc", "not empty"]),
        ("data.dir=/dev/null/data", ["data.dir", "/dev/null", "is not a folder"]),
        ("data.dir=null", ["data.dir", "None"]),
        ("data.dir=", ["data.dir", "''"]),
        ("recipes_dir=/nowhere/at/all", ["recipes_dir", "/nowhere/at/all"]),
        ("audio='a b'c", ["audio"]),
        ("features=log_mel_precomputed augment=speed_specaugment", ["augment.audio", "stored"]),
    ],
)
def test_a_wrong_override_is_explained(monkeypatch, capsys, tmp_path, word, parts):
    said = run(monkeypatch, capsys, tmp_path, *word.split(" ") if "'" not in word else [word])
    for part in parts:
        assert part in said
    assert "Traceback" not in said


@pytest.mark.parametrize("error", [RunFailed, OutOfMemory], ids=lambda error: error.__name__)
def test_a_training_that_cannot_go_on_ends_with_its_message(monkeypatch, capsys, error):
    def fails(config):
        raise error("out of luck; train elsewhere")

    monkeypatch.setattr(sys, "argv", ["asr-train"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as left:
        run_app("train", fails)
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("asr-train: out of luck; train elsewhere\n(HYDRA_FULL_ERROR=1")
    assert "Traceback" not in said
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(error):
        run_app("train", fails)


@pytest.mark.parametrize(
    "line",
    [
        "optimizer=eve schedule=eden encoder.num_layers=1",
        "recipe=digits/zipformer_ctc ++best_lr.eve=0.1",
        "++best_lr={adamw:0.1} allow_changes=false data.vocab_size=300",
        "tokenizer=char",
    ],
)
def test_a_good_command_line_passes_and_writes_nothing(monkeypatch, tmp_path, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asr-train", *line.split(" ")])
    run_app("train", lambda config: train_module.dry_run(train_module.plain(config)))
    assert list(tmp_path.iterdir()) == []


def test_every_command_is_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {f"asr-{name}": f"asr.commands.__main__:{name}" for name in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_what_can_be_chosen(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "asr.commands", command, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"asr-{command}: ")
    own = yaml.safe_load((config_folder(command) / f"{command}.yaml").read_text(encoding="utf-8"))
    for key, value in own.items():
        if key not in ("defaults", "hydra"):
            assert re.search(rf"^  {key}{r'[.]' if value and isinstance(value, dict) else '='}", done.stdout, re.M), key
    if command == "prepare":
        assert re.search(r"^  init\.keep_tokenizer=false +true: use", done.stdout, re.M)
    if command == "train":
        for line in (r"digits/transformer_ctc +\w", r"transformer_xs +\w", r"adamw +\w", r"eve +\w", r"eden +\w"):
            assert re.search(line, done.stdout), line
        for key in ("data.batch.max_duration_s", "trainer.max_steps", "optimizer.lr", "encoder.num_layers"):
            assert re.search(rf"^  {key}=\S+ +\w", done.stdout, re.M), key
        for key in ("callbacks.checkpoints.keep_last", "logger.wandb.project"):
            assert re.search(rf"^  {key}=\S+ +\w", done.stdout, re.M), key
