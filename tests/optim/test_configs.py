"""Every optimizer and schedule has a config, a row and a description, and every config builds what it names."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

import optim
from asr.run.instantiate import instantiate, locate, with_defaults
from optim.aliases import ALIASES
from optim.combined import Combined
from optim.engine.chain import Chain
from optim.schedules import ClosedFormSchedule
from tests.configs import CONFIGS, choice
from tests.optim.cases import CASES

FILES = {group: sorted((CONFIGS / group).glob("*.yaml")) for group in ("optimizer", "schedule", "parameter_rules")}


def by_name(group):
    return pytest.mark.parametrize("file", FILES[group], ids=lambda file: file.stem)


def load(file):
    """Return a config as commands see it: plain values, with the trainer's horizon and the class's defaults."""
    around = {"trainer": {"max_steps": 1000}, "encoder": {"d_model": 144}, "optimizer": {"lr": 0.001}}
    config = OmegaConf.merge(around, {"node": choice(file.parent.name, file.stem)})
    return with_defaults(OmegaConf.to_container(config, resolve=True)["node"], file.parent.name)


def build(file, **arguments):
    return instantiate(load(file), file.parent.name, **arguments)


class Model(nn.Module):
    """One parameter of each kind that encoders and heads have."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.attention_norm = nn.LayerNorm(8)
        self.rnn = nn.GRU(8, 8, bidirectional=True)
        self.front = nn.Sequential(nn.Conv1d(4, 8, 3), nn.GELU())
        self.normalize_more = nn.Linear(8, 8, bias=False)


def defined(base):
    """Return every class of the package that is a ``base`` and not abstract."""
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(optim.__path__, "optim.")]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return {cls for cls in classes if issubclass(cls, base) and not getattr(cls, "__abstractmethods__", None)} - {
        torch.optim.Optimizer,
        LRScheduler,
    }


def test_every_optimizer_has_a_row_a_config_and_a_public_name():
    # users compose a Chain, rules a Combined, and a StepInBackward wraps another; a Composable has options only, and an
    # alias is another class: none of them has a rule of its own, hence no config
    classes = defined(torch.optim.Optimizer) - {Chain, Combined, optim.Composable, optim.StepInBackward}
    classes -= set(ALIASES.values()) - {case.optimizer for case in CASES}
    assert classes == {case.optimizer for case in CASES}
    assert all(issubclass(cls, Chain) and getattr(optim, cls.__name__) is cls for cls in classes)
    named = {OmegaConf.load(file)._target_ for file in FILES["optimizer"]}
    assert {f"optim.{cls.__name__}" for cls in classes} <= named


def test_every_schedule_has_a_config_and_a_public_name():
    # AdafactorSchedule reports and sets nothing: a run has it beside its schedule, not as one
    classes = defined(LRScheduler) - {optim.AdafactorSchedule}
    assert all(issubclass(cls, ClosedFormSchedule) and getattr(optim, cls.__name__) is cls for cls in classes)
    named = {choice("schedule", file.stem)._target_ for file in FILES["schedule"]}
    assert named == {f"optim.{cls.__name__}" for cls in classes}


@pytest.mark.parametrize("file", [file for files in FILES.values() for file in files], ids=lambda file: file.stem)
def test_the_first_line_describes_the_choice(file):
    first, second = file.read_text().splitlines()[:2]
    assert first.startswith("# ")
    assert len(first) > 20
    assert file.parent.name != "optimizer" or "schedule=" in second


@by_name("optimizer")
def test_an_optimizers_config_trains_and_leaves_plain_values_in_the_checkpoint(file, tmp_path):
    optimizer = build(file)(Model().parameters())
    for param in optimizer.param_groups[0]["params"]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)["param_groups"][0]
    for key, value in load(file).items():
        assert (
            key.startswith("_")
            or key in ("capturable", "skip_nonfinite")
            or saved[key] == (tuple(value) if isinstance(value, list) else value)
        )


@pytest.mark.parametrize("file", [*FILES["optimizer"], *FILES["schedule"]], ids=lambda file: file.stem)
def test_a_config_lists_only_what_differs_from_its_class_with_the_reason(file):
    defaults = inspect.signature(locate(choice(file.parent.name, file.stem)._target_, "")).parameters
    for line in file.read_text().splitlines():
        key, colon, said = line.partition(": ")
        if colon and key.isidentifier() and not key.startswith("_"):
            value, _, reason = said.partition("  #")
            given, default = yaml.safe_load(value), defaults[key].default
            assert given != (list(default) if isinstance(default, tuple) else default), line
            assert reason or value == "${trainer.max_steps}" or file.parent.name == "schedule", line


@by_name("schedule")
def test_a_schedules_config_builds_it_with_the_trainers_horizon(file):
    schedule = build(file)(optim.Eve(Model().parameters()))
    assert isinstance(schedule, ClosedFormSchedule)
    assert getattr(schedule, "max_steps", 1000) == 1000
    assert 0 < schedule.get_last_lr()[0] <= 1e-3


@by_name("parameter_rules")
@pytest.mark.parametrize("optimizer", FILES["optimizer"], ids=lambda file: file.stem)
def test_rules_and_optimizers_cross(file, optimizer):
    model = Model()
    built = build(file, optimizer=build(optimizer))(model.named_parameters())
    assert sum(len(group["params"]) for group in built.param_groups) == len(list(model.parameters()))
    if file.stem == "no_decay":
        own = load(optimizer).get("weight_decay")
        # an optimizer without weight decay has nothing to be spared of
        wanted = {True: None if own is None else 0.0, False: own}
        found = {}
        for group in built.param_groups:
            (spared,) = {param.dim() == 1 for param in group["params"]}
            assert found.setdefault(spared, group.get("weight_decay")) == group.get("weight_decay")
        assert found == wanted


def test_a_rule_in_a_config_may_name_another_optimizer():
    other = {"_target_": "optim.Adafactor", "_partial_": True, "lr": 0.02, "relative_step": False}
    rules = [{"pattern": "norm", "optimizer": other, "lr_scale": 0.5}, {"pattern": ".*"}]
    node = {"_target_": "optim.grouped", "rules": rules}
    make = instantiate(node, "parameter_rules", optimizer=build(CONFIGS / "optimizer" / "eve.yaml"))
    optimizer = make(Model().named_parameters())
    assert [type(member).__name__ for member in optimizer.optimizers] == ["Adafactor", "Eve"]
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_a_chain_can_be_composed_in_a_config():
    names = ("momentum.Momentum", "learning_rate.LearningRate")
    transforms = [{"_target_": f"optim.transforms.{name}"} for name in names]
    node = {"_target_": "optim.Chain", "_partial_": True, "transforms": transforms, "lr": 0.1}
    optimizer = instantiate(node, "optimizer")(Model().parameters())
    assert (optimizer.param_groups[0]["beta1"], optimizer.param_groups[0]["lr"]) == (0.9, 0.1)


def test_the_sweep_compares_optimizers_that_exist():
    sweep = OmegaConf.load(CONFIGS / "sweep" / "optimizers.yaml").sweep.optimizers
    # torch's AdamW makes the same updates as ours
    assert set(sweep) <= {file.stem for file in FILES["optimizer"]} - {"torch_adamw"}
