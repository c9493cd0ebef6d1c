"""What is compared, and under which name."""

import pytest

from asr.compare.inputs.naming import Systems
from tests.compare.run_folders import config_of


def free(config):
    return ("run_dir", "logger", "trainer.devices", "sweep")


def systems(*typed: str, configs=None) -> Systems:
    words = [line.split() for line in typed]
    return Systems(words, configs or [config_of(line) for line in words], free)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["optimizer=eve seed=1", "optimizer=cain seed=1"], ["eve", "cain"]),
        (["optimizer=eve optimizer.lr=0.01", "optimizer=eve"], ["eve lr=0.01", "eve"]),
        (["optimizer=eve optimizer.lr=0.01", "optimizer=eve optimizer.lr=0.02"], ["eve lr=0.01", "eve lr=0.02"]),
        (["", "optimizer=eve"], ["AdamW", "eve"]),
        (["optimizer.lr=0.01", "optimizer.lr=0.02"], ["AdamW lr=0.01", "AdamW lr=0.02"]),
        (["seed=1", "seed=2"], ["AdamW", "AdamW"]),
        (["optimizer=eve seed=1", "optimizer=eve seed=2"], ["eve", "eve"]),
        (["optimizer=eve run_dir=a", "optimizer=cain run_dir=b logger=csv"], ["eve", "cain"]),
        (["optimizer=eve encoder.x=1 sweep.name=s", "optimizer=cain encoder.x=1 sweep.name=s"], ["eve", "cain"]),
        (["+a.b=1 optimizer=eve", "optimizer=eve ++a.b=1"], ["eve", "eve"]),
        (["optimizer=eve optimizer=cain", "optimizer=eve"], ["cain", "eve"]),
    ],
)  # fmt: skip
def test_a_name_is_what_was_typed_and_sets_apart(typed, expected):
    assert systems(*typed).names == expected


def test_what_is_typed_beside_the_optimizer_is_named_in_full():
    configs = [config_of([], schedule__warmup_steps=steps) for steps in (0.1, 0.3)]
    found = systems("schedule.warmup_steps=0.1", "schedule.warmup_steps=0.3", configs=configs)
    assert found.names == ["schedule.warmup_steps=0.1", "schedule.warmup_steps=0.3"]


def test_the_same_training_typed_in_two_ways_is_one_system():
    found = systems("optimizer=eve", "optimizer=eve optimizer.lr=0.001", "optimizer=cain")
    assert found.names == ["eve", "eve", "cain"]
    assert found.problems == []


def test_one_name_with_two_configs_is_told_apart_and_the_keys_are_shown():
    configs = [config_of(["optimizer=eve"], encoder__d_model=width) for width in (48, 48, 96)]
    found = systems("optimizer=eve seed=1", "optimizer=eve seed=2", "optimizer=eve seed=3", configs=configs)
    assert found.names == ["eve #1", "eve #1", "eve #2"]
    assert found.problems == [
        "runs called eve have different configs and are numbered #1 to #2: encoder.d_model: 48 / 96"
    ]


def test_where_and_how_fast_is_no_other_training():
    configs = [
        config_of(["optimizer=eve"], trainer__devices=devices, logger={}, run_dir=str(devices)) for devices in (1, 2)
    ]
    found = systems("optimizer=eve", "optimizer=eve trainer.devices=2", configs=configs)
    assert found.names == ["eve", "eve"]


def test_a_budget_converted_from_epochs_may_depend_on_the_seed():
    configs = [config_of([], trainer__max_steps=steps, schedule__max_steps=steps) for steps in (100, 103)]
    assert systems("seed=1", "seed=2", configs=configs).names == ["AdamW", "AdamW"]


def test_a_schedule_that_ends_with_the_run_is_no_other_training_than_one_without_an_end():
    eden = {"_target_": "optim.Eden2", "lr_batches": 5000}
    configs = [config_of([], schedule={**eden, **end}) for end in ({}, {"max_steps": 100}, {"max_steps": 70})]
    found = systems("seed=1", "seed=2", "seed=3", configs=configs)
    assert found.names == ["AdamW #1", "AdamW #1", "AdamW #2"]
    assert "schedule.max_steps: absent / 70" in found.problems[0]


def test_a_typed_budget_is_another_system():
    configs = [config_of([], trainer__max_steps=steps, schedule__max_steps=steps) for steps in (100, 200)]
    found = systems("trainer.max_steps=100", "trainer.max_steps=200", configs=configs)
    assert found.names == ["trainer.max_steps=100", "trainer.max_steps=200"]


def test_no_runs_have_no_names():
    assert Systems([], [], free).names == []
