"""What is compared, and under which name."""

import pytest

from asr.run.options import SavedRun
from asr.runs.files import RunFiles
from asr.runs.folders import name_systems
from tests.werdict.run_folders import config_of


def names_of(*lines: str, **changes) -> tuple[list[str], list[str]]:
    """Name the runs of command lines; each of the changes of their configs has a value per run."""
    runs = []
    for place, line in enumerate(lines):
        config = config_of(line.split(), **{key: values[place] for key, values in changes.items()})
        runs.append(RunFiles(f"run{place}", line.split(), SavedRun(**config), {}))
    return name_systems(runs)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["optimizer=eve seed=1", "optimizer=cain seed=1"], ["eve", "cain"]),
        (["optimizer=eve optimizer.lr=0.01", "optimizer=eve"], ["eve lr=0.01", "eve"]),
        (["optimizer=eve optimizer.lr=0.01", "optimizer=eve optimizer.lr=0.02"], ["eve lr=0.01", "eve lr=0.02"]),
        (["", "optimizer=eve"], ["AdamW", "eve"]),
        (["optimizer.lr=0.01", "optimizer.lr=0.02"], ["AdamW lr=0.01", "AdamW lr=0.02"]),
        (["seed=1", "seed=2"], ["AdamW", "AdamW"]),
        (["optimizer=eve run_dir=a ~logger.x=csv", "optimizer=cain run_dir=b logger=csv"], ["eve", "cain"]),
        (["optimizer=eve trainer.devices=1", "optimizer=cain weights=raw"], ["eve", "cain"]),
        (["optimizer=eve recipe=a/b sweep.name=s", "optimizer=cain recipe=a/b sweep.name=s"], ["eve", "cain"]),
        (["recipe=a/b", "recipe=a/c"], ["recipe=a/b", "recipe=a/b"]),
        (["+a.b=1 optimizer=eve", "optimizer=eve ++a.b=1"], ["eve", "eve"]),
        (["optimizer=eve optimizer=cain", "optimizer=eve"], ["cain", "eve"]),
        (["optimizer=eve", "optimizer=eve optimizer.lr=0.001", "optimizer=cain"], ["eve", "eve", "cain"]),
        ([], []),
    ],
)
def test_a_name_is_the_overrides_that_differ(lines, expected):
    assert names_of(*lines) == (expected, [])


def test_one_name_with_two_configs_is_numbered_and_the_keys_are_shown():
    names, (problem,) = names_of(*["optimizer=eve"] * 3, seed=(1, 2, 3), encoder__d_model=(48, 48, 96))
    assert names == ["eve #1", "eve #1", "eve #2"]
    assert "encoder.d_model: 48 / 96" in problem


def test_a_budget_on_the_command_line_is_another_system():
    names, problems = names_of(
        "trainer.max_steps=100",
        "trainer.max_steps=200",
        trainer__max_steps=(100, 200),
        schedule__max_steps=(100, 200),
    )
    assert (names, problems) == (["trainer.max_steps=100", "trainer.max_steps=200"], [])
