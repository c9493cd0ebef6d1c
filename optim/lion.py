"""Lion with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.param_batch import ParamBatch, Update
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS


class Lion(Composable):
    """Move every element by lr, along the sign of an averaged gradient.

    The rule is `SignOfMomentum`. Such steps are larger than Adam's.

    Use: if state must be small; at 3 to 10 times less lr than AdamW's and as many times more weight decay.

    State: 4 bytes per float32 parameter: the average m (``exp_avg``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: weight of m in the direction, and decay of m, each in [0, 1).
        common: see `CommonOptions`; without ``palm``, as there is no second moment.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675, algorithm 2.
        The defaults are those of the authors' code, github.com/google/automl, lion/lion_pytorch.py.

    Examples:
        >>> param = nn.Parameter(torch.zeros(3))
        >>> optimizer = optim.Lion([param], lr=0.1)
        >>> param.grad = torch.tensor([0.001, -1000.0, 0.0])
        >>> optimizer.step()
        >>> param.data
        tensor([-0.1000,  0.1000,  0.0000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [SignOfMomentum(betas)], lr=lr, **common)


class SignOfMomentum(Transform):
    """Replaces an update by the sign of an average in which it weighs more than in the one that is kept.

        u' = sign(β₁ m + (1 − β₁) u),   m ← β₂ m + (1 − β₂) u,   u ← u'

    State: m (``exp_avg``).

    Args:
        betas: the two weights, each in [0, 1).
        name: see `Transform`.
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.99)
    averages = ("exp_avg",)
    foreach = shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the signs."""
        (beta1, beta2), u, m = batch.group["betas"], update.value(), batch.state["exp_avg"]
        # of the old average: the rule weighs u twice, differently, and only the second weight is kept
        signs = m.lerp(u, 1 - beta1).sign_()
        m.lerp_(u, 1 - beta2)
        return Update(signs, overwritable=True)
