"""One row per optimizer; the contracts and the reference trajectories run for every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import optim
from optim.engine.chain import Chain
from tests.optim.oracles.adamw import adamw
from tests.optim.oracles.adopt import adopt
from tests.optim.oracles.common import Ending, Rule
from tests.optim.oracles.laprop import laprop
from tests.optim.oracles.lion import lion
from tests.optim.oracles.muon import muon, muon_laprop, nor_muon
from tests.optim.oracles.psgd_kron import psgd_kron
from tests.optim.oracles.rmsprop import rmsprop
from tests.optim.oracles.schedule_free_adamw import divided_by_rms, schedule_free
from tests.optim.oracles.scion import scion
from tests.optim.oracles.soap import soap

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
        golden: the optimizer's name in the reference trajectories; None if it is compared with an oracle instead.
        options: what every test but those on configs gives the class beside its own defaults.
        golden_options: turns the references' arguments into this class's.
        couplings: option of the reference -> why parameters that are given it depend on each other; its trajectories
            are followed with all parameters in one optimizer only.
        oracle: the rule as a slow NumPy form.
        oracle_ending: how the slow form moves the parameter, if not by decay and lr.
        oracle_runs: options under which the oracle is followed.
        not_capturable: the transform that decides by the count of steps, if one does; ``capturable`` is then refused.
        not_shardable: the first transform that needs whole parameters, if one does; sharded ones are then refused.
        exceptions: name of a test -> why it cannot hold for this optimizer; shown when it is skipped.
    """

    optimizer: type[Chain]
    state_bytes: float
    quadratic: Options
    no_decay: Options
    other_group: Options
    bad_options: tuple[tuple[Options, str], ...]
    golden: str | None
    golden_options: Callable[[Options], Options] = dict
    options: Options = field(default_factory=dict)
    couplings: Mapping[str, str] = field(default_factory=dict)
    oracle: Rule | None = None
    oracle_ending: Ending | None = None
    oracle_runs: tuple[Options, ...] = ()
    not_capturable: str = ""
    not_shardable: str = ""
    exceptions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class's name."""
        return self.optimizer.__name__

    @property
    def factory(self) -> Callable[..., Chain]:
        """The class with the row's options."""
        return partial(self.optimizer, **self.options)


