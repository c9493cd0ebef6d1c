"""Every optimizer and schedule has a config, a row and a description, and what the package's pages show works."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

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
from optim.transforms.adam import Adam, PalmBeta2
from tests.configs import CONFIGS, choice
from tests.optim.cases import CASES
from tests.optim.training import all_moved, make_gradient, make_parameters, run, values

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
    # trials go beyond the edge of a range of rates
    assert all("lr" in ranges.around for ranges in sweep.values())


README = Path(__file__).parents[2] / "optim" / "README.md"


def test_the_examples_do_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 13
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, README, "exec", dont_inherit=True), names)  # without the __future__ of this file
        params = list(names["model"].parameters())
        before = values(params)
        for _ in range(4):
            names["optimizer"].step()
        # steps in the backward pass have freed the gradients
        assert all(param.grad is None for param in params) or all_moved(params, before)
    start = make_parameters()[3].detach()

    def moved(transform, steps: int) -> torch.Tensor:
        param = make_parameters()[3]
        run(optim.chain(transform, lr=1.0)([param]), [param], range(steps))
        return param.detach() - start

    grads = [make_gradient(start, step, 0) for step in range(4)]
    torch.testing.assert_close(moved(names["accumulate"](num_steps=4), 7), -sum(grads) / 4)
    torch.testing.assert_close(moved(names["lookahead"](period=3, slow_lr=0.25), 3), -0.25 * sum(grads[:3]))
    assert float(moved(names["ClipByGlobalNorm"](max_norm=1.0), 1).norm()) == pytest.approx(1.0, rel=1e-5)
    grafted = moved(names["grafted"], 1)
    assert torch.equal(grafted.sign(), -grads[0].sign())
    # Adam's first step has elements of ±1
    torch.testing.assert_close(grafted.norm(), torch.tensor(start.numel() ** 0.5))


@pytest.mark.parametrize("name", optim.__all__)
def test_every_public_name_has_an_example_that_runs(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(optim, name), name, module=False)
    assert found[0].examples
    found[0].globs = {"optim": optim, "torch": torch, "nn": nn}
    assert doctest.DocTestRunner().run(found[0]).failed == 0


def test_every_optimizer_and_schedule_has_a_row():
    rows = re.findall(r"^\| `(\w+)", README.read_text(), re.MULTILINE)
    schedules = [cls for cls in vars(optim).values() if isinstance(cls, type) and issubclass(cls, ClosedFormSchedule)]
    assert {case.name for case in CASES} | {cls.__name__ for cls in schedules} <= set(rows)


HEAVYBALL = README.with_name("HEAVYBALL.md").read_text()


def rows(heading: str) -> list[list[list[str]]]:
    """Return the names in each cell of the table below a heading."""
    lines = HEAVYBALL.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split(" | ")] for row in table]


def test_every_name_of_heavyball_builds_an_optimizer():
    names = [name for theirs, _ in rows("Optimizers") for name in theirs]
    assert len(names) >= 30
    for name in names:
        run(getattr(optim, name)(params := make_parameters()), params, range(1))


def test_the_table_of_transforms_is_right():
    around = {type(transform) for transform in optim.Composable([make_parameters()[3]], [Adam()], lr=0.1).transforms}
    for (name,), transforms in rows("What each is made of"):
        chain = getattr(optim, name)(make_parameters()).transforms
        rule = [type(each).__name__ for each in chain if type(each) not in around - {Adam} | {PalmBeta2}]
        assert rule == transforms, name


def test_transforms_and_test_files_that_are_named_exist():
    for _, ours in rows("`chainable`"):
        for name in ours:
            module, _, attribute = name.rpartition(".")
            if not name.startswith("optim.") and re.fullmatch(r"[a-z_.]+\.[A-Z]\w+", name):
                assert hasattr(importlib.import_module(f"optim.{module}"), attribute), name
    for file in re.findall(r"test_\w+\.py", HEAVYBALL):
        assert Path(__file__).with_name(file).is_file(), file
