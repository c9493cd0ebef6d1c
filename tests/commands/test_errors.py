"""A wrong command line ends with a message that names the key, what was given and what is allowed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from asr.commands.__main__ import COMMANDS
from asr.commands.app import run_app
from asr.run import compose
from asr.run.build import validate_run
from asr.run.command_line import config_folder
from asr.run.compose import composed_from
from asr.run.folder import quoted
from asr.run.trainer import size_by_torchrun
from tests.configs import composed
from werdict.errors import RunFailed


def run(monkeypatch, capsys, tmp_path: Path, *words: str) -> str:
    """Compose and validate as asr-train does; return what it says to standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asr-train", "logger=none", *words])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as left:
        run_app("train", lambda composed: validate_run(composed.options))
    assert left.value.code == 2
    assert list(tmp_path.iterdir()) == [], "a refused command must leave nothing behind"
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "key", "parts"),
    [
        # keys that do not exist, and choices
        ("+datta.dir=x", "datta", ["'data'"]),
        ("+data.limit=1", "data.limit", ["'limits'"]),
        ("data.batch_size=8", "data.batch_size", ["data.batch.max_duration_s"]),
        ("lr=0.1", "lr", ["optimizer.lr"]),
        ("optimizer.lrr=1", "optimizer.lrr", ["'lr'", "weight_decay"]),
        ("+optimizer.lrr=1", "optimizer.lrr", ["'lr'", "weight_decay"]),
        ("optimiser=adamw", "optimiser", ["'optimizer'"]),
        ("optimizer=adamm", "optimizer=adamm", ["'adamw'", "eve"]),
        ("recipe=digits/transfomer_ctc", "recipe", ["'digits/transformer_ctc'"]),
        ("recipe=fsd", "recipe=fsd", ["'fsdd'", "fsdd/transformer_ctc"]),
        ("tokenizer=char +tokenizer.vocab_size=9", "tokenizer.vocab_size", []),
        ("encoder._target_=asr.models.encoders.Nothing", "encoder._target_", ["Nothing", "PYTHONPATH"]),
        ("~optimizer", "optimizer", ["missing"]),
        ("~seed", "seed", ["missing"]),
        ("audio='a b'c", "audio", []),
        ("--optimizer=eve", "asr-train: --optimizer=eve", []),
        ("seed=2 --trainer.max_steps 5", "--trainer.max_steps", ["trainer.max_steps="]),
        # values of the schema
        ("decode=[best,raw]", "decode", ["'raw'"]),
        ("seed=abc", "seed", ["'abc'"]),
        ("data.storage=shar", "data.storage", ["data.storage.dir"]),
        ("data.corpus=../elsewhere", "data.corpus", ["'../elsewhere'"]),
        ("trainer.max_steps=1e3", "trainer.max_steps", ["1000.0"]),
        ("+trainer.strategy=deepspeed", "trainer.strategy", ["'deepspeed'", "'ddp'"]),
        ("sweep.target_wer=20", "sweep.target_wer", ["20"]),
        ("data.sources=[{recipe: digits/transformer_ctc, weight: 0}]", "data.sources.0.weight", ["0"]),
        # values of what is built
        ("optimizer.lr=-1", "optimizer", ["lr", "-1"]),
        ("optimizer.betas=[0.9]", "optimizer.betas: ", ["2", "[0.9]"]),
        ("optimizer.betas=0.9", "optimizer.betas: ", ["2 ", "0.9"]),
        ("optimizer.betas=[0.9,a]", "optimizer.betas.1", ["'a'"]),
        ("encoder.d_model=-3", "encoder.d_model", ["-3"]),
        ("encoder.num_layers=1.5", "encoder.num_layers", ["1.5"]),
        ("head=inter_ctc encoder=zipformer_xs", "head", ["intermediate_layers"]),
        ("head=transducer", "decoder=transducer_beam", ["TransducerHead"]),
        ("schedule=eden schedule.lr_batches=0", "schedule", ["lr_batches", "0"]),
        ("data.text.case=title", "data.text.case", ["title", "lower"]),
        ("parameter_rules.rules=[{pattern:nothing_like_it}]", "parameter_rules", ["nothing_like_it"]),
        ("callbacks.averaging.every=0", "callbacks.averaging.every", ["0"]),
        ("trainer.devices=0", "trainer", ["devices", "0"]),
        # what does not fit together, or would be lost
        ("features=log_mel_precomputed augment=speed_specaugment", "augment.audio", ["stored"]),
        ("features=waveform", "augment.features", ["SpecAugment", "spectrum", "samples"]),
        ("features=log_mel_on_device features.precomputed=true", "features", ["precomputed", "on_device"]),
        ("augment=noise", "augment.audio.noise", ["folder"]),
        ("weights=ema callbacks.averaging.ema_decay=null", "weights=ema", ["ema_decay=null"]),
        ("trainer.num_nodes=2", "trainer.num_nodes=2", ["torchrun"]),
        ("trainer=cpu find_batch_size=true", "find_batch_size=true", ["GPU", "data.batch.max_duration_s"]),
        ("+encoder.num_features=40", "encoder.num_features", []),
        ("+callbacks.checkpoints.run_dir=/tmp", "callbacks.checkpoints.run_dir", []),
        # places
        ("resume=nowhere", "resume", ["nowhere"]),
        ("run_dir=/etc", "run_dir", ["/etc", "not empty"]),
        ("recipes_dir=/nowhere/at/all", "recipes_dir", ["/nowhere/at/all"]),
    ],
)
def test_a_wrong_override_is_explained(monkeypatch, capsys, tmp_path, words, key, parts):
    said = run(monkeypatch, capsys, tmp_path, *words.split(" ") if not {"'", "{"} & {*words} else [words])
    for part in (key, *parts):
        assert part in said
    assert "Traceback" not in said
    assert "+data" not in said, "which would be refused"


TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3", "WORLD_SIZE": "6"}


def as_torchrun_starts(monkeypatch, **variables: str) -> None:
    for name, value in {**TORCHRUN, **variables}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("words", "variables", "key"),
    [("seed=1", {"TORCHELASTIC_MAX_RESTARTS": "3"}, "run_dir"), ("seed=1", {"WORLD_SIZE": "5"}, "--nproc-per-node")],
)
def test_a_start_by_torchrun_that_cannot_work_is_explained(monkeypatch, capsys, tmp_path, words, variables, key):
    as_torchrun_starts(monkeypatch, **variables)
    assert key in run(monkeypatch, capsys, tmp_path, words)


@pytest.mark.parametrize(
    ("devices", "size"),
    [("8", {"devices": 2, "num_nodes": 3}), ("[1,0]", {"num_nodes": 3}), ("[0]", {"devices": 2, "num_nodes": 3})],
)
def test_torchrun_says_how_many_processes_there_are(monkeypatch, devices, size):
    options = composed(f"trainer.devices={devices}").options.trainer
    assert size_by_torchrun(options) == {}
    as_torchrun_starts(monkeypatch)
    assert size_by_torchrun(options) == size
    replicated = composed("trainer=fsdp", "trainer.num_nodes=4", "trainer.replicate=4").options.trainer
    assert size_by_torchrun(replicated) == {"devices": 2, "num_nodes": 3, "replicate": 3}


def test_a_command_that_torchrun_starts_again_resumes_its_run(monkeypatch, tmp_path):
    first = ["recipe=digits/transformer_ctc", "optimizer.lr=0.1", "logger=csv", "trust=[mypkg]", f"run_dir={tmp_path}"]
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(first))
    monkeypatch.setattr(compose, "store_resumed", lambda *_: None)
    as_torchrun_starts(monkeypatch)
    assert composed_from("train", first, tmp_path) == ("train", first), "its start was not recorded"
    (tmp_path / "config.yaml").touch()
    again = ["logger=csv", "trust=[mypkg]", "seed=2", f"resume={quoted(str(tmp_path))}"]
    assert composed_from("train", [*first, "seed=2"], tmp_path)[1] == again


def test_what_a_restart_cannot_repeat_is_not_given_again(monkeypatch, tmp_path):
    words = ["optimizer=adamw", "optimizer._target_=mypkg.Opt", "~logger.wandb", "+logger.csv.flush_logs=9"]
    recorded = composed_from("train", words, tmp_path)[1]
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(recorded))
    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr(compose, "store_resumed", lambda *_: None)
    as_torchrun_starts(monkeypatch)
    resumed = [f"run_dir={tmp_path}", *words]
    again = ["++logger.csv.flush_logs=9", f"resume={quoted(str(tmp_path))}"]
    assert composed_from("train", resumed, tmp_path)[1] == again


def test_a_run_that_cannot_continue_ends_with_its_message(monkeypatch, capsys):
    def fails(config):
        raise RunFailed("out of luck; train elsewhere")

    monkeypatch.setattr(sys, "argv", ["asr-train"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as left:
        run_app("train", fails)
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert "out of luck; train elsewhere" in said
    assert "Traceback" not in said
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(RunFailed):
        run_app("train", fails)


@pytest.mark.parametrize(
    "line",
    [
        "optimizer=eve schedule=eden encoder.num_layers=1",
        "sweep.name=2024 logger.wandb.tags=[2024,1.5,first]",
        "recipe=digits/zipformer_ctc ++best_lr.eve=0.1",
        "optimizer.caution=true optimizer.gradient_clipping=l2 allow_changes=false data.vocab_size=300",
    ],
)
def test_a_good_command_line_passes_and_writes_nothing(monkeypatch, tmp_path, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asr-train", *line.split(" ")])
    run_app("train", lambda composed: validate_run(composed.options))
    assert list(tmp_path.iterdir()) == []


def test_every_command_is_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    others = {"asr-benchmark": "asr.commands.benchmark:main"}  # no application of Hydra
    assert project["scripts"] == {f"asr-{name}": f"asr.commands.__main__:{name}" for name in COMMANDS} | others


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
            assert re.search(rf"^  {key}{'[.=]' if isinstance(value, dict) else '='}", done.stdout, re.M), key
    if command == "prepare":
        assert re.search(r"^  init\.keep_tokenizer=null +true: use", done.stdout, re.M)
    if command == "train":
        for line in (r"digits/transformer_ctc +\w", r"transformer_xs +\w", r"adamw +\w", r"eve +\w", r"eden +\w"):
            assert re.search(line, done.stdout), line
        for key in ("data.batch.max_duration_s", "trainer.max_steps", "optimizer.lr", "encoder.num_layers"):
            assert re.search(rf"^  {key}=\S+ +\w", done.stdout, re.M), key
        for key in ("callbacks.checkpoints.keep_last", "logger.wandb.project"):
            assert re.search(rf"^  {key}=\S+ +\w", done.stdout, re.M), key


def test_a_damaged_file_of_results_ends_the_command_without_a_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asr-compare", "results=cut.json"])
    Path("cut.json").write_text('{"audio_filepath": "a.wav", "text": "x", "pred_text": "x"}\n{"audio_filepath": "b')
    with pytest.raises(SystemExit) as left:
        run_app("compare")
    assert left.value.code == 2
    assert "cut.json, line 2" in capsys.readouterr().err
