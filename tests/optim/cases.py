"""One row per optimizer; the contracts and the reference trajectories run for every row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

import optim
from optim.composable import Composable
from optim.engine.chain import Chain
from tests.optim.oracles import (
    Ending,
    Rule,
    adamw,
    ademamix,
    adopt,
    divided_by_rms,
    laprop,
    lion,
    muon,
    muon_laprop,
    nor_muon,
    prodigy,
    psgd_kron,
    rmsprop,
    schedule_free,
    schedule_free_plus,
    scion,
    shampoo,
    soap,
)

Options = dict[str, Any]


@dataclass(frozen=True)
class OptimizerCase:
    """What the tests have to know about one optimizer.

    Attributes:
        optimizer: the class.
        state_bytes: optimizer state per element of a large float32 matrix.
        quadratic: options that solve a badly conditioned quadratic within 300 steps.
        other_group: options that differ from the defaults, for a second parameter group.
        no_decay: options under which lr alone moves a parameter.
        bad_options: values to be refused, each by itself, beside those of `BAD_OPTIONS` and what is of another type.
        golden: the optimizer's name in the reference trajectories; None if it is compared with an oracle instead.
        options: what every test but those on configs gives the class beside its own defaults.
        golden_options: turns the references' arguments into this class's.
        couplings: option of the reference -> why parameters that are given it depend on each other; its trajectories
            are followed with all parameters in one optimizer only.
        oracle: the rule as a slow NumPy form.
        oracle_ending: how the slow form moves the parameter, if not by decay and lr.
        oracle_runs: options under which the oracle is followed.
        not_capturable: the transform that decides by the count of steps, if any; ``capturable`` is then refused.
        not_shardable: the first transform that needs whole parameters, if any; sharded ones then have owners.
        exceptions: name of a test or a check -> why it cannot hold for this optimizer; shown when it is skipped.
    """

    optimizer: type[Chain]
    state_bytes: float
    quadratic: Options
    other_group: Options
    no_decay: Options = field(default_factory=dict)
    bad_options: Options = field(default_factory=dict)
    golden: str | None = None
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

    @property
    def option_sets(self) -> list[Options]:
        """No options, and for the HeavyBall family all common ones that the optimizer has."""
        known = inspect.signature(self.optimizer).parameters if issubclass(self.optimizer, Composable) else ()
        return [{}, *({key: run[key] for key in run if key in known} for run in COMMON_RUNS if known)]


# values that every optimizer refuses if it has the option
BAD_OPTIONS = (
    *(("lr", value) for value in (-1.0, float("nan"), float("inf"), torch.tensor([0.1, 0.2]))),
    *(("betas", (0.9, 1.0)), ("eps", -1e-8), ("weight_decay", -0.1), ("warmup_steps", 1.5), ("seed", 0.5)),
    *(("beta2_scale", 0.0), ("mars_gamma", -1.0), ("update_clipping", "global_norm"), ("ns_steps", 0)),
    *(("update_norm", "l2"), ("min_param_rms", -1.0)),
)

CASES = [
    OptimizerCase(
        optimizer=optim.Eve,
        state_bytes=8,
        quadratic={"lr": 0.05, "weight_decay": 0.0},
        no_decay={"weight_decay": 0.0},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "target_rms": 0.3},
        bad_options={"weight_decay": 0.11, "target_rms": 0.0},
        golden="Eve",
    ),
    OptimizerCase(
        optimizer=optim.MaxFactor,
        state_bytes=1 / 30,
        quadratic={"lr": 0.05, "weight_decay": 0.0},
        no_decay={"weight_decay": 0.0, "min_lr": 0.0},
        other_group={"lr": 0.02, "gamma": 0.9, "eps": (1e-8, 1e-3), "weight_decay": 0.05, "d": 0.5, "max_norm": False},
        bad_options={
            "beta2_decay": 0.1,
            "eps": (0.0, 1e-3),
            "d": 0.0,
            "gamma": 1.0,
            "min_lr": -1.0,
            "scalar_boost": 0.0,
        },
        golden="MaxFactor",
        not_shardable="MaxFactoredRows",
    ),
    OptimizerCase(
        optimizer=optim.Cain,
        state_bytes=8.0334,
        quadratic={"lr": 0.1},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "eps": 1e-3,
            "scale_speed": 0.2,
            "rms_eps": 1e-3,
            "param_max": 1.0,
        },
        bad_options={"scale_speed": 1.0, "rms_eps": 0.1, "param_max": 0.1},
        golden="Cain",
        not_shardable="FadingRms",
        golden_options=lambda hyper: {
            **{name: value for name, value in hyper.items() if name != "honor_scale_speed"},
            "reference_bugs": not hyper.get("honor_scale_speed", False),
        },
    ),
    OptimizerCase(
        optimizer=optim.Adafactor,
        options={"lr": 1e-2, "relative_step": False},
        state_bytes=1 / 30,
        quadratic={"lr": 0.1},
        other_group={"lr": 0.02, "eps": (1e-20, 1e-2), "clip_threshold": 0.5, "decay_rate": -0.6, "weight_decay": 0.05},
        bad_options={
            "lr": None,
            "relative_step": True,
            "warmup_init": True,
            "clip_threshold": 0.0,
            "decay_rate": 0.1,
            "beta1": 1.0,
        },
        golden="AdafactorHF",
        not_shardable="FactoredMoments",
        golden_options=lambda hyper: {"lr": None, "relative_step": True, **hyper},
    ),
    OptimizerCase(
        optimizer=optim.T5XAdafactor,
        options={"lr": 1e-2, "factor_map": "matrices", "min_dim_size_to_factor": 8},
        state_bytes=1 / 30,
        quadratic={"lr": 0.1},
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
        bad_options={
            "lr": None,
            "factored": False,
            "factor_map": None,
            "min_dim_size_to_factor": -1,
            "beta1": 1.0,
            "decay_rate": -0.8,
            "step_offset": 0.5,
            "initial_step": -1,
            "clipping_threshold": 0.0,
            "weight_decay_rate": -0.1,
            "max_parameter_scale": 0.0,
        },
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
        bad_options={
            "clipping_scale": 0.0,
            "scalar_lr_scale": -0.1,
            "param_min_rms": -1.0,
            "param_max_rms": 1e-6,
            "scalar_max": 0.0,
            "size_update_period": 4.0,
            "clipping_update_period": 0,
        },
        golden="ScaledAdam",
        couplings={"clipping_scale": "the norm is that of a whole group"},
        exceptions=dict.fromkeys(
            (
                "test_a_parameter_without_gradient_keeps_no_state",
                "test_a_parameter_whose_gradients_come_late_does_what_it_would_have_done_at_first",
            ),
            "as in the reference, a gradient that is None counts as zero",
        ),
    ),
    OptimizerCase(
        optimizer=optim.Rubik,
        options={"compute_dtype": None},
        state_bytes=4 * (1 + 302 / (300 * 200)),
        quadratic={"lr": 0.05, "scale_limits": (1e-3, 10.0)},
        no_decay={"scalar_scale": 0.0, "scale_limits": (0.03, 1.0)},
        other_group={
            "lr": 0.02,
            "beta1": 0.8,
            "beta2": 0.9,
            "eps": 1e-3,
            "scale_limits": (0.1, 0.2),
            "scalar_scale": 0.1,
            "adam_beta1": 0.9,
            "adam_beta2": 0.9,
            "scale_momentum": 0.5,
        },
        bad_options={
            "beta1": 1.0,
            "beta2": -0.1,
            "scale_limits": (0.2, 0.1),
            "scalar_scale": -0.1,
            "adam_beta1": 1.0,
            "adam_beta2": 1.0,
            "scale_momentum": 1.0,
            "compute_dtype": "int8",
        },
        golden="Rubik",
        not_shardable="RubikChange",
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
        bad_options={
            "betas": (0.9, 0.8),
            "param_min_rms": 0.0,
            "lr_est_period": 0,
            "max_step_scale": 0.0,
            "identity_mix": 1.0,
        },
        golden="LearnedGradient",
        not_shardable="LogSize",
    ),
    # the HeavyBall family: `CommonOptions` around a rule
    OptimizerCase(
        optimizer=optim.AdamW,
        state_bytes=8,
        quadratic={"lr": 0.05},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "warmup_steps": 3},
        oracle=adamw,
        oracle_runs=({}, {"betas": (0.8, 0.7), "eps": 0.1}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.AdamC,
        state_bytes=8,
        quadratic={"lr": 0.05},
        no_decay={"weight_decay": 0.0},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.05, "peak_lr": 0.1, "warmup_steps": 3},
        bad_options={"peak_lr": 0.0, "corrected_weight_decay": 1},
        oracle=adamw,
        oracle_runs=(
            {"weight_decay": 0.3},
            {"weight_decay": 0.3, "peak_lr": 0.01, "warmup_steps": 7},
            {"weight_decay": 0.3, "peak_lr": 0.01, "cautious_weight_decay": True},
        ),
    ),
    OptimizerCase(
        optimizer=optim.AdEMAMix,
        state_bytes=12,
        quadratic={"lr": 0.02, "betas": (0.9, 0.99, 0.99)},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9, 0.99),
            "alpha": 5.0,
            "alpha_warmup": 4,
            "beta3_warmup": 3,
            "eps": 1e-3,
            "weight_decay": 0.05,
        },
        bad_options={"betas": (0.9, 0.9, 1.0), "alpha": -1.0, "alpha_warmup": 0, "beta3_warmup": 0.5},
        oracle=ademamix,
        oracle_runs=(
            {},
            {"betas": (0.0, 0.7, 0.99), "eps": 0.1, "weight_decay": 0.3, "warmup_steps": 7},
            {"alpha": 8.0, "alpha_warmup": 12, "beta3_warmup": 20},
        ),
    ),
    OptimizerCase(
        optimizer=optim.Prodigy,
        not_shardable="EstimatedDistance",
        state_bytes=16,
        quadratic={},
        no_decay={"d0": 1.0},
        other_group={"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05},
        bad_options={"beta3": 1.0, "d0": 0.0, "d_coef": 0.0, "growth_rate": 1.0},
        oracle=prodigy,
        oracle_runs=(
            {},
            {"d0": 1e-3, "d_coef": 2.0, "betas": (0.8, 0.7), "eps": 0.1, "weight_decay": 0.3},
            {"d0": 1e-3, "beta3": 0.8, "growth_rate": 1.3, "use_bias_correction": True},
            {"d0": 1e-2, "safeguard_warmup": True, "warmup_steps": 7},
        ),
        exceptions=dict.fromkeys(
            (
                "test_dtypes_may_mix_within_a_group",
                "test_a_parameter_whose_gradients_come_late_does_what_it_would_have_done_at_first",
                "test_every_optimizer_does_what_it_does_after_the_backward_pass",
                "test_small_parameters_of_one_shape_agree_up_to_rounding",
            ),
            "the estimate is that of all parameters together",
        ),
    ),
    OptimizerCase(
        optimizer=optim.RMSprop,
        state_bytes=4,
        quadratic={"lr": 0.02},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "caution": True},
        oracle=rmsprop,
        oracle_runs=({}, {"betas": (0.9, 0.7), "eps": 0.5}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.LaProp,
        state_bytes=8,
        quadratic={"lr": 0.05},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05, "palm": True},
        oracle=laprop,
        oracle_runs=({}, {"betas": (0.8, 0.7), "eps": 0.1}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.ADOPT,
        state_bytes=8,
        quadratic={"lr": 0.05},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "clip_exponent": None, "update_clipping": "mu_law"},
        bad_options={"clip_exponent": -1.0},
        oracle=adopt,
        oracle_runs=(
            {},
            {"betas": (0.8, 0.7), "eps": 0.5},
            {"eps": 0.0},
            {"clip_exponent": None},
            {"weight_decay": 0.3, "warmup_steps": 7},
        ),
    ),
    OptimizerCase(
        optimizer=optim.Lion,
        state_bytes=4,
        quadratic={"lr": 0.02},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.05, "cautious_weight_decay": True},
        oracle=lion,
        oracle_runs=({}, {"betas": (0.5, 0.7)}, {"weight_decay": 0.3, "warmup_steps": 7}),
    ),
    OptimizerCase(
        optimizer=optim.ScheduleFreeAdamW,
        state_bytes=8 + 8 / (300 * 200),
        quadratic={"lr": 0.1},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "eps": 1e-3,
            "weight_decay": 0.05,
            "warmup_steps": 3,
            "r": 1.0,
            "weight_lr_power": 1.0,
        },
        bad_options={"betas": (0.0, 0.9), "r": -1.0, "weight_lr_power": -1.0},
        oracle=divided_by_rms,
        oracle_ending=schedule_free,
        oracle_runs=(
            {},
            {"betas": (0.7, 0.8), "eps": 0.1, "weight_decay": 0.3, "warmup_steps": 7},
            {"r": 1.5, "weight_lr_power": 1.0, "warmup_steps": 40},
        ),
    ),
    OptimizerCase(
        optimizer=optim.ScheduleFreePlus,
        options={"lr": 0.01},
        not_shardable="PolyakStep",
        state_bytes=12 + 8 / (300 * 200),
        quadratic={"lr": 0.1},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "sf_beta1": 0.8,
            "sf_beta1_max": 0.9,
            "sf_beta1_anneal_steps": 3,
            "c_warmup": 2,
            "eps": 1e-3,
            "weight_decay": 0.5,
            "r": 1.0,
            "weight_lr_power": 1.0,
        },
        bad_options={
            "sf_beta1": 1.0,
            "sf_beta1_max": 0.0,
            "sf_beta1_anneal_steps": -1,
            "c_warmup": 0.5,
            "polyak_beta": 1.0,
            "r": -1.0,
        },
        oracle=adamw,
        oracle_ending=schedule_free_plus,
        oracle_runs=(
            {},
            {"betas": (0.7, 0.8), "eps": 0.1, "weight_decay": 5.0, "warmup_steps": 7},
            {"r": 1.5, "weight_lr_power": 1.0, "c_warmup": 4, "sf_beta1_anneal_steps": 12, "sf_beta1": 0.6},
        ),
        exceptions=dict.fromkeys(
            (
                "test_every_optimizer_does_what_it_does_after_the_backward_pass",
                "test_small_parameters_of_one_shape_agree_up_to_rounding",
            ),
            "the rate is that of all parameters together",
        )
        | {"closure": "its loss sets the rate: a step without it makes another update"},
    ),
    OptimizerCase(
        optimizer=optim.SOAP,
        not_capturable="RotatedAdam",
        not_shardable="RotatedAdam",
        # where merged axes are longer than the others together, rounding chooses the basis of the eigenvalue 0
        options={"merge_dims": False},
        state_bytes=4 * (2 + 2 * (300**2 + 200**2) / (300 * 200)),
        quadratic={"lr": 0.05, "precondition_1d": True},
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
        bad_options={
            "shampoo_beta": 1.0,
            "precondition_frequency": 0,
            "max_precond_dim": 0,
            "precond_scheduler": (0.5, 9),
        },
        oracle=soap,
        oracle_runs=(
            {},
            {"betas": (0.8, 0.7), "shampoo_beta": 0.5, "eps": 0.1, "precondition_frequency": 1},
            {"max_precond_dim": 16, "correct_bias": False},
            {"precondition_1d": True, "precondition_frequency": 10},
            {"normalize_grads": True, "weight_decay": 0.3, "warmup_steps": 7},
            {"use_precond_schedule": True, "precond_scheduler": (1.0, 1.0), "precondition_frequency": 1},
            {"kl_factors": True, "precondition_frequency": 3, "shampoo_beta": 0.5},
            {"kl_factors": True, "max_precond_dim": 16, "correct_bias": False},
            {"orthogonalization": "polar_express", "kl_factors": True, "weight_decay": 0.3},
        ),
    ),
    OptimizerCase(
        optimizer=optim.Shampoo,
        not_capturable="KroneckerRoots",
        not_shardable="KroneckerRoots",
        state_bytes=4 * (2 + 2 * (300**2 + 200**2) / (300 * 200)),
        quadratic={"lr": 0.05},
        other_group={
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "shampoo_beta": 0.8,
            "eps": 1e-3,
            "matrix_eps": 1e-3,
            "weight_decay": 0.05,
            "precondition_frequency": 1,
            "exponent": 0.4,
            "one_sided": True,
        },
        bad_options={
            "shampoo_beta": 1.0,
            "matrix_eps": 0.0,
            "exponent": 0.0,
            "graft": "sgd",
            "precondition_frequency": 0,
            "max_precond_dim": 0,
        },
        oracle=shampoo,
        oracle_runs=(
            {},
            {"graft": None, "betas": (0.0, 0.7), "shampoo_beta": 0.5, "precondition_frequency": 1},
            {"one_sided": True, "precondition_frequency": 3, "weight_decay": 0.3, "warmup_steps": 7},
            {"exponent": 0.4, "matrix_eps": 1e-3, "eps": 0.1, "max_precond_dim": 16},
        ),
    ),
    OptimizerCase(
        optimizer=optim.PSGDKron,
        not_capturable="KronPreconditioner",
        not_shardable="KronPreconditioner",
        # the slow form merges no axes
        options={"merge_dims": False},
        state_bytes=4 * (1 + (300 * 301 + 200 * 201) / 2 / (300 * 200)),
        quadratic={"lr": 0.02},
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
        bad_options={
            "beta": 1.0,
            "preconditioner_update_probability": 0.0,
            "max_size_triangular": 0,
            "min_ndim_triangular": 0,
            "q_dtype": "float16",
            "precond_init_scale": 0.0,
            "precond_lr": 0.0,
            "seed": -1,
        },
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
            ),
            "the probes of a parameter depend on its name, or without names on its place and that of its group",
        ),
    ),
    OptimizerCase(
        optimizer=optim.Muon,
        not_shardable="Orthogonalize",
        state_bytes=4,
        quadratic={"lr": 0.002},
        other_group={"lr": 0.02, "betas": (0.8, 0.99), "nesterov": False, "ns_steps": 7, "weight_decay": 0.05},
        bad_options={"betas": (0.9, 0.95)},
        oracle=muon,
        oracle_runs=(
            {},
            {"nesterov": False, "betas": (0.5, 0.99), "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3},
            {"orthogonalization": "polar_express", "ns_steps": 9, "warmup_steps": 7, "adjust_lr_fn": "spectral"},
            {"orthogonalization": "svd", "stacked_matrices": True, "equilibrate": "rows"},
            {"orthogonalization": "qr"},
            {"equilibrate": "both", "nesterov": False},
            {"equilibrate": "columns", "adjust_lr_fn": "match_rms_adamw"},
        ),
    ),
    OptimizerCase(
        optimizer=optim.MuonLaProp,
        not_shardable="Orthogonalize",
        state_bytes=8,
        quadratic={"lr": 0.05},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "orthogonalization": "qr", "weight_decay": 0.05},
        oracle=muon_laprop,
        oracle_runs=({}, {"betas": (0.8, 0.7), "eps": 0.1, "weight_decay": 0.3, "stacked_matrices": True}),
    ),
    OptimizerCase(
        optimizer=optim.NorMuon,
        not_shardable="Orthogonalize",
        state_bytes=4 * (1 + 1 / 200),
        quadratic={"lr": 0.002},
        other_group={"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "orthogonalization": "polar_express"},
        bad_options={"eps": 0.0},
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
        bad_options={"beta1": 1.0, "scale": 0.0},
        oracle=scion,
        oracle_runs=(
            {},
            {"norm": "sign", "scale": 3.0, "weight_decay": 0.0},
            {"norm": "row", "beta1": None, "stacked_matrices": True},
            {"norm": "embedding", "beta1": 0.5},
        ),
    ),
]

FAMILY = [case for case in CASES if issubclass(case.optimizer, Composable)]
each_of_the_family = pytest.mark.parametrize("row", FAMILY, ids=lambda case: case.name)

# options of `CommonOptions`: each alone with one rule, and all together with every rule
CLIPPINGS = ("l2", "rms_norm", "trust_region", "mu_law", "a_law", "identity")
PALM_RUN = {"palm": True, "beta2_scale": 0.6}
SINGLE_RUNS: tuple[Options, ...] = (
    *({"gradient_clipping": how} for how in (*CLIPPINGS, "global_norm")),
    *({"update_clipping": how} for how in CLIPPINGS),
    *(
        {"caution": True},
        {"weight_decay": 0.3, "cautious_weight_decay": True},
        {"mars": True, "mars_gamma": 0.1},
        {"update_norm": "param", "min_param_rms": 1.0, "weight_decay": 0.3},
        PALM_RUN,
    ),
)
COMMON_RUNS: tuple[Options, ...] = (
    {"update_norm": "hyperball", "weight_decay": 0.3, "warmup_steps": 5},
    {"mars": True, "mars_gamma": 0.1, "gradient_clipping": "global_norm", "update_clipping": "trust_region"},
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
