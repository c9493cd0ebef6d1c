"""What a run says on the terminal."""

from functools import partial

import pytest
import torch
from torch import nn

from asr.training.callbacks.progress import describe_groups
from optim import AdamW, Cain, WarmupCosine, grouped, step_in_backward
from tests.small_runs import TINY

RULES = [
    {"pattern": "0.weight", "optimizer": partial(Cain, lr=1.5e-3)},
    {"pattern": "bias", "weight_decay": 0.5, "lr_scale": 0.1},
    {"pattern": ".*"},
]
LINES = [
    "Cain: 1 tensors, 12 parameters, lr 0.0015",
    "AdamW: 2 tensors, 6 parameters, lr 0.025, weight_decay 0.5",
    "AdamW: 1 tensors, 8 parameters, lr 0.25, weight_decay 0",
]


@pytest.mark.parametrize("build", [lambda named, make: make(named), step_in_backward])
def test_groups_are_described_by_their_optimizer_their_size_and_their_own_options(build):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = build(list(model.named_parameters()), grouped(partial(AdamW, lr=0.25), RULES))
    assert describe_groups(optimizer) == LINES
    WarmupCosine(optimizer, max_steps=20, warmup_steps=10)
    assert describe_groups(optimizer) == LINES


def test_a_rate_on_the_device_is_shown_as_a_number():
    optimizer = AdamW([torch.ones(3, 2, requires_grad=True)], lr=torch.tensor(0.25), capturable=True)
    assert describe_groups(optimizer) == ["AdamW: 1 tensors, 6 parameters, lr 0.25"]


def test_a_run_says_which_optimizer_has_which_part(small_run, tmp_path):
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}", "optimizer=muon")
    lines = [line for line in ended.printed.splitlines() if " tensors, " in line]
    assert lines == [
        "  AdamW: 16 tensors, 536 parameters, lr 0.0015",
        "  Muon: 6 tensors, 2,212 parameters, lr 0.0015",
    ]
