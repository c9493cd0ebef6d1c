"""What the optimizers of the HeavyBall family have in common: options around a rule of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from optim.engine.chain import Chain, ChainOptions
from optim.engine.transform import StateStorage, Transform
from optim.transforms.adam import PalmBeta2
from optim.transforms.clipping import Clipper, Clipping
from optim.transforms.learning_rate import CautiousDecay, CorrectedDecay, DecoupledDecay, WarmupLearningRate
from optim.transforms.momentum import Caution, MarsCorrection
from optim.transforms.update_norm import MIN_PARAM_RMS, OnSphere, UpdateNorm

BETA2 = ("palm", "beta2_scale")
MOVES = (UpdateNorm, CorrectedDecay, DecoupledDecay, CautiousDecay, WarmupLearningRate, OnSphere)
Part = Transform | type[Transform]
"""A transform, or a class of them, which takes its options from the common ones."""


class CommonOptions(ChainOptions, total=False):
    """Options of every `Composable`, with those of `ChainOptions`: all are off.

    Attributes:
        weight_decay: fraction lr · weight_decay that each step takes off the parameter, at least 0.
        cautious_weight_decay: take it only off elements that the update does not move away from zero, see
            `CautiousDecay`.
        corrected_weight_decay: multiply the decay by lr/peak_lr once more, see `CorrectedDecay`.
        peak_lr: the largest lr of the schedule, above 0; None for the lr that the group was built with.
        update_norm: size of a matrix's update: None for its own; param for that of the matrix, so that lr is relative
            to it; or hyperball, which keeps the matrix at its first size too; see `UpdateNorm`.
        min_param_rms: least size of a matrix there, at least 0.
        warmup_steps: steps over which lr rises linearly to its full value, by each parameter's own count.
        gradient_clipping: how gradients are limited: l2, rms_norm, trust_region, mu_law, a_law, global_norm, identity,
            a function of one parameter's tensor, or None; see `Clipping`.
        update_clipping: the same for what leaves the rule; without global_norm.
        caution: leave out what the gradient contradicts, see `Caution`.
        mars: correct gradients by their change since the last step, see `MarsCorrection`; one more tensor of state.
        mars_gamma: strength of that, at least 0.
        palm: let beta2 be 1 − t^-beta2_scale, see `beta2_of`; refused by rules without second moment.
        beta2_scale: above 0.
        storage_dtype: of the statistics that have the parameter's shape: float32, or bfloat16, rounded stochastically,
            see `StateStorage`.
        seed: of the random numbers that the rule or the rounding to bfloat16 draws.

    Examples:
        >>> options: optim.CommonOptions = {"caution": True, "gradient_clipping": "l2", "weight_decay": 0.1}
        >>> optimizer = optim.LaProp([nn.Parameter(torch.ones(2))], **options)
        >>> optimizer.param_groups[0]["gradient_clipping"]
        'l2'
    """

    weight_decay: float
    cautious_weight_decay: bool
    corrected_weight_decay: bool
    peak_lr: float | None
    update_norm: str | None
    min_param_rms: float
    warmup_steps: int
    gradient_clipping: str | Clipper | None
    update_clipping: str | Clipper | None
    caution: bool
    mars: bool
    mars_gamma: float
    palm: bool
    beta2_scale: float
    storage_dtype: str
    seed: int


class Composable(Chain):
    """A rule of transforms with the options of `CommonOptions` around it.

        g  →  MARS  →  gradient clipping  →  the rule  →  update clipping  →  caution  →  its size  →  u
        p ← p (1 − lr · weight_decay),   p ← p − lr · u

    The order is HeavyBall's. MARS stands before the clipping as in its paper. Differs from HeavyBall 1.4.1: caution
    compares with the gradient itself, and not with what MARS and the clipping made of it; MARS has its paper's factor.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        rule: transforms that make a direction of the gradient; a class takes its options from ``common``.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        ending: transforms that move the parameters, with ``weight_decay`` and ``warmup_steps`` as theirs; likewise.
        common: see `CommonOptions`; and options of the classes in ``rule`` and ``ending``.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Examples:
        >>> from optim.transforms.momentum import Momentum
        >>> class AveragedSGD(optim.Composable):
        ...     def __init__(self, params, lr=0.1, beta1=0.9, **common):
        ...         super().__init__(params, [Momentum(beta1)], lr=lr, **common)
        >>> optimizer = AveragedSGD([nn.Parameter(torch.ones(2))], caution=True, weight_decay=0.01)
        >>> {name: optimizer.param_groups[0][name] for name in ("beta1", "caution", "weight_decay")}
        {'beta1': 0.9, 'caution': True, 'weight_decay': 0.01}
    """

    has_beta2: ClassVar[bool] = False
    """Whether the rule takes its β₂ from `beta2_of`, so that ``palm`` does something."""
    refused: ClassVar[Mapping[str, str]] = {"foreach": "what is faster on the device of the parameters is always done"}
    """Options of HeavyBall's class that do nothing here -> why."""
    common_defaults: ClassVar[Mapping[str, Any]] = {
        **{"weight_decay": 0.0, "cautious_weight_decay": False, "corrected_weight_decay": False, "peak_lr": None},
        **{"update_norm": None, "min_param_rms": MIN_PARAM_RMS, "warmup_steps": 0},
        **{"gradient_clipping": None, "update_clipping": None, "caution": False},
        **{"mars": False, "mars_gamma": 0.025, "palm": False, "beta2_scale": 0.8},
        **{"storage_dtype": "float32", "seed": 0},
        **Chain.common_defaults,
    }
    """Common options -> their defaults; a class may have others, and more."""

    @classmethod
    def _shown_defaults(cls) -> Mapping[str, Any]:
        hidden = {*cls.refused, *(() if cls.has_beta2 else BETA2)}
        return {name: value for name, value in cls.common_defaults.items() if name not in hidden}

    def __init__(
        self,
        params: Any,
        rule: Sequence[Part],
        *,
        lr: float | Tensor,
        ending: Sequence[Part] = MOVES,
        **common: Any,
    ) -> None:
        for option in common.keys() & self.refused.keys():
            raise ValueError(f"{type(self).__name__} has no option {option}: {self.refused[option]}. Remove it.")
        for option in () if self.has_beta2 else common.keys() & {*BETA2}:
            raise ValueError(
                f"{type(self).__name__} has no option {option}, a schedule of beta2: it averages no squares. Remove it."
            )
        given: dict[str, Any] = {**self.common_defaults, **common}
        parts = [
            MarsCorrection,
            Clipping(given["gradient_clipping"], "gradient_clipping"),
            *([PalmBeta2] if self.has_beta2 else []),
            *rule,
            Clipping(given["update_clipping"], "update_clipping"),
            Caution,
            StateStorage,
            *ending,
        ]
        transforms = [part.of(given) if isinstance(part, type) else part for part in parts]
        taken = [set(part.allowed) for part in parts if isinstance(part, type)]
        left = common.keys() - {"gradient_clipping", "update_clipping"}.union(*taken) | Chain.common_defaults.keys()
        super().__init__(params, transforms, lr=lr, **{key: given[key] for key in left})
