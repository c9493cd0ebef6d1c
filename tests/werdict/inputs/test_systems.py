"""What of a config makes its system."""

import pytest

from asr.run.options import SavedRun
from asr.runs.files import run_settings, system_of
from tests.werdict.run_folders import config_of

STOP = {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "val/wer"}
AVERAGING = {"_target_": "asr.training.callbacks.checkpoints.WeightAveraging", "ema_decay": 0.9}
STALL = {"_target_": "asr.training.callbacks.progress.StallWarning"}


def saved(changes):
    return SavedRun(**config_of([], **changes))


TUNED = {"keys": ["optimizer.lr"], "studies": 3}


@pytest.mark.parametrize(
    ("former", "later", "is_same"),
    [
        ({"weights": "raw"}, {"weights": "average"}, False),
        ({"decode": ["best"]}, {"decode": ["last"]}, False),
        ({}, {"decode": ["best", "last"]}, True),
        (
            {"decode": ["average"], "callbacks": {"averaging": AVERAGING}},
            {"decode": ["average"], "callbacks": {"averaging": {**AVERAGING, "every": 2}}},
            False,
        ),
        ({"callbacks": {}}, {"callbacks": {"stop": STOP}}, False),
        ({"callbacks": {"stop": STOP}}, {"callbacks": {"stop": {**STOP, "patience": 9}}}, False),
        ({"callbacks": {}}, {"callbacks": {"new": {"_target_": "their.Callback"}}}, False),
        (
            {"weights": "ema", "callbacks": {"averaging": AVERAGING}},
            {"weights": "ema", "callbacks": {"averaging": {**AVERAGING, "ema_decay": 0.99}}},
            False,
        ),
        ({}, {"trainer__devices": 2}, False),
        ({}, {"trainer__num_nodes": 2}, False),
        ({}, {"callbacks": {"averaging": AVERAGING, "stall_warning": STALL, "none": None}}, True),
        ({"torch_threads": 1, "logger": {}}, {"torch_threads": 2, "sweep": {"name": "b"}, "seed": 9}, True),
        ({"trainer__devices": [0]}, {"trainer__devices": [1]}, True),
        ({"optimizer__lr": 1, "sweep": {"tuned": TUNED}}, {"optimizer__lr": 2, "sweep": {"tuned": TUNED}}, True),
        ({"optimizer__lr": 1, "sweep": {"tuned": {**TUNED, "studies": 1}}}, {"optimizer__lr": 2}, False),
        ({"trainer__max_steps": 100}, {"trainer__max_steps": 103}, False),
    ],
    ids=str,
)
def test_what_changes_the_result_makes_another_system_and_nothing_else_does(former, later, is_same):
    assert (system_of(saved(former)) == system_of(saved(later))) == is_same


def test_a_budget_converted_from_epochs_may_depend_on_the_seed():
    configs = [
        saved({"trainer": {"max_steps": steps, "max_epochs": -1}, "schedule__max_steps": steps}) for steps in (100, 103)
    ]
    first, second = map(run_settings, configs)
    assert first["system"] == second["system"]
    assert (first["budget"], second["budget"]) == (100, 103)
