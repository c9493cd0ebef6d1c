"""What is said beside all test sets: who was soonest, quickest and smallest, and what the verdicts are about."""

from __future__ import annotations

import dataclasses

import pytest

from asr.compare.inputs.runs import Cost, Curve
from asr.compare.report.costs import overall
from asr.compare.report.headline import headline
from asr.evaluation.formatting import duration
from tests.compare.made_runs import compare_runs, run_of, sweep


def with_cost(run, seconds, state_bytes):
    fell = Curve((10, 20, 30), (1.0, 2.0, 3.0), (0.9, 0.3, 0.1))
    cost = Cost(100, 1000, seconds=seconds, optimizer_state_bytes=state_bytes)
    return dataclasses.replace(run, cost=cost, curves={"val/wer": fell})


FIRST_AT = {"adamw": {1: 26, 2: 28, 3: 30}, "eve": {1: 8, 2: 9, 3: 10}, "cain": {1: 29, 2: 27, 3: None}}


def validated(run, at):
    updates, wers = ((at, 31), (0.2, 0.1)) if at is not None else ((31,), (0.9,))
    return dataclasses.replace(run, curves={"val/wer": Curve(updates, tuple(map(float, updates)), wers)})


@pytest.mark.parametrize(
    ("changes", "baseline", "said"),
    [
        ({}, "adamw", "eve, after 8.96 updates on average (3 of 3 runs)."),
        ({}, "eve", "eve, after 8.96 updates on average (3 of 3 runs)."),
        (
            {("eve", 3): None},
            "adamw",
            "eve, which cannot be distinguished from adamw, after at least 13.1 updates on average (2 of 3 runs).",
        ),
        (
            {("eve", 3): None},
            "eve",
            "eve, which cannot be distinguished from adamw, cain, after at least 13.1 updates on average (2 of 3 "
            "runs).",
        ),
    ],
)
def test_the_soonest_is_named_with_what_is_known_of_it(changes, baseline, said):
    runs = [validated(run, changes.get((run.system, run.seed), FIRST_AT[run.system][run.seed])) for run in sweep()]
    runs = [dataclasses.replace(run, cost=Cost(31, 1000)) for run in runs]
    assert overall(compare_runs(runs, title="made", baseline=baseline, target_wer=0.2))[0] == (
        f"First at 20.00 % WER on dev: {said}"
    )


def test_the_quickest_and_the_smallest_are_named():
    seconds = {"adamw": 60.0, "eve": 90.0, "cain": 70.0}
    sizes = {"adamw": 8000, "eve": 4000, "cain": 100}
    runs = [with_cost(run, seconds[run.system], sizes[run.system]) for run in sweep()]
    found = overall(compare_runs(runs, title="made", baseline="adamw", target_wer=0.2))
    assert found[1:3] == [
        f"Training time: least adamw, {duration(60)}; most eve, {duration(90)}.",
        "Memory of the optimizer: least cain, 0.1 bytes per parameter; most adamw, 8 bytes per parameter.",
    ]
    same = [with_cost(run, 60.0, 8000) for run in sweep()]
    assert not any(sentence.startswith(("Training time", "Memory")) for sentence in overall(compare_runs(same)))


@pytest.mark.parametrize(
    ("studies", "said"),
    [
        ({}, "about these settings only"),
        ({"adamw": (0, 0, 0)}, "that one tuning has chosen"),
        ({"adamw": (0, 1, 2), "eve": (0, 1, 1)}, "in each of 2 studies"),
        ({"adamw": (0, 1, 2), "eve": (0, 0, 0)}, "that one tuning has chosen"),
    ],
)
def test_verdicts_are_about_settings_or_about_a_way_of_tuning(studies, said):
    """What counts are the studies that the runs come from, not those that a sweep was to have."""
    runs = [dataclasses.replace(run, study=studies.get(run.system, (None,) * 3)[run.seed - 1]) for run in sweep()]
    assert said in overall(compare_runs(runs, title="made"))[-1]


def test_the_times_of_few_pairs_are_corrected_for_these_only():
    runs = [validated(run, FIRST_AT[run.system][run.seed] or 31) for run in sweep()]
    every, alone = (
        compare_runs(runs, title="made", baseline="adamw", target_wer=0.2, comparisons=pairs).times[0].rows
        for pairs in ("all", "baseline")
    )
    adjusted = [{row.system: row.contrast.p_adjusted for row in rows if row.contrast} for rows in (every, alone)]
    assert set(adjusted[0]) == {"cain", "eve"}
    assert adjusted[1]["eve"] < adjusted[0]["eve"]


def test_the_percentage_of_the_baseline_is_of_the_seeds_in_common():
    alone = [run_of("adamw", seed, (9, 9, 9, 9, 9, 9)) for seed in (8, 9)]
    (found,) = compare_runs([*sweep(), *alone], title="made", baseline="adamw").sets
    assert any("69 % fewer errors, better." in sentence for sentence in headline(found, 0.95))
