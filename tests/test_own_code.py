"""The package of docs/your_own_code.md is resumed, decoded, and trusted by name; test_blocks.py runs the page."""

import importlib.util
import os
import re
from pathlib import Path

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore

from asr.run.choices import with_own_choices
from asr.run.command_line import config_folder
from asr.run.compose import composed_from
from asr.run.parts import factories
from tests.commands.conftest import Workplace
from tests.configs import composed
from werdict.errors import ConfigError

PAGE = Path(__file__).parents[1] / "docs" / "your_own_code.md"
SMALL = (
    *("data.prepare.num_train=24", "data.prepare.num_dev=4", "data.prepare.num_test=4", "data.workers.num_workers=0"),
    *("tokenizer=char", "torch_threads=1", "trainer.max_steps=4", "trainer.val_check_interval=2"),
)
OWN = (
    "encoder._target_=mypkg.encoder.MyEncoder",
    "encoder.d_model=32",
    "+callbacks.count._target_=mypkg.callback.Count",
)
TARGET = "optimizer._target_=optim.Lion"
CONFORMER = "asr.models.encoders.conformer.ConformerEncoder"
needs_another_library = pytest.mark.skipif(
    importlib.util.find_spec("pytorch_optimizer") is None, reason="pytorch_optimizer is not installed"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Workplace:
    folder = tmp_path_factory.mktemp("own")
    for name, content in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "mypkg" / "__init__.py").write_text("import os\nopen(os.environ['IMPORTED'], 'w').close()\n")
    (folder / "mypkg" / "ends.py").write_text(ENDS)
    (folder / "mypkg" / "sign.py").write_text(SIGN)
    (folder / "mypkg" / "wrong.py").write_text(WRONG)
    return Workplace(folder)


ENDS = """
import os, signal
from mypkg.callback import Count

class Killed(Count):
    def on_train_batch_end(self, *args):
        super().on_train_batch_end(*args)
        if self.updates == 3 and "KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
"""
SIGN = """
import torch

class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-4, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                mean = self.state[param].setdefault("mean", torch.zeros_like(param))
                param.add_(mean.lerp_(param.grad, 1 - group["momentum"]).sign(), alpha=-group["lr"])

class WithoutClosure(SignMomentum):
    def step(self):
        super().step()

class NeedsRate(SignMomentum):
    def __init__(self, params, lr):
        super().__init__(params, lr)
"""
WRONG = """
from mypkg.encoder import MyEncoder

class Wrong(MyEncoder):
    def forward(self, features, num_frames):
        raise ValueError("my mistake")
"""


def run(place: Workplace, command: str, *words: str, **options) -> str:
    path = os.pathsep.join([str(place.folder), os.environ.get("PYTHONPATH", "")])
    return place.run(command, *words, **{"PYTHONPATH": path, "IMPORTED": str(place.folder / "imported"), **options})


@needs_another_library
def test_a_run_of_own_classes_is_killed_resumed_and_decoded_by_those_who_trust_them(place):
    words = (*SMALL, *OWN[:2], "+callbacks.count._target_=mypkg.ends.Killed", "logger=csv", "run_dir=run")
    run(place, "train", "--config-dir=configs", *words, "optimizer=adabelief", code=-9, KILL="1")
    assert "num_heads" not in (place.folder / "run" / "config.yaml").read_text()
    (place.folder / "imported").unlink()
    said = re.search(r"add (trust=\[(.*)\])", run(place, "train", "resume=run", code=2))
    assert said is not None
    assert {*said[2].split(",")} == {"mypkg", "pytorch_optimizer"}
    # decoding builds no optimizer
    assert "add trust=[mypkg]" in run(place, "evaluate", "run=run", code=2)
    assert not (place.folder / "imported").exists()
    assert "has seen 4 updates" in run(place, "train", "resume=run", said[1])
    assert "WER" in run(place, "evaluate", "run=run", WERDICT_TRUST="mypkg")


@pytest.mark.slow
@needs_another_library
def test_an_optimizer_of_another_package_is_compared_with_ours_on_an_own_encoder_by_two_processes(place):
    words = ("-m", "--config-dir=configs", *SMALL, *OWN[:2], "optimizer=adamw,adabelief", "sweep.name=first")
    run(place, "train", *words, "trainer.devices=2", "logger=csv")
    assert "adabelief" in run(place, "compare", "sweep=first")


def test_an_error_of_an_own_encoder_keeps_its_traceback_and_names_the_key(place):
    printed = run(place, "train", "encoder._target_=mypkg.wrong.Wrong", "logger=none", code=1)
    assert "Traceback" in printed
    assert "ValueError: my mistake" in printed
    assert printed.strip().splitlines()[-1].startswith("raised in encoder")


