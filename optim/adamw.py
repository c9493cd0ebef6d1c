"""AdamW and AdamC with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.transforms.adam import Adam


class AdamW(Composable):
    """Divide the averaged gradient by the root of its averaged square; decay the weights separately.

    Bit for bit torch's fused class, in 1.1 times its time, as long as no common option is on.

    Use: as the baseline, with `WarmupCosine`.

    State: 8 bytes per float32 parameter: the averages m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2. The defaults
        are the paper's; ``weight_decay``, which it leaves open, is that of torch.optim.AdamW.
        Differs from HeavyBall: eps is added to the root, not a floor of it; betas[1] is always used.

    Examples:
        >>> param = nn.Parameter(torch.ones(2))
        >>> optimizer = optim.AdamW([param], lr=0.1)
        >>> param.grad = torch.tensor([3.0, -0.2])
        >>> optimizer.step()
        >>> param.data  # the gradient moves both by 0.1, the decay takes 0.1 %
        tensor([0.8990, 1.0990])
    """

    has_beta2: ClassVar = True
    common_defaults: ClassVar = {**Composable.common_defaults, "weight_decay": 0.01}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [Adam(betas, eps)], lr=lr, **common)


class AdamC(AdamW):
    """`AdamW` whose decay falls with the square of lr: norms of gradients stay as they are while a schedule ends.

    Nothing but ``corrected_weight_decay=True``, an option that every rule with decoupled decay has: see `decay_of`.
    Layers that no normalization follows, such as the output layer, belong to a group with False.

    Use: with a schedule that decays far, `WarmupCosine` or `WarmupLinear`, and weight decay of 0.05 or more.

    State: 8 bytes per float32 parameter, as `AdamW`.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Defazio 2025, "Why Gradients Rapidly Increase Near the End of Training", arXiv:2506.02285, AdamC. The
        defaults are `AdamW`'s.

    Examples:
        >>> param = nn.Parameter(torch.ones(1))
        >>> optimizer = optim.AdamC([param], lr=0.1, weight_decay=0.5)
        >>> optimizer.param_groups[0]["lr"] = 0.01  # what a schedule does
        >>> param.grad = torch.zeros(1)
        >>> optimizer.step()
        >>> param.data  # 0.01 · 0.5, of which 0.01/0.1 is left
        tensor([0.9995])
    """

    common_defaults: ClassVar = {**AdamW.common_defaults, "corrected_weight_decay": True}
