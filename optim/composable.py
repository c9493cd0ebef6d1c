"""What the optimizers of the HeavyBall family have in common: options around a rule of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

from torch import Tensor

from optim.engine.chain import Chain
from optim.engine.transform import StateStorage, Transform
from optim.transforms.adam import PalmBeta2
from optim.transforms.clipping import Clipper, Clipping
from optim.transforms.learning_rate import CautiousDecay, DecoupledDecay, WarmupLearningRate
from optim.transforms.momentum import Caution, MarsCorrection


class CommonOptions(TypedDict, total=False):
    """Options of every `Composable`; all are off by default.

    Attributes:
        weight_decay: fraction lr · weight_decay that each step takes off the parameter, at least 0; default 0.
        cautious_weight_decay: take it only off elements that the update does not move away from zero, see
            `CautiousDecay`.
        warmup_steps: steps over which lr rises linearly to its full value, by each parameter's own count; default 0.
        gradient_clipping: how gradients are limited: l2, rms_norm, trust_region, mu_law, a_law, global_norm, identity,
            a function of one parameter's tensor, or None; see `Clipping`.
        update_clipping: the same for what leaves the rule; without global_norm.
        caution: leave out what the gradient contradicts, see `Caution`.
        mars: correct gradients by their change since the last step, see `MarsCorrection`; one more tensor of state.
        mars_gamma: strength of that, at least 0; default 0.025.
        palm: let beta2 be 1 − t^-beta2_scale, see `beta2_of`; refused by rules without second moment.
        beta2_scale: above 0; default 0.8.
        storage_dtype: of the statistics that have the parameter's shape, see `StateStorage`; default "float32".
        seed: of the random numbers that the rule or the rounding to bfloat16 draws; default 0.
        maximize: ascend instead of descend.
        skip_nonfinite: see `Chain`.
        capturable: see `Chain`.

    Examples:
        >>> options: optim.CommonOptions = {"caution": True, "gradient_clipping": "l2", "weight_decay": 0.1}
        >>> optimizer = optim.LaProp([nn.Parameter(torch.ones(2))], **options)
        >>> optimizer.param_groups[0]["gradient_clipping"]
        'l2'
    """

    weight_decay: float
    cautious_weight_decay: bool
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
    maximize: bool
    skip_nonfinite: bool
    capturable: bool


class Composable(Chain):
    """A rule of transforms with the options of `CommonOptions` around it.

        g  →  MARS  →  gradient clipping  →  the rule  →  update clipping  →  caution  →  u
        p ← p (1 − lr · weight_decay),   p ← p − lr · u

    The order is HeavyBall's. MARS stands before the clipping as in its paper. Differs from HeavyBall 1.4.1: caution
    compares with the gradient itself, and not with what MARS and the clipping made of it; MARS has its paper's factor.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        rule: transforms that make a direction of the gradient.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        ending: transforms that move the parameters instead, with ``weight_decay`` and ``warmup_steps`` as theirs.
        common: see `CommonOptions`.

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

    def __init__(
        self,
        params: Any,
        rule: Sequence[Transform],
        *,
        lr: float | Tensor,
        ending: Sequence[Transform] = (),
        **common: Unpack[CommonOptions],
    ) -> None:
        given: dict[str, Any] = {**common}
        for option in given.keys() & self.refused.keys():
            raise ValueError(f"{type(self).__name__} has no option {option}: {self.refused[option]}. Remove it.")
        for option in () if self.has_beta2 else given.keys() & {"palm", "beta2_scale"}:
            raise ValueError(
                f"{type(self).__name__} has no option {option}, a schedule of beta2: it averages no squares. Remove it."
            )
        take = given.pop
        transforms = [
            MarsCorrection(take("mars", False), take("mars_gamma", 0.025)),
            Clipping(take("gradient_clipping", None), "gradient_clipping"),
            *([PalmBeta2(take("palm", False), take("beta2_scale", 0.8))] if self.has_beta2 else []),
            *rule,
            Clipping(take("update_clipping", None), "update_clipping"),
            Caution(take("caution", False)),
            StateStorage(take("storage_dtype", "float32"), take("seed", 0)),
        ]
        if not ending:
            weight_decay = take("weight_decay", 0.0)
            decays = [DecoupledDecay(weight_decay), CautiousDecay(weight_decay, take("cautious_weight_decay", False))]
            ending = [*decays, WarmupLearningRate(take("warmup_steps", 0))]
        super().__init__(params, [*transforms, *ending], lr=lr, **given)