def test_a_corpus_of_an_own_function_is_trained_on_with_an_own_tokenizer(place):
    run(place, "prepare", *SMALL)
    for number, file in enumerate(sorted(place.folder.glob("data/digits/*/audio/train-*/*.flac"))[:16]):
        target = place.folder / "mine" / ("train", "train", "dev", "test")[number % 4] / f"u{number}.flac"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        target.with_suffix(".txt").write_text("one two three")
    words = ("data.prepare._target_=mypkg.corpus.prepare_mine", "data.corpus=mine", "data.source=mine")
    own = (*SMALL[3:], *OWN, *words, "tokenizer._target_=mypkg.words.TrainWords")
    assert "WER" in run(place, "train", *own, "logger=none", "run_dir=corpus")
    assert "WER" in run(place, "evaluate", "run=corpus", "trust=[mypkg]")


@pytest.mark.parametrize(
    ("words", "kept", "has_rules"),
    [
        (["optimizer=muon", TARGET], set(), False),
        (["recipe=phrases/transformer_start", TARGET, "optimizer.lr=0.01"], {"lr"}, False),
        (["optimizer=muon", "optimizer={_target_: optim.Lion, betas: [0.9, 0.98]}"], {"betas"}, False),
        (["optimizer=muon", TARGET, "parameter_rules=matrices", "optimizer.lr=1e-3"], {"lr"}, True),
        (["recipe=mine/first"], {"lr", "weight_decay"}, False),
        (["optimizer=lion"], {"lr", "weight_decay"}, True),
    ],
)
def test_an_optimizer_in_the_place_of_the_chosen_one_keeps_only_what_the_user_gave(words, kept, has_rules):
    body = {"optimizer": {"_target_": "optim.Lion", "lr": 0.02, "weight_decay": 0.1}}
    defaults = {"defaults": ["digits/transformer_ctc", {"override /optimizer": "muon"}, "_self_"]}
    ConfigStore.instance().store("first", {**defaults, **body}, "recipe/mine", "_global_")
    run = composed(*words)
    with initialize_config_dir(str(config_folder("train")), version_base="1.3"):
        options = with_own_choices(run).options
    assert options.optimizer.plain().keys() - {"_target_", "_partial_"} == kept
    assert bool(options.parameter_rules.rules) == has_rules


@pytest.mark.parametrize(
    ("words", "chosen", "kept"),
    [
        ([f"encoder._target_={CONFORMER}", "encoder.d_model=32"], {"encoder": "own"}, {"d_model"}),
        ([f"encoder={{_target_: {CONFORMER}, num_layers: 2}}"], {"encoder": "own"}, {"num_layers"}),
        (
            ["encoder=conformer_xs", f"encoder._target_={CONFORMER}", "~encoder.dropout"],
            {"encoder": "conformer_xs"},
            None,
        ),
        (
            ["head._target_=asr.models.heads.ctc.CtcHead", "--cfg=job"],
            {"head": "own", "encoder": "transformer_xs"},
            None,
        ),
        (["optimizer=muon", "~optimizer.adjust_lr_fn", TARGET], {"optimizer": "own", "parameter_rules": "none"}, None),
        (
            ["optimizer=muon", TARGET, "parameter_rules=matrices", "optimizer.lr=1"],
            {"parameter_rules": "matrices"},
            None,
        ),
    ],
)
def test_a_class_on_the_command_line_replaces_a_choice_that_is_not_named_there(words, chosen, kept):
    _, arguments = composed_from("train", words, config_folder("train"))
    run = composed(*(word for word in arguments if not word.startswith("-")))
    assert {group: run.groups[group] for group in chosen} == chosen
    assert kept is None or run.options.encoder.plain().keys() == {"_target_", *kept}


def test_a_sweep_over_classes_chooses_as_each_of_its_jobs():
    for words in ("encoder._target_=a.B,c.D", "encoder={_target_: a.B},{_target_: c.D}"):
        assert "encoder=own" in composed_from("train", ["-m", words], config_folder("train"))[1]


@pytest.mark.parametrize("name", ["SignMomentum", "WithoutClosure"])
def test_an_own_optimizer_that_never_calls_its_closure_trains_all_parameters(place, name):
    words = ("optimizer=muon", f"optimizer._target_=mypkg.sign.{name}", *SMALL, f"run_dir={name}")
    printed = run(place, "train", *words, "logger=none")
    assert re.search(rf"^{name}: 82 tensors, [\d,]+ parameters, lr 0.0003 \(its default\)$", printed, re.MULTILINE)
    weights = [torch.load(place.folder / name / "checkpoints" / f"update-00000{n}.ckpt") for n in (2, 4)]
    moved = {key: (value != weights[1]["state_dict"][key]).any() for key, value in weights[0]["state_dict"].items()}
    assert all(moved[key] for key in moved if key.endswith(("weight", "bias")))


def test_an_own_optimizer_or_logger_that_lacks_something_is_refused_before_data_are_prepared(place, monkeypatch):
    missing = "optimizer._target_=mypkg.sign.NeedsRate"
    assert re.search(r"optimizer: .*lr", run(place, "train", missing, "data.dir=unused", code=2))
    monkeypatch.setattr("asr.run.parts.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"logger\.tensorboard"):
        factories(composed("logger=tensorboard").options.logger, "logger")
    assert not (place.folder / "unused").exists()
