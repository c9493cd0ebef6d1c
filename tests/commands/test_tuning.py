"""Tuning gives every optimizer the same number of trials, looks beyond edges, and never at a test set."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from asr.run.command_line import CONFIGS
from asr.sweeps.jobs import records
from asr.sweeps.tuning import SEEDS_APART, Choice, Range, Search, Trial, TunedSystem, compared_systems, shares, systems
from hydra_plugins.werdict_sweepers import report
from tests.commands.conftest import Workplace
from tests.commands.test_resume import data
from tests.commands.test_sweeps import QUICK
from tests.small_runs import TINY as TINY_RUN
from werdict.errors import DIVERGED, ConfigError

SWEEP: dict[str, Any] = {
    **OmegaConf.to_container(OmegaConf.load(CONFIGS / "sweep" / "optimizers.yaml").sweep),
    "only": ["adamw", "eve"],
}


def tried(*wers: tuple[float, float]) -> TunedSystem:
    trials = [Trial({"optimizer.lr": lr, "optimizer.x": 7}, wer) for lr, wer in wers]
    space = {"optimizer.lr": Range(0.01, 5), "optimizer.x": Choice([7])}
    return TunedSystem("eve eden2", "eve", ("optimizer=eve",), True, space, trials=trials)


@pytest.mark.parametrize(
    ("trials", "best", "following"),
    [
        ([(0.01, 0.5), (0.09, 0.3), (0.03, 0.4)], 0.09, 0.27),
        ([(0.01, 0.3), (0.03, 0.4), (0.09, 0.5)], 0.01, 0.0033),
        # none learned anything: the middle is no optimum, and both sides are tried in turn
        ([(0.01, 1.0), (0.03, 1.0), (0.09, 1.0)], 0.03, 0.0033),
        ([(0.01, math.inf), (0.03, math.inf), (0.09, math.inf), (0.0033, math.inf)], 0.01, 0.27),
        # as good at an edge as inside
        ([(0.01, 0.5), (0.03, 0.3), (0.09, 0.3)], 0.03, 0.27),
    ],
)
def test_a_trial_beyond_the_edge_keeps_all_else_of_the_best(trials, best, following):
    system = tried(*trials)
    assert (system.best.lr, system.at_edge) == (best, True)
    assert system.next_settings() == {"optimizer.lr": following, "optimizer.x": 7}


def test_inside_the_range_the_sequence_continues():
    system, other = tried((0.01, 0.3), (0.03, 0.2), (0.09, math.inf)), tried()
    assert (system.best.lr, system.at_edge) == (0.03, False)
    assert [system.next_settings(), system.next_settings()] == other.sample(2)


def test_the_middle_of_the_space_is_tried_first():
    first = systems(Search.read(SWEEP), seed=3)[0].sample(1)[0]
    around = {"optimizer.lr": 0.0015, "optimizer.weight_decay": 0.1, "schedule.warmup_steps": 0.15}
    assert first == {**around, "optimizer.betas": SWEEP["optimizers"]["adamw"]["choices"]["betas"][0]}


def test_a_space_is_filled_evenly_and_alike_for_all_systems():
    found = systems(Search.read(SWEEP), seed=3)
    assert [one.name for one in found] == ["adamw warmup_cosine", "eve warmup_cosine", "eve eden2"]
    assert found[2].overrides[:2] == ("optimizer=eve", "schedule=eden2")
    settings = [one.sample(16) for one in found]
    ranges = {"optimizer.lr": (0.0015, 5), "optimizer.weight_decay": (0.1, 10), "schedule.warmup_steps": (0.15, 2)}
    assert settings[0][0].keys() == {*ranges, "optimizer.betas"}
    for key, (around, width) in ranges.items():
        steps = sorted(math.log(one[key] / around) / math.log(width) for one in settings[0])
        assert -1.01 <= steps[0] < -0.8
        assert 0.8 < steps[-1] <= 1.01
        assert max(b - a for a, b in itertools.pairwise(steps)) < 0.5, key
    assert len({json.dumps(one["optimizer.betas"]) for one in settings[0]}) == 2
    # the same places: relative to what they lie around, rates agree
    rates, others = ([one["optimizer.lr"] for one in of_system] for of_system in settings[:2])
    assert rates == pytest.approx([1.5 * rate for rate in others], rel=0.06)
    assert systems(Search.read(SWEEP), seed=3)[0].sample(16) == settings[0]
    assert systems(Search.read(SWEEP), seed=4)[0].sample(16) != settings[0]


def test_what_is_searched_can_be_chosen_and_shared():
    assert [one.name for one in systems(Search.read({**SWEEP, "schedule_modes": ["usual"]}), 0)] == ["adamw", "eve"]
    (system,) = systems(
        Search.read({**SWEEP, "only": ["eve"], "schedule_modes": ["usual"], "search": ["optimizer.lr"]}), 0
    )
    assert list(system.space) == ["optimizer.lr"]
    choices = {"encoder": {"dropout": [0.1, 0.2]}}
    (system,) = systems(Search.read({**SWEEP, "only": ["eve"], "schedule_modes": ["common"], "choices": choices}), 0)
    assert {one["encoder.dropout"] for one in system.sample(8)} == {0.1, 0.2}
    words = system.words({"optimizer.lr": 0.01, "optimizer.betas": [0.9, 0.98]})
    assert words[2:] == ["optimizer.lr=0.01", "optimizer.betas=[0.9,0.98]"]


def test_the_line_for_an_optimizer_without_a_range_works():
    with pytest.raises(ConfigError) as caught:
        Search.read({**SWEEP, "only": ["nadam"]})
    line = re.search(r"'\+\+sweep\.(.*?)'$", str(caught.value))[1]
    override = OverridesParser.create().parse_override(f"++{line}")
    own = {**SWEEP["optimizers"], "nadam": override.value()}
    assert override.key_or_group == "optimizers.nadam"
    assert systems(Search.read({**SWEEP, "only": ["nadam"], "optimizers": own}), 0)[0].optimizer == "nadam"


def test_an_optimizer_with_two_schedules_has_no_more_trials_than_another():
    assert shares(systems(Search.read(SWEEP), 0), 12) == [12, 6, 6]
    with pytest.raises(ConfigError, match=r"sweep\.trials: eve has 2 schedules"):
        shares(systems(Search.read(SWEEP), 0), 5)


@pytest.mark.parametrize(("wers", "learned"), [((1.0, math.inf), False), ((1.0, 0.99), True)])
def test_a_system_that_never_learned_is_reported_as_failed(wers, learned, tmp_path, capsys):
    report([[tried((0.01, wers[0]), (0.03, wers[1]))]], tmp_path)
    (study,) = json.loads((tmp_path / "tuning.json").read_text())
    assert study["eve eden2"]["has_learned"] == learned
    assert ("(failed:" in capsys.readouterr().out) != learned


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"only": ["adagrad"]}, "sweep.only: .*'adagrad'"),
        ({"only": []}, "sweep.only"),
        ({"common_schedule": "wsd"}, "sweep.schedules: .*'wsd'"),
        ({"search": ["optimizer.weight_decay"]}, "sweep.search: the lr of adamw"),
        ({"search": ["optimizer.lr", "optimizer.betas", "optimizer.beta"]}, "sweep.search: .*'optimizer.beta'"),
        ({"choices": {"encoder.dropout": []}}, "sweep.choices.encoder.dropout"),
        ({"seeds": [0, 1]}, "sweep.seeds: 0"),
        ({"studies": 2, "seeds": [1, 1000]}, "sweep.seeds: 1000"),
    ],
)
def test_what_would_be_unfair_or_unknown_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        systems(Search.read({**SWEEP, **changed}), 0)


def test_a_tuned_sweep_tries_on_dev_decodes_the_test_set_once_and_its_studies_are_one_system(trained, tmp_path):
    words = (
        *("-m", "sweep=optimizers", "sweep.name=tuned", "sweep.only=[adamw]", "sweep.seeds=[3,4]", "sweep.studies=2"),
        *("sweep.target_wer=0.3", "sweep.schedule_modes=[common]", "sweep.tuning_overrides=['trainer.max_steps=4']"),
        *("sweep.trials=2", "sweep.max_extra_trials=0", *QUICK, f"data.dir={data(trained)}"),
    )
    place = Workplace(tmp_path)
    printed = place.run("train", *words)
    sweep_dir = tmp_path / "runs" / "tuned"
    found = {record.name: record.overrides for record in records(sweep_dir)}
    sets = {name: json.loads((sweep_dir / name / "report" / "summary.json").read_text())["test"] for name in found}
    for name, overrides in found.items():
        is_trial = bool({"seed=0", f"seed={SEEDS_APART}"} & {*overrides})
        assert is_trial != bool({"seed=3", "seed=4"} & {*overrides}), name
        assert is_trial == (sets[name] == {}), name
        config = OmegaConf.load(sweep_dir / name / "config.yaml")
        # 2 for all jobs, 4 for those that tune
        assert config.trainer.max_steps == (4 if is_trial else 2), name
        assert config.sweep.target_wer == 0.3, name
    first, second = (study["adamw"] for study in json.loads((sweep_dir / "tuning.json").read_text()))
    assert len(first["trials"]) == len(second["trials"]) == 2
    assert [trial["settings"] for trial in first["trials"]] != [trial["settings"] for trial in second["trials"]]
    assert "8 jobs: 8 finished" in printed  # of each study two trials, the best, the defaults
    assert "8 jobs: 8 finished (8 of them before)" in place.run("train", *words)
    place.run("compare", "sweep=tuned")
    compared = json.loads((sweep_dir / "comparison" / "comparison.json").read_text())
    assert {row["system"]: row["seeds"] for row in compared["sets"][0]["rows"]}["adamw"] == [3, 4]


def test_a_trial_that_diverges_is_a_failed_one_and_not_the_end_of_the_sweep(small_run, tmp_path):
    words = (
        *("-m", "sweep=lr", "sweep.name=wild", "sweep.trials=2", "sweep.max_extra_trials=0", "sweep.seeds=[3]"),
        *("sweep.optimizers.adamw.around.lr=1e29", *TINY_RUN, f"data.dir={small_run.data_dir}"),
    )
    ended = small_run.programs.run("train", *words, cwd=tmp_path, timeout_s=300, code=1)
    found = sorted(("seed=3" in one.overrides, one.exit_code) for one in records(tmp_path / "runs" / "wild"))
    assert found == [(False, DIVERGED), (False, DIVERGED), (True, DIVERGED)]
    assert "3 jobs: 0 finished, 3 not" in ended.last_line
    (study,) = json.loads((tmp_path / "runs" / "wild" / "tuning.json").read_text())
    assert [trial["wer"] for trial in study["adamw"]["trials"]] == [None, None]


EVE = ("sweep.only=[eve]", "sweep.schedule_modes=[usual]")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=eve"], "optimizer=eve"),
        (["encoder.num_layers=1,2"], "encoder.num_layers=1,2"),
        (["sweep.studies=3", "sweep.seeds=[1,2]"], "sweep.seeds"),
        (["sweep.tuning_overrides=['seed=1']"], "seed=1"),
        (["sweep.only=[adamw]", "sweep.compared=[untuned adamv]"], "'untuned adamv'"),
        ([*EVE, "++sweep.choices.encoder.dropout=[0.1,2]"], "dropout=2, which is refused: encoder.dropout"),
        ([*EVE, "sweep.tuning_overrides=['encoder.dropout=7']"], "which is refused: encoder.dropout"),
        (["sweep.only=[adamw]", "sweep.gpus_per_job=1"], "sweep.gpus_per_job=1"),
    ],
)
def test_what_a_tuned_sweep_cannot_do_is_refused(words, message, programs, tmp_path):
    without_gpus = {"CUDA_VISIBLE_DEVICES": ""}
    ended = programs.run("train", "-m", "sweep=optimizers", *words, cwd=tmp_path, environment=without_gpus, code=2)
    assert message in ended.last_line, ended.printed
    # the number of GPUs is that of the machine of a job
    assert ("gpus" in words[-1]) == (tmp_path / "runs").exists()


def test_every_choice_and_both_ends_of_every_range_are_looked_at_first():
    search = Search.read({**SWEEP, "choices": {"a.b": [1, 2, 3], "a.c": [True, False]}, "schedule_modes": ["usual"]})
    for system in systems(search, 0):
        found = [*system.extreme_settings()]
        for key, one in system.space.items():
            values = [settings[key] for settings in found]
            expected = one.values if isinstance(one, Choice) else [one.at(0), one.at(1)]
            assert all(value in values for value in expected), key
    assert compared_systems(search, systems(search, 0)) == ["adamw", "eve", "untuned adamw", "untuned eve"]


def test_a_second_stage_tunes_as_the_first_and_keeps_what_it_leaves_out(tmp_path):
    first, second = (tried((0.01, wer), (0.03, 0.5)) for wer in (0.2, 0.4))
    report([[first]], tmp_path)
    report([[dataclasses.replace(second, name="cain")]], tmp_path)
    (study,) = json.loads((tmp_path / "tuning.json").read_text())
    assert {name: found["trials"][0]["wer"] for name, found in study.items()} == {"eve eden2": 0.2, "cain": 0.4}
