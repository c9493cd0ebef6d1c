"""One row per optimizer; the contracts and the reference trajectories run for every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import optim
from optim.engine.chain import Chain

Options = dict[str, Any]


@dataclass(frozen=True)
class OptimizerCase:
    """What the tests have to know about one optimizer.

    Attributes:
        optimizer: the class.
        state_bytes: optimizer state per element of a large float32 matrix.
        quadratic: options that solve a badly conditioned quadratic within 300 steps.
        no_decay: options under which lr alone moves a parameter.
        other_group: options that differ from the defaults, for a second parameter group.
        bad_options: values to be refused, each in a dict of its own, with a piece of the message.
        golden: the optimizer's name in the reference trajectories.
        options: what every test but those on configs gives the class beside its own defaults.
        golden_options: turns the references' arguments into this class's.
        couplings: option of the reference -> why parameters that are given it depend on each other; its trajectories
            are followed with all parameters in one optimizer only.
        exceptions: name of a test -> why it cannot hold for this optimizer; shown when it is skipped.
    """

    optimizer: type[Chain]
    state_bytes: float
    quadratic: Options
    no_decay: Options
    other_group: Options
    bad_options: tuple[tuple[Options, str], ...]
    golden: str
    golden_options: Callable[[Options], Options] = dict
    options: Options = field(default_factory=dict)
    couplings: Mapping[str, str] = field(default_factory=dict)
    exceptions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class's name."""
        return self.optimizer.__name__

    @property
    def factory(self) -> Callable[..., Chain]:
        """The class with the row's options."""
        return partial(self.optimizer, **self.options)