MATRIX_OPTIONS: tuple[tuple[Options, str], ...] = (
    ({"lr": -1.0}, "lr must be a number"),
    ({"orthogonalization": "lu"}, "orthogonalization must be one of newton_schulz, polar_express, qr, svd, given 'lu'"),
    ({"ns_steps": 0}, r"ns_steps must be a number in \[1, 100\] of whole numbers"),
    ({"ns_dtype": "int8"}, "ns_dtype must be float16, bfloat16"),
    ({"adjust_lr_fn": "adamw"}, "adjust_lr_fn must be one of original, match_rms_adamw, spectral, given 'adamw'"),
    ({"stacked_matrices": 1}, "stacked_matrices must be True or False"),
    ({"shard_matrix_work": 1}, "shard_matrix_work must be True or False"),
    ({"orthogonalization": "svd", "ns_steps": 3}, "ns_steps and ns_dtype .* do nothing for 'svd'"),
    ({"weight_decay": -0.1}, "weight_decay must be"),
    ({"warmup_steps": 1.5}, "warmup_steps must be"),
)

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
        not_shardable="MaxFactoredRows",
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
        not_shardable="FadingRms",
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
        not_shardable="FactoredMoments",
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
        not_shardable="SkipNan",
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
        not_shardable="ScaledChange",
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
        not_shardable="LogSize",
    ),
    # the HeavyBall family: `CommonOptions` around a rule
    OptimizerCase(
        optimizer=optim.AdamW,
        state_bytes=8,
        quadratic={"lr": 0.05},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "warmup_steps": 3},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"weight_decay": -0.1}, "weight_decay must be"),
            ({"warmup_steps": 1.5}, r"warmup_steps must be a number in \[0, inf\) of whole numbers"),
        ),
        golden=None,
        oracle=adamw,
        oracle_runs=({}, {"betas": (0.8, 0.7), "eps": 0.1}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.RMSprop,
        state_bytes=4,
        quadratic={"lr": 0.02},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "caution": True},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"gradient_clipping": "l3"}, "gradient_clipping must be one of l2, rms_norm, .*given 'l3'"),
        ),
        golden=None,
        oracle=rmsprop,
        oracle_runs=({}, {"betas": (0.9, 0.7), "eps": 0.5}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.LaProp,
        state_bytes=8,
        quadratic={"lr": 0.05},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "palm": True},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (1.0, 0.9)}, r"betas\[0\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"palm": 1}, "palm must be True or False"),
            ({"beta2_scale": 0.0}, r"beta2_scale must be a number in \(0, inf\)"),
        ),
        golden=None,
        oracle=laprop,
        oracle_runs=({}, {"betas": (0.8, 0.7), "eps": 0.1}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.ADOPT,
        state_bytes=8,
        quadratic={"lr": 0.05},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "clip_exponent": None, "update_clipping": "mu_law"},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (1.0, 0.9)}, r"betas\[0\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"clip_exponent": -1.0}, r"clip_exponent must be a number in \[0, inf\) or None"),
        ),
        golden=None,
        oracle=adopt,
        oracle_runs=(
            {},
            {"betas": (0.8, 0.7), "eps": 0.5},
            {"eps": 0.0},
            {"clip_exponent": None},
            {"weight_decay": 0.3, "warmup_steps": 7},
        ),
        exceptions={
            "test_a_parameter_without_gradient_is_untouched_and_keeps_no_state": (
                "the first step of the rule only begins an average: parameters stand still with a gradient too"
            ),
        },
    ),
    OptimizerCase(
        optimizer=optim.Lion,
        state_bytes=4,
        quadratic={"lr": 0.02},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.05, "cautious_weight_decay": True},
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (1.0, 0.9)}, r"betas\[0\] must be a number in \[0, 1\)"),
            ({"caution": 1}, "caution must be True or False"),
            ({"mars_gamma": -1.0}, "mars_gamma must be"),
            ({"update_clipping": "global_norm"}, "would need all updates before the first parameter moves"),
        ),
        golden=None,
        oracle=lion,
        oracle_runs=({}, {"betas": (0.5, 0.7)}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.ScheduleFreeAdamW,
        not_shardable="ScaleByRms",
        state_bytes=8 + 8 / (300 * 200),
        quadratic={"lr": 0.1},
        no_decay={},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "eps": 1e-3,
            "weight_decay": 0.05,
            "warmup_steps": 3,
            "r": 1.0,
            "weight_lr_power": 1.0,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (0.0, 0.9)}, r"betas\[0\] must be a number in \(0, 1\]"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"weight_decay": -0.1}, "weight_decay must be"),
            ({"warmup_steps": 1.5}, r"warmup_steps must be a number in \[0, inf\) of whole numbers"),
            ({"r": -1.0}, r"r must be a number in \[0, inf\)"),
            ({"weight_lr_power": -1.0}, "weight_lr_power must be"),
        ),
        golden=None,
        oracle=divided_by_rms,
        oracle_ending=schedule_free,
        oracle_runs=(
            {},
            {"betas": (0.7, 0.8), "eps": 0.1, "weight_decay": 0.3, "warmup_steps": 7},
            {"r": 1.5, "weight_lr_power": 1.0, "warmup_steps": 40},
        ),
    ),
    OptimizerCase(
        optimizer=optim.SOAP,
        not_capturable="RotatedAdam",
        not_shardable="RotatedAdam",
        # where merged axes are longer than the others together, rounding chooses the basis of the eigenvalue 0
        options={"merge_dims": False},
        state_bytes=4 * (2 + 2 * (300**2 + 200**2) / (300 * 200)),
        quadratic={"lr": 0.05, "precondition_1d": True},
        no_decay={},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "shampoo_beta": 0.8,
            "eps": 1e-3,
            "weight_decay": 0.05,
            "precondition_frequency": 1,
            "normalize_grads": True,
            "correct_bias": False,
            "use_precond_schedule": True,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"shampoo_beta": 1.0}, r"shampoo_beta must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
            ({"precondition_frequency": 0}, r"precondition_frequency must be a number in \[1, inf\) of whole numbers"),
            ({"max_precond_dim": 0}, "max_precond_dim must be"),
            ({"merge_dims": 1}, "merge_dims must be True or False"),
            ({"precondition_1d": 1}, "precondition_1d must be True or False"),
            ({"normalize_grads": 1}, "normalize_grads must be True or False"),
            ({"correct_bias": 1}, "correct_bias must be True or False"),
            ({"split": 1}, "split must be True or False"),
            ({"use_precond_schedule": 1}, "use_precond_schedule must be True or False"),
            ({"use_precond_schedule": True, "precond_scheduler": (0.0, 9)}, r"precond_scheduler\[0\] must be"),
            ({"precond_scheduler": (0.5, 9)}, "does nothing without use_precond_schedule=True"),
        ),
        golden=None,
        oracle=soap,
        oracle_runs=(
            {},
            {"betas": (0.8, 0.7), "shampoo_beta": 0.5, "eps": 0.1, "precondition_frequency": 1},
            {"max_precond_dim": 16, "correct_bias": False},
            {"precondition_1d": True, "precondition_frequency": 10},
            {"normalize_grads": True, "weight_decay": 0.3, "warmup_steps": 7},
            {"use_precond_schedule": True, "precond_scheduler": (1.0, 1.0), "precondition_frequency": 1},
        ),
        exceptions={
            "test_a_parameter_without_gradient_is_untouched_and_keeps_no_state": (
                "the first step prepares the basis: matrices stand still with a gradient too"
            ),
        },
    ),
    OptimizerCase(
        optimizer=optim.PSGDKron,
        not_capturable="KronPreconditioner",
        not_shardable="KronPreconditioner",
        state_bytes=4 * (1 + (300 * 301 + 200 * 201) / 2 / (300 * 200)),
        quadratic={"lr": 0.02},
        no_decay={},
        other_group={
            "lr": 0.02,
            "beta": 0.8,
            "weight_decay": 0.05,
            "preconditioner_update_probability": 0.6,
            "momentum_into_precond_update": False,
            "stochastic_schedule": False,
            "delayed": True,
            "precond_lr": 0.3,
            "seed": 5,
        },
        bad_options=(
            ({"lr": -1.0}, "lr must be a number"),
            ({"beta": 1.0}, r"beta must be a number in \[0, 1\)"),
            (
                {"preconditioner_update_probability": 0.0},
                r"preconditioner_update_probability must be a number in \(0, 1\]",
            ),
            ({"max_size_triangular": 0}, "max_size_triangular must be"),
            ({"min_ndim_triangular": 0}, "min_ndim_triangular must be"),
            ({"memory_save_mode": "smart_one_diag"}, "memory_save_mode must be one of None, one_diag, all_diag"),
            ({"q_dtype": "float16"}, "q_dtype must be one of float32, bfloat16, given 'float16'"),
            ({"merge_dims": 1}, "merge_dims must be True or False"),
            ({"split": 1}, "split must be True or False"),
            ({"exp_avg_input": False, "momentum_into_precond_update": False}, "leaves no momentum"),
            ({"precond_init_scale": 0.0}, "precond_init_scale must be"),
            ({"precond_lr": 0.0}, "precond_lr must be"),
            ({"seed": -1}, "seed must be"),
        ),
        golden=None,
        oracle=psgd_kron,
        oracle_runs=(
            {},
            {"memory_save_mode": "one_diag", "cached": True, "preconditioner_update_probability": 0.5},
            {"memory_save_mode": "all_diag", "weight_decay": 0.3, "warmup_steps": 7},
            {"delayed": True, "store_triu_as_line": False, "precond_init_scale": 0.3, "seed": 7},
            {"exp_avg_input": False, "min_ndim_triangular": 1, "precond_lr": 0.5},
            {"momentum_into_precond_update": False, "max_size_triangular": 15, "beta": 0.5},
        ),
        exceptions=dict.fromkeys(
            (
                "test_a_generator_and_named_parameters_do_the_same_as_a_list",
                "test_groups_with_different_options_act_like_optimizers_of_their_own",
                "test_dtypes_may_mix_within_a_group",
                "test_a_state_loads_with_or_without_names",
            ),
            "the probes of a parameter depend on its name, or without names on its place and that of its group",
        ),
    ),
    OptimizerCase(
        optimizer=optim.Muon,
        not_shardable="Orthogonalize",
        state_bytes=4,
        quadratic={"lr": 0.002},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.99), "nesterov": False, "ns_steps": 7, "weight_decay": 0.05},
        bad_options=(
            *MATRIX_OPTIONS,
            ({"betas": (1.0, 0.99)}, r"betas\[0\] must be a number in \[0, 1\)"),
            ({"betas": (0.9, 0.95)}, r"betas\[1\] does nothing in Muon and must be 0.99, given 0.95"),
            ({"nesterov": 1}, "nesterov must be True or False"),
        ),
        golden=None,
        oracle=muon,
        oracle_runs=(
            {},
            {"nesterov": False, "betas": (0.5, 0.99), "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3},
            {"orthogonalization": "polar_express", "ns_steps": 9, "warmup_steps": 7, "adjust_lr_fn": "spectral"},
            {"orthogonalization": "svd", "stacked_matrices": True},
            {"orthogonalization": "qr"},
        ),
    ),
    OptimizerCase(
        optimizer=optim.MuonLaProp,
        not_shardable="Orthogonalize",
        state_bytes=8,
        quadratic={"lr": 0.05},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "orthogonalization": "qr", "weight_decay": 0.05},
        bad_options=(
            *MATRIX_OPTIONS,
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"eps": -1e-8}, "eps must be"),
        ),
        golden=None,
        oracle=muon_laprop,
        oracle_runs=({}, {"betas": (0.8, 0.7), "eps": 0.1, "weight_decay": 0.3, "stacked_matrices": True}),
    ),
    OptimizerCase(
        optimizer=optim.NorMuon,
        not_shardable="Orthogonalize",
        state_bytes=4 * (1 + 1 / 200),
        quadratic={"lr": 0.002},
        no_decay={},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "orthogonalization": "polar_express"},
        bad_options=(
            *MATRIX_OPTIONS,
            ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number in \[0, 1\)"),
            ({"eps": 0.0}, "eps must be"),
            ({"nesterov": 1}, "nesterov must be True or False"),
        ),
        golden=None,
        oracle=nor_muon,
        oracle_runs=(
            {},
            {"nesterov": False, "betas": (0.5, 0.7), "eps": 0.1, "adjust_lr_fn": "original", "weight_decay": 0.3},
            {"stacked_matrices": True, "orthogonalization": "svd"},
        ),
    ),
    OptimizerCase(
        optimizer=optim.Scion,
        not_shardable="NormBall",
        state_bytes=4,
        quadratic={"lr": 0.01, "weight_decay": 0.0},
        no_decay={"weight_decay": 0.0},
        other_group={"lr": 0.02, "beta1": 0.5, "norm": "sign", "scale": 3.0, "weight_decay": 0.5},
        bad_options=(
            *MATRIX_OPTIONS,
            ({"beta1": 1.0}, "beta1 must be"),
            ({"norm": "rows"}, "norm must be one of auto, spectral, sign, row, embedding, given 'rows'"),
            ({"scale": 0.0}, "scale must be"),
        ),
        golden=None,
        oracle=scion,
        oracle_runs=(
            {},
            {"norm": "sign", "scale": 3.0, "weight_decay": 0.0},
            {"norm": "row", "beta1": None, "stacked_matrices": True},
            {"norm": "embedding", "beta1": 0.5},
        ),
    ),
]

# options of `CommonOptions` that every optimizer with an oracle has to take, each run on its own and all together
CLIPPINGS = ("l2", "rms_norm", "trust_region", "mu_law", "a_law")
PALM_RUN = {"palm": True, "beta2_scale": 0.6}
COMMON_RUNS: tuple[Options, ...] = (
    *({"gradient_clipping": how} for how in (*CLIPPINGS, "global_norm", "identity")),
    *({"update_clipping": how} for how in (*CLIPPINGS, "identity")),
    {"caution": True},
    {"weight_decay": 0.3, "cautious_weight_decay": True},
    {"mars": True, "mars_gamma": 0.1},
    {"mars": True, "mars_gamma": 0.1, "gradient_clipping": "global_norm"},
    PALM_RUN,
    {
        **PALM_RUN,
        "mars": True,
        "mars_gamma": 0.1,
        "gradient_clipping": "l2",
        "update_clipping": "rms_norm",
        "caution": True,
        "weight_decay": 0.3,
        "cautious_weight_decay": True,
        "warmup_steps": 5,
    },
)
