"""Tuning gives everyone the same number of trials, looks beyond edges, and never at a test set."""

from __future__ import annotations

import json
import math

import pytest
from omegaconf import OmegaConf

from asr.cli.errors import ConfigError
from asr.cli.sweeps.jobs import records
from asr.cli.sweeps.tuning import TunedSystem, systems
from hydra_plugins.werdict_tuned_sweeper import report
from tests.cli.conftest import Workplace
from tests.cli.test_resume import data
from tests.cli.test_sweeps import QUICK

SWEEP = {
    "only": None,
    "schedule_modes": ["common", "usual"],
    "common_schedule": "warmup_cosine",
    "optimizers": {
        "adamw": {"lr": [0.001, 0.003, 0.009], "usual": "warmup_cosine"},
        "eve": {"lr": [0.0003, 0.001, 0.003], "usual": "eden"},
    },
    "schedules": {
        "warmup_cosine": {"overrides": [], "warmups": ["schedule.warmup_steps=0.2", "schedule.warmup_steps=0.1"]},
        "eden": {"overrides": ["schedule.lr_batches=500"], "warmups": ["schedule.warmup_batches=9", "schedule.x=1"]},
    },
}


def tried(**trials: float) -> TunedSystem:
    return TunedSystem("eve", ("optimizer=eve",), ("w=1", "w=2"), {float(lr): wer for lr, wer in trials.items()})


@pytest.mark.parametrize(
    ("trials", "best", "at_edge", "following"),
    [
        ({"0.01": 0.5, "0.03": 0.4, "0.09": 0.3}, 0.09, True, 0.27),
        ({"0.01": 0.3, "0.03": 0.4, "0.09": 0.5}, 0.01, True, 0.0033),
        ({"0.01": 0.5, "0.03": 0.3, "0.09": 0.4}, 0.03, False, 0.052),
        ({"0.01": 0.3, "0.03": 0.2, "0.09": math.inf}, 0.03, False, 0.017),
        # none learned anything: the middle is no optimum, and both sides are tried in turn
        ({"0.01": 1.0, "0.03": 1.0, "0.09": 1.0}, 0.03, True, 0.0033),
        ({"0.0033": 1.0, "0.01": 1.0, "0.03": 1.0, "0.09": 1.0}, 0.01, True, 0.27),
        ({"0.01": math.inf, "0.03": math.inf, "0.09": math.inf}, 0.03, True, 0.0033),
        # as good at an edge as inside
        ({"0.01": 0.5, "0.03": 0.3, "0.09": 0.3}, 0.03, True, 0.27),
        ({"0.01": 0.3, "0.03": 0.3, "0.09": 0.4}, 0.03, True, 0.0033),
        ({"0.01": 0.5}, 0.01, True, 0.03),
    ],
)
def test_the_next_lr_lies_beyond_an_edge_or_beside_the_best(trials, best, at_edge, following):
    system = tried(**trials)
    assert (system.best_lr, system.at_edge) == (best, at_edge)
    assert system.next_lr() == following


@pytest.mark.parametrize(("wers", "learned"), [((1.0, math.inf), False), ((1.3, 1.0), False), ((1.0, 0.99), True)])
def test_a_system_that_never_learned_is_said_to_have_failed(wers, learned, tmp_path, capsys):
    system = tried(**{"0.01": wers[0], "0.03": wers[1]})
    report([system], tmp_path)
    assert json.loads((tmp_path / "tuning.json").read_text())["eve"]["has_learned"] == learned
    assert ("(failed:" in capsys.readouterr().out) != learned


def test_the_usual_warmup_is_kept_where_another_is_not_better():
    system = tried(**{"0.01": 0.5})
    system.warmup_trials = {"w=1": 0.5, "w=2": 0.5}
    assert system.chosen() == ["optimizer=eve", "optimizer.lr=0.01", "w=1"]
    system.warmup_trials["w=2"] = 0.4
    assert system.chosen()[-1] == "w=2"


def test_each_optimizer_takes_part_with_the_common_and_with_its_usual_schedule():
    found = systems(SWEEP)
    assert [c.name for c, _ in found] == ["adamw warmup_cosine", "eve warmup_cosine", "eve eden"]
    assert found[2][0].overrides == ("optimizer=eve", "schedule=eden", "schedule.lr_batches=500")
    assert [c.name for c, _ in systems({**SWEEP, "only": ["eve"], "schedule_modes": ["usual"]})] == ["eve eden"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"only": ["sgd"]}, "no range is known of 'sgd'; there are adamw, eve"),
        ({"schedule_modes": ["best"]}, "may hold common and usual, given 'best'"),
        ({"common_schedule": "wsd"}, "no schedule 'wsd'"),
        ({"only": []}, "at least one lr"),
        ({"optimizers": {**SWEEP["optimizers"], "cain": {"lr": [0.1], "usual": "eden"}}}, "cain eden: 1 and 2"),
    ],
)
def test_what_would_be_unfair_or_unknown_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        systems({**SWEEP, **changed})


def test_a_tuned_sweep_tries_on_dev_and_decodes_the_test_set_once(trained, tmp_path):
    words = (
        *(
            "-m",
            "sweep=optimizers",
            "sweep.name=tuned",
            "sweep.only=[adamw]",
            "sweep.seeds=[3]",
            "sweep.schedule_modes=[common]",
            "sweep.tuning_overrides=['trainer.max_steps=4']",
        ),
        *("sweep.optimizers.adamw.lr=[0.001]", "sweep.schedules.warmup_cosine.warmups=['schedule.warmup_steps=1']"),
        *("sweep.max_extra_trials=1", *QUICK, f"data.dir={data(trained)}"),
    )
    printed = Workplace(tmp_path).run("train", *words)
    sweep_dir = tmp_path / "runs" / "tuned"
    found = {record.name: record.overrides for record in records(sweep_dir)}
    sets = {name: json.loads((sweep_dir / name / "report" / "summary.json").read_text())["test"] for name in found}
    for name, overrides in found.items():
        assert ("seed=0" in overrides) == (sets[name] == {}), name
        assert ("seed=3" in overrides) == ("test" in sets[name]), name
        config = OmegaConf.load(sweep_dir / name / "config.yaml")
        # 2 are typed for all jobs, 4 for those that tune
        assert config.trainer.max_steps == (4 if "seed=0" in overrides else 2), name
    tuning = json.loads((sweep_dir / "tuning.json").read_text())["adamw warmup_cosine"]
    assert list(tuning["lr"]) == ["0.001", "0.003"]
    assert tuning["chosen"][-1] == "schedule.warmup_steps=1"
    assert "3 jobs: 3 finished" in printed


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer=eve", "this sweep chooses optimizer"),
        ("encoder.num_layers=1,2", "give one value"),
        ("schedule.warmup_steps=9", "this sweep chooses schedule.warmup_steps"),
    ],
)
def test_what_the_sweep_chooses_may_not_be_typed(word, message, tmp_path):
    assert message in Workplace(tmp_path).run("train", "-m", "sweep=optimizers", word, code=2)
