"""One row per optimizer; the contracts and the reference trajectories run for every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optim
from optim.step_loop import StepLoop

Options = dict[str, Any]


@dataclass(frozen=True)
class OptimizerCase:
    """What the tests have to know about one optimizer.

    Attributes:
        factory: the class.
        state_bytes: optimizer state per element of a large float32 matrix.
        quadratic: options that solve a badly conditioned quadratic within 300 steps.
        no_decay: options under which lr alone moves a parameter.
        other_group: options that differ from the defaults, for a second parameter group.
        bad_options: values to be refused, each in a dict of its own, with a piece of the message.
        golden: the optimizer's name in the reference trajectories.
        golden_options: turns the references' arguments into this class's.
        exceptions: name of a test -> why it cannot hold for this optimizer; shown when it is skipped.
    """

    factory: type[StepLoop]
    state_bytes: float
    quadratic: Options
    no_decay: Options
    other_group: Options
    bad_options: tuple[tuple[Options, str], ...]
    golden: str
    golden_options: Callable[[Options], Options] = dict
    exceptions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class's name."""
        return self.factory.__name__


CASES = [
    OptimizerCase(
        factory=optim.Eve,
        state_bytes=8,
        quadratic={"lr": 0.05, "weight_decay": 0.0},
        no_decay={"weight_decay": 0.0},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "target_rms": 0.3},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"lr": float("nan")}, "lr must be a number"),
            ({"lr": float("inf")}, "lr must be a number"),
            ({"lr": "1e-3"}, "lr must be a number"),
            ({"lr": None}, "lr must be a number"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"betas": (-0.1, 0.9)}, r"betas\[0\] must be a number in \[0, 1\)"),
            ({"betas": 0.9}, "betas must be 2 numbers"),
            ({"betas": (0.9,)}, "betas must be 2 numbers"),
            ({"eps": -1e-8}, "eps must be"),
            ({"weight_decay": 0.11}, r"weight_decay must be a number in \[0, 0.1\]"),
            ({"weight_decay": -0.01}, "weight_decay must be"),
            ({"eps": True}, "eps must be"),
            ({"target_rms": 0.0}, r"target_rms must be a number in \(0, 10\]"),
            ({"target_rms": 10.1}, "target_rms must be"),
            ({"maximize": 1}, "maximize must be True or False"),
        ),
        golden="Eve",
    ),
]