CASES = [
    OptimizerCase(
        optimizer=optim.Eve,
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
    OptimizerCase(
        optimizer=optim.MaxFactor,
        state_bytes=1 / 30,
        quadratic={"lr": 0.05, "weight_decay": 0.0},
        no_decay={"weight_decay": 0.0, "min_lr": 0.0},
        other_group={"lr": 0.02, "gamma": 0.9, "eps": (1e-8, 1e-3), "weight_decay": 0.05, "d": 0.5, "max_norm": False},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"beta2_decay": 0.1}, r"beta2_decay must be a number in \(-inf, 0\]"),
            ({"eps": (0.0, 1e-3)}, r"eps\[0\] must be"),
            ({"eps": 1e-3}, "eps must be 2 numbers"),
            ({"d": 0.0}, "d must be"),
            ({"weight_decay": -0.1}, "weight_decay must be"),
            ({"gamma": 1.0}, r"gamma must be a number in \[0, 1\)"),
            ({"min_lr": -1.0}, "min_lr must be"),
            ({"scalar_boost": 0.0}, "scalar_boost must be"),
            ({"max_norm": 1}, "max_norm must be True or False"),
            ({"reference_bugs": 1}, "reference_bugs must be True or False"),
        ),
        golden="MaxFactor",
    ),
    OptimizerCase(
        optimizer=optim.Cain,
        state_bytes=8.0334,
        quadratic={"lr": 0.1},
        no_decay={},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "eps": 1e-3,
            "scale_speed": 0.2,
            "rms_eps": 1e-3,
            "param_max": 1.0,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"scale_speed": 0.0}, r"scale_speed must be a number in \(0, 1\)"),
            ({"scale_speed": 1.0}, "scale_speed must be"),
            ({"rms_eps": 0.1}, r"rms_eps must be a number in \(0, 0.1\)"),
            ({"param_max": 0.1}, "param_max must be"),
            ({"param_max": 1e5}, "param_max must be"),
            ({"reference_bugs": 1}, "reference_bugs must be True or False"),
        ),
        golden="Cain",
        golden_options=lambda hyper: {
            **{name: value for name, value in hyper.items() if name != "honor_scale_speed"},
            "reference_bugs": not hyper.get("honor_scale_speed", False),
        },
        exceptions={
            "test_a_parameter_without_gradient_is_untouched_and_keeps_no_state": (
                "the reference's correction is zero at the first step: single elements stand still with a gradient too"
            ),
        },
    ),
    OptimizerCase(
        optimizer=optim.Adafactor,
        options={"lr": 1e-2, "relative_step": False},
        state_bytes=1 / 30,
        quadratic={"lr": 0.1},
        no_decay={},
        other_group={"lr": 0.02, "eps": (1e-20, 1e-2), "clip_threshold": 0.5, "decay_rate": -0.6, "weight_decay": 0.05},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"lr": None}, "either from lr or from relative_step"),
            ({"relative_step": True}, "either from lr or from relative_step"),
            ({"warmup_init": True}, "warmup_init=True begins a relative step"),
            ({"eps": 1e-3}, "eps must be 2 numbers"),
            ({"clip_threshold": 0.0}, "clip_threshold must be"),
            ({"decay_rate": 0.1}, "decay_rate must be"),
            ({"beta1": 1.0}, r"beta1 must be a number in \[0, 1\)"),
            ({"weight_decay": -0.1}, "weight_decay must be"),
            ({"scale_parameter": 1}, "scale_parameter must be True or False"),
        ),
        golden="AdafactorHF",
        golden_options=lambda hyper: {"lr": None, "relative_step": True, **hyper},
    ),
    OptimizerCase(
        optimizer=optim.T5XAdafactor,
        options={"lr": 1e-2, "factor_map": "matrices", "min_dim_size_to_factor": 8},
        state_bytes=1 / 30,
        quadratic={"lr": 0.1},
        no_decay={},
        other_group={
            "lr": 0.02,
            "epsilon1": 1e-20,
            "epsilon2": 1e-2,
            "clipping_threshold": 0.5,
            "decay_rate": 0.6,
            "step_offset": 1,
            "weight_decay_rate": 1e-3,
            "max_parameter_scale": 0.9,
            "skip_nan_updates": True,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"lr": None}, "lr must be a number"),
            ({"factored": 1, "factor_map": None}, "factored must be True or False"),
            ({"factored": False}, "factored=False leaves nothing for a factor_map"),
            ({"factor_map": "rows"}, "a factor rule must be 'heuristic', 'matrices', None, or a list"),
            ({"factor_map": [("x",)]}, "a rule must be a pair"),
            ({"factor_map": [("(", None)]}, "is no regular expression"),
            ({"factor_map": [("x" * 1001, None)]}, "has 1001 characters; at most 1000 are allowed"),
            ({"factor_map": [(".*", ("row", "cow"))]}, "an axis must be 'none'"),
            ({"factor_map": [(".*", None)]}, "factor_map finds parameters by name, and these have none"),
            ({"factor_map": None}, "parameter 4 of 6 parameters have more than two axes"),
            ({"multiply_by_parameter_scale": 1}, "multiply_by_parameter_scale must be True or False"),
            ({"multiply_by_parameter_scale": [(".*", 1)]}, "must be True or False for"),
            ({"logical_factor_rules": ["embed"]}, "logical_factor_rules must map"),
            ({"min_dim_size_to_factor": -1}, "min_dim_size_to_factor must be"),
            ({"beta1": 1.0}, r"beta1 must be a number in \[0, 1\)"),
            ({"dtype_momentum": "int8"}, "dtype_momentum must be float16, bfloat16"),
            ({"decay_rate": -0.8}, "decay_rate must be"),
            ({"step_offset": 0.5}, "step_offset must be a number in .* of whole numbers"),
            ({"initial_step": -1}, "initial_step must be"),
            ({"clipping_threshold": 0.0}, "clipping_threshold must be"),
            ({"weight_decay_rate": -0.1}, "weight_decay_rate must be"),
            ({"weight_decay_rate": 0.0, "weight_decay_rate_lr_exponent": 2.0}, "could mean no decay"),
            ({"global_norm_clip_threshold": -1.0}, "global_norm_clip_threshold must be"),
            ({"max_parameter_scale": 0.0}, "max_parameter_scale must be"),
            ({"skip_nan_updates": 1}, "skip_nan_updates must be True or False"),
            ({"per_param_step": 1}, "per_param_step must be True or False"),
        ),
        golden="AdafactorT5X",
        golden_options=lambda hyper: {
            # the row's own options step aside
            "factor_map": None,
            "min_dim_size_to_factor": 128,
            # the reference keeps the momentum in the parameter's type unless told otherwise
            "dtype_momentum": None,
            **{{"learning_rate": "lr"}.get(name, name): value for name, value in hyper.items()},
        },
        couplings={"global_norm_clip_threshold": "the norm is that of all gradients together"},
        exceptions={
            "test_a_parameter_whose_gradients_come_late_does_what_it_would_have_done_at_first": (
                "the reference counts steps for all parameters together: averages that begin late begin small"
            ),
        },
    ),
    OptimizerCase(
        optimizer=optim.ScaledAdam,
        state_bytes=8.0002,
        quadratic={"lr": 0.05},
        no_decay={},
        other_group={
            "lr": 0.02,
            "clipping_scale": 0.5,
            "betas": (0.8, 0.95),
            "scalar_lr_scale": 0.2,
            "eps": 1e-3,
            "param_min_rms": 1e-2,
            "param_max_rms": 1.0,
            "scalar_max": 2.0,
            "size_update_period": 1,
            "clipping_update_period": 2,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"clipping_scale": 0.0}, r"clipping_scale must be a number in \(0, inf\) or None"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"scalar_lr_scale": -0.1}, "scalar_lr_scale must be"),
            ({"eps": -1e-8}, "eps must be"),
            ({"param_min_rms": -1.0}, "param_min_rms must be"),
            ({"param_max_rms": 0.0}, "param_max_rms must be"),
            ({"param_max_rms": 1e-6}, "param_max_rms must be at least param_min_rms"),
            ({"scalar_max": 0.0}, "scalar_max must be"),
            ({"size_update_period": 0}, r"size_update_period must be a number in \[1, inf\) of whole numbers"),
            ({"size_update_period": 4.0}, "size_update_period must be"),
            ({"clipping_update_period": 0}, "clipping_update_period must be"),
            ({"clipping_update_period": 1.5}, "clipping_update_period must be"),
        ),
        golden="ScaledAdam",
        couplings={"clipping_scale": "the norm is that of a whole group"},
        exceptions=dict.fromkeys(
            (
                "test_a_parameter_without_gradient_is_untouched_and_keeps_no_state",
                "test_a_parameter_whose_gradients_come_late_does_what_it_would_have_done_at_first",
                "test_a_step_without_any_gradient_changes_nothing",
            ),
            "as in the reference, a gradient that is None counts as zero",
        ),
    ),
    OptimizerCase(
        optimizer=optim.LearnedGradient,
        state_bytes=4 * (1 + (2 * (300**2 + 200**2) + 7) / (300 * 200)),
        quadratic={"lr": 0.1},
        no_decay={"size_lr_scale": 0.0},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "eps": 1e-3,
            "meta_lr_scale": 2.0,
            "lr_est_period": 2,
            "identity_mix": 0.1,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (0.9, 0.8)}, "betas must rise"),
            ({"betas": (0.0, 0.8)}, r"betas\[0\] must be a number in \(0, 1\)"),
            ({"param_min_rms": 0.0}, "param_min_rms must be"),
            ({"param_max_rms": 1e-6}, "param_max_rms must be at least param_min_rms"),
            ({"lr_est_period": 0}, "lr_est_period must be"),
            ({"lr_est_period": 2.5}, "lr_est_period must be"),
            ({"max_step_scale": 0.0}, "max_step_scale must be"),
            ({"meta_norm": "nuclear"}, "meta_norm must be one of frobenius, rms, rms_squared, given 'nuclear'"),
            ({"identity_mix": 1.0}, "identity_mix must be"),
        ),
        golden="LearnedGradient",
    ),
]
