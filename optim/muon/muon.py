"""Muon: momentum, orthogonalized."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.param_batch import Group
from optim.muon.orthogonalize import Orthogonalize
from optim.transforms.momentum import NesterovMomentum

UNUSED_BETA2 = 0.99
"""The only betas[1] that Muon accepts: it stands for none."""


class MatrixOptions(CommonOptions, total=False):
    """Options of every optimizer that orthogonalizes; `Orthogonalize` describes them and has their defaults.

    Attributes:
        orthogonalization: newton_schulz, polar_express, svd or qr.
        ns_steps: iterations of the first two, 1 to 100.
        ns_dtype: of their arithmetic; None chooses by device.
        adjust_lr_fn: what the length of an update follows from: original, match_rms_adamw or spectral.
        stacked_matrices: whether the last two axes of a parameter are matrices, and the others count them.
        shard_matrix_work: in a distributed run, divide the matrices over the processes.

    Examples:
        >>> options: optim.MatrixOptions = {"orthogonalization": "polar_express", "adjust_lr_fn": "match_rms_adamw"}
        >>> optimizer = optim.Muon([nn.Parameter(torch.ones(2, 3))], lr=1e-3, **options)
        >>> optimizer.param_groups[0]["adjust_lr_fn"]
        'match_rms_adamw'
    """

    orthogonalization: str
    ns_steps: int
    ns_dtype: torch.dtype | str | None
    adjust_lr_fn: str
    stacked_matrices: bool
    shard_matrix_work: bool


def split_options(options: MatrixOptions) -> tuple[dict[str, Any], CommonOptions]:
    """Return the arguments of `Orthogonalize` among the options, and the others."""
    names = MatrixOptions.__annotations__.keys() - CommonOptions.__annotations__.keys()
    others: Any = {key: value for key, value in options.items() if key not in names}
    return {key: value for key, value in options.items() if key in names}, others


class Muon(Composable):
    """Momentum whose matrices are made orthogonal, so that all directions move alike.

    The matrices are made so by `Orthogonalize`: Newton-Schulz, Polar Express, QR or SVD. Embeddings, biases, norms and
    the output layer learn better with AdamW: see `grouped`, and configs/parameter_rules/matrices.yaml. A parameter with
    fewer than two axes takes steps of lr times a sum of about 1/(1 − betas[0]) gradients, as SGD.

    Use: on hidden matrices, with AdamW for all else; ``optimizer=muon`` does so by ``parameter_rules=matrices``, which
    has the list.

    State: 4 bytes per float32 parameter: the momentum (``momentum_buffer``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: the first is the decay of the momentum, in [0, 1). The second does nothing here and must be 0.99; it is
            `NorMuon`'s.
        nesterov: orthogonalize the momentum a step ahead.
        options: see `MatrixOptions` and `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
        kellerjordan.github.io/posts/muon. The defaults are those of the author's code, github.com/KellerJordan/Muon.
        Differs: float32 on a CPU; the momentum is a sum and not an average, which makes no difference to matrices.

    Examples:
        >>> weight = nn.Parameter(torch.zeros(2, 3))
        >>> optimizer = optim.Muon([weight], lr=0.1, orthogonalization="svd")
        >>> weight.grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
        >>> optimizer.step()
        >>> torch.linalg.svdvals(weight.detach())  # all directions moved by lr
        tensor([0.1000, 0.1000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.02,
        betas: tuple[float, float] = (0.95, UNUSED_BETA2),
        *,
        nesterov: bool = True,
        **options: Unpack[MatrixOptions],
    ) -> None:
        own, common = split_options(options)
        super().__init__(params, [NesterovMomentum(betas, nesterov), Orthogonalize(**own)], lr=lr, **common)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["betas"][1] != UNUSED_BETA2:
            raise ValueError(
                f"betas[1] does nothing in Muon and must be {UNUSED_BETA2}, given {group['betas'][1]!r}; "
                "it is an option of NorMuon"
            )
