"""MuonLaProp: LaProp's momentum, orthogonalized."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import Composable
from optim.muon.muon import MatrixOptions, split_options
from optim.muon.orthogonalize import Orthogonalize
from optim.transforms.adam import NormalizedMomentum


class MuonLaProp(Composable):
    """`Muon` on the average of normalized gradients.

    Parameters that are no matrices move as LaProp moves them.

    Use: as `Muon`.

    State: 8 bytes per float32 parameter: LaProp's averages (``exp_avg``, ``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of normalized gradients and of g², each in [0, 1).
        eps: added to the root, at least 0.
        options: see `MatrixOptions` and `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        HeavyBall 1.4.1, class MuonLaProp; no paper. The rule is `NormalizedMomentum`, then `Orthogonalize`; also the
        defaults.
        Differs: eps is added to the root, not a floor of it; betas[1] is always used.

    Examples:
        >>> weight, bias = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2))
        >>> optimizer = optim.MuonLaProp([weight, bias], lr=0.1, orthogonalization="svd")
        >>> weight.grad, bias.grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, -5.0, 7.0]]), torch.tensor([0.1, -10.0])
        >>> optimizer.step()
        >>> torch.linalg.svdvals(weight.detach()), bias.data
        (tensor([0.1000, 0.1000]), tensor([-0.1000,  0.1000]))
    """

    has_beta2: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        **options: Unpack[MatrixOptions],
    ) -> None:
        own, common = split_options(options)
        super().__init__(params, [NormalizedMomentum(betas, eps), Orthogonalize(**own)], lr=lr, **common)
