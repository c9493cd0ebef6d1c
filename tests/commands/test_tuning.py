"""Tuning gives every optimizer the same number of trials, looks beyond edges, and never at a test set."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
from omegaconf import OmegaConf

from asr.errors import DIVERGED, ConfigError
from asr.sweeps.records import records
from asr.sweeps.search_space import Choice, Range, Search
from asr.sweeps.tuning import Trial, TunedSystem, compared_systems, shares, systems
from hydra_plugins.werdict_tuned_sweeper import report
from tests.commands.conftest import Workplace
from tests.commands.test_resume import data
from tests.commands.test_sweeps import QUICK
from tests.small_runs import TINY as TINY_RUN

SWEEP = {
    "only": None,
    "schedule_modes": ["common", "usual"],
    "common_schedule": "warmup_cosine",
    "widths": {"lr": 5, "optimizer": 10, "schedule": 2},
    "search": None,
    "choices": {},
    "trials": 12,
    "max_extra_trials": 3,
    "tuning_seed": 0,
    "tuning_overrides": [],
    "studies": 1,
    "seeds": [1, 2],
    "with_defaults": True,
    "compared": None,
    "optimizers": {
        "adamw": {
            "around": {"lr": 0.001, "weight_decay": 0.1},
            "choices": {"betas": [[0.9, 0.98], [0.9, 0.999]]},
            "usual": "warmup_cosine",
        },
        "eve": {"around": {"lr": 0.003}, "usual": "eden2"},
    },
    "schedules": {
        "warmup_cosine": {"around": {"warmup_steps": 0.1}},
        "eden2": {"overrides": ["schedule.lr_batches=0.1"], "around": {"warmup_batches": 0.04}},
    },
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
        ([(0.01, 1.0), (0.03, 1.0), (0.09, 1.0), (0.0033, 1.0)], 0.01, 0.27),
        ([(0.01, math.inf), (0.03, math.inf), (0.09, math.inf)], 0.03, 0.0033),
        # as good at an edge as inside
        ([(0.01, 0.5), (0.03, 0.3), (0.09, 0.3)], 0.03, 0.27),
        ([(0.01, 0.3), (0.03, 0.3), (0.09, 0.4)], 0.03, 0.0033),
        ([(0.01, 0.5)], 0.01, 0.0033),
    ],
)
def test_a_trial_beyond_the_edge_keeps_all_else_of_the_best(trials, best, following):
    system = tried(*trials)
    assert (system.best.lr, system.at_edge) == (best, True)
    assert system.next_settings() == {"optimizer.lr": following, "optimizer.x": 7}


@pytest.mark.parametrize(
    "trials", [[(0.01, 0.5), (0.03, 0.3), (0.09, 0.4)], [(0.01, 0.3), (0.03, 0.2), (0.09, math.inf)]]
)
def test_inside_the_range_the_sequence_goes_on(trials):
    system, other = tried(*trials), tried()
    assert (system.best.lr, system.at_edge) == (0.03, False)
    assert [system.next_settings(), system.next_settings()] == other.sample(2)


def test_a_space_is_filled_evenly_and_alike_for_all_systems():
    found = systems(Search.read(SWEEP), seed=3)
    assert [one.name for one in found] == ["adamw warmup_cosine", "eve warmup_cosine", "eve eden2"]
    assert found[2].overrides == ("optimizer=eve", "schedule=eden2", "schedule.lr_batches=0.1")
    settings = [one.sample(16) for one in found]
    assert list(settings[0][0]) == [
        *("optimizer.lr", "optimizer.weight_decay", "optimizer.betas"),
        "schedule.warmup_steps",
    ]
    for key, around, width in (
        ("optimizer.lr", 0.001, 5),
        ("optimizer.weight_decay", 0.1, 10),
        ("schedule.warmup_steps", 0.1, 2),
    ):
        steps = sorted(math.log(one[key] / around) / math.log(width) for one in settings[0])
        assert -1.01 <= steps[0] < -0.8
        assert 0.8 < steps[-1] <= 1.01
        assert max(b - a for a, b in itertools.pairwise(steps)) < 0.5, key
    assert len({json.dumps(one["optimizer.betas"]) for one in settings[0]}) == 2
    # the same places: relative to what they lie around, rates agree
    assert [3 * one["optimizer.lr"] for one in settings[0]] == pytest.approx(
        [one["optimizer.lr"] for one in settings[1]], rel=0.06
    )
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


def test_an_optimizer_with_two_schedules_has_no_more_trials_than_another():
    assert shares(systems(Search.read(SWEEP), 0), 12) == [12, 6, 6]
    with pytest.raises(ConfigError, match="eve has 2 schedules, which do not divide 5 trials; give a multiple of 2"):
        shares(systems(Search.read(SWEEP), 0), 5)


@pytest.mark.parametrize(("wers", "learned"), [((1.0, math.inf), False), ((1.3, 1.0), False), ((1.0, 0.99), True)])
def test_a_system_that_never_learned_is_said_to_have_failed(wers, learned, tmp_path, capsys):
    report([[tried((0.01, wers[0]), (0.03, wers[1]))]], tmp_path)
    (study,) = json.loads((tmp_path / "tuning.json").read_text())
    assert study["eve eden2"]["has_learned"] == learned
    assert ("(failed:" in capsys.readouterr().out) != learned


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"only": ["sgd"]}, "no range is known of 'sgd'; there are adamw, eve"),
        ({"schedule_modes": ["best"]}, "Input should be 'common' or 'usual', given 'best'"),
        ({"common_schedule": "wsd"}, "no schedule 'wsd'"),
        ({"only": []}, "nothing to tune"),
        ({"search": ["optimizer.weight_decay"]}, "the lr of adamw must be searched too"),
        ({"search": ["optimizer.lr", "optimizer.betas", "optimizer.beta"]}, "no range has 'optimizer.beta'"),
        ({"choices": {"encoder.dropout": []}}, "sweep.choices.encoder.dropout: List should have at least 1 item"),
        ({"choices": {"seed": [5, 6]}}, "sweep.choices.seed: this is the sweep's own, and no setting"),
        ({"widths": {"lr": 0.5, "optimizer": 10, "schedule": 2}}, "sweep.widths.lr: Input should be greater than"),
        ({"optimizers": {"eve": {"around": {}, "usual": "eden2", "lr": [1]}}}, "eve.lr: Extra inputs are not"),
        ({"seeds": [1, 1]}, "every seed once"),
        ({"seeds": [0, 1]}, "sweep.seeds: 0 is a seed of the trials"),
        ({"studies": 2, "seeds": [1, 1000]}, "sweep.seeds: 1000 is a seed of the trials"),
    ],
)
def test_what_would_be_unfair_or_unknown_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        systems(Search.read({**SWEEP, **changed}), 0)


def test_a_tuned_sweep_tries_on_dev_and_decodes_the_test_set_once(trained, tmp_path):
    words = (
        *("-m", "sweep=optimizers", "sweep.name=tuned", "sweep.only=[adamw]", "sweep.seeds=[3]"),
        *("sweep.target_wer=0.3", "sweep.schedule_modes=[common]", "sweep.tuning_overrides=['trainer.max_steps=4']"),
        *("sweep.trials=1", "sweep.max_extra_trials=1", *QUICK, f"data.dir={data(trained)}"),
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
        assert config.sweep.target_wer == 0.3, name
    (study,) = json.loads((sweep_dir / "tuning.json").read_text())
    assert len(study["adamw"]["trials"]) == 2
    assert "4 jobs: 4 finished" in printed  # two trials, the best, the defaults
    again = Workplace(tmp_path).run("train", *words, "sweep.target_wer=0.2")
    assert "4 jobs: 4 finished (4 of them before)" in again
    assert "finished before do not hold sweep.target_wer=0.2: asr-compare target_wer=0.2 asks for it" in again


def test_the_winners_of_several_studies_are_one_system(trained, tmp_path):
    words = (
        *("-m", "sweep=optimizers", "sweep.name=studies", "sweep.only=[adamw]", "sweep.seeds=[3,4]"),
        *("sweep.studies=2", "sweep.schedule_modes=[common]", "sweep.search=[optimizer.lr]", "sweep.trials=1"),
        *("sweep.max_extra_trials=0", "sweep.compared=[adamw]", *QUICK, f"data.dir={data(trained)}"),
    )
    printed = Workplace(tmp_path).run("train", *words)
    assert "study 2 of 2: trials: 1 job" in printed
    assert "4 jobs: 4 finished" in printed
    studies = json.loads((tmp_path / "runs" / "studies" / "tuning.json").read_text())
    first, second = (study["adamw"]["chosen"]["optimizer.lr"] for study in studies)
    assert first != second
    Workplace(tmp_path).run("compare", "sweep=studies")
    compared = json.loads((tmp_path / "runs" / "studies" / "comparison" / "comparison.json").read_text())
    seeds = {row["system"]: row["seeds"] for row in compared["sets"][0]["rows"]}
    assert seeds == {"adamw": [3, 4]}


def test_a_trial_that_diverges_is_a_failed_one_and_not_the_end_of_the_sweep(small_run, tmp_path):
    words = (
        *("-m", "sweep=lr", "sweep.name=wild", "sweep.trials=2", "sweep.max_extra_trials=0", "sweep.seeds=[3]"),
        *("sweep.optimizers.adamw.around.lr=1e29", *TINY_RUN, f"data.dir={small_run.data_dir}"),
    )
    ended = small_run.programs.run("train", *words, cwd=tmp_path, timeout_s=300)
    found = sorted(("seed=3" in one.overrides, one.exit_code) for one in records(tmp_path / "runs" / "wild"))
    assert found == [(False, DIVERGED), (False, DIVERGED), (True, DIVERGED)]
    assert "the model has diverged: in the validation of update 3 its scores are not finite" in ended.printed
    assert ended.code == 1
    assert "3 jobs: 0 finished, 3 not" in ended.last_line
    (study,) = json.loads((tmp_path / "runs" / "wild" / "tuning.json").read_text())
    assert [trial["wer"] for trial in study["adamw"]["trials"]] == [None, None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=eve"], "this sweep chooses optimizer"),
        (["encoder.num_layers=1,2"], "give one value"),
        (["schedule.warmup_steps=9"], "this sweep chooses schedule.warmup_steps"),
        (
            ["sweep.studies=3", "sweep.seeds=[1,2]"],
            "needs as many sweep.seeds, one for the winner of each study; given 2",
        ),
        (["sweep.trials=5"], "which do not divide 5 trials"),
        (["sweep.tuning_overrides=['optimizer.lr=1']"], "optimizer.lr=1: this sweep chooses optimizer.lr"),
        (["sweep.tuning_overrides=['seed=1']"], "seed=1: this sweep chooses seed"),
        (
            ["sweep.only=[adamw]", "sweep.compared=[adamw,untuned adamv]"],
            "sweep.compared: no system is called 'untuned adamv'; there are adamw, untuned adamw",
        ),
        (
            ["sweep.only=[eve]", "sweep.schedule_modes=[usual]", "++sweep.choices.encoder.dropout=[0.1,2]"],
            "dropout=2, which is refused: encoder: dropout must be in [0, 1), given 2.0",
        ),
        (
            ["sweep.only=[adamw]", "sweep.schedule_modes=[usual]", "sweep.tuning_overrides=['encoder.dropout=7']"],
            "which is refused: encoder: dropout must be in [0, 1), given 7.0",
        ),
        (["sweep.only=[adamw]", "sweep.gpus_per_job=1"], "must be null, or 1 to the 0 GPUs of this machine, given 1"),
    ],
)
def test_what_a_tuned_sweep_cannot_do_is_refused(words, message, tmp_path):
    without_gpus = {"CUDA_VISIBLE_DEVICES": ""}
    assert message in Workplace(tmp_path).run("train", "-m", "sweep=optimizers", *words, code=2, **without_gpus)
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
    (tmp_path / "tuning.json").write_text("7")
    with pytest.raises(ValueError, match="is not what a sweep that tunes writes; remove it"):
        report([[first]], tmp_path)
