"""NorMuon: Muon whose update has rows of equal size on average."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import Composable
from optim.engine.param_batch import Group, ParamBatch, State, Update, zero_per_axes
from optim.engine.transform import Transform
from optim.muon.muon import MatrixOptions, split_options
from optim.muon.orthogonalize import Orthogonalize, matrix_axes
from optim.transforms.adam import BETAS
from optim.transforms.momentum import NesterovMomentum

TINY = 1e-30


class NorMuon(Composable):
    """`Muon` with a learning rate per row of a matrix, which holds the weights of one neuron.

    The rows are scaled by `NormalizeNeurons`, after `Orthogonalize`.

    Use: as `Muon`.

    State: 4.02 bytes per float32 parameter: the momentum (``momentum_buffer``), and one number per row (``row``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the momentum and of the averaged square of rows, each in [0, 1).
        eps: added to the root, above 0.
        nesterov: orthogonalize the momentum a step ahead.
        options: see `MatrixOptions` and `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Li et al. 2025, "NorMuon: Making Muon more efficient and scalable", arXiv:2510.05491, algorithm 1. The defaults
        are those of the authors' code, github.com/zichongli5/NorMuon; the paper's algorithm has ``nesterov=False`` and
        ``adjust_lr_fn="match_rms_adamw"``, which needs an lr of AdamW's size.

    Examples:
        >>> weight = nn.Parameter(torch.zeros(3, 2))
        >>> optimizer = optim.NorMuon([weight], lr=0.1)
        >>> weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 5.0]])
        >>> optimizer.step()
        >>> torch.linalg.vector_norm(weight.detach(), dim=1)  # all neurons move alike
        tensor([0.1000, 0.1000, 0.1000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.02,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-10,
        *,
        nesterov: bool = True,
        **options: Unpack[MatrixOptions],
    ) -> None:
        own, common = split_options(options)
        rule = [NesterovMomentum(betas, nesterov), Orthogonalize(**own), NormalizeNeurons(betas, eps)]
        super().__init__(params, rule, lr=lr, **common)


class NormalizeNeurons(Transform):
    """Divides every row of an orthogonal R×C matrix by the root of its averaged square; follows `Orthogonalize`.

        v ← β₂ v + (1 − β₂) mean of u² over columns,   û = u/(√v + eps),   u ← s √min(R, C) û/‖û‖_F

    s is the factor that `Orthogonalize` has by its ``adjust_lr_fn``, and √min(R, C) the norm of an orthogonal matrix:
    with ``match_rms_adamw``, rms(u) = 0.2. Parameters with fewer than two axes keep their update.

    State: v (``row``), of parameters with two or more axes.

    Args:
        betas: the second is the decay of v, in [0, 1); the first belongs to another transform.
        eps: added to the root, above 0.
        name: see `Transform`.
    """

    allowed: ClassVar = {"betas": BETAS, "eps": "(0, inf)"}

    def __init__(self, betas: tuple[float, float] = (0.95, 0.95), eps: float = 1e-10, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return an average of zero per row, (R, 1, …), or (…, R, 1) of stacked matrices; none below two axes."""
        if param.dim() < 2:
            return {}
        # all but the columns: the rows, and the axes that count matrices
        first_column_axis = matrix_axes(param.dim(), group)[1]
        return {"row": zero_per_axes(param, tuple(range(-param.dim(), first_column_axis)))}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update with its rows normalized."""
        if len(batch.shape) < 2:
            return update
        axes = matrix_axes(len(batch.shape), batch.group)
        # the direction without its scale, which is s: v is the average of the orthogonal matrix itself
        u = update.direction
        v = batch.state["row"].lerp_(u.square().mean(axes[1:], keepdim=True), 1 - batch.group["betas"][1])
        u = u / v.sqrt().add_(batch.group["eps"])
        # clamp_: a matrix of zeros stays one
        u.div_(torch.linalg.vector_norm(u, dim=axes, keepdim=True).clamp_(min=TINY))
        rows, numel = u.shape[axes[0]], u.shape[axes[0] :].numel()
        return Update(u, update.scale * min(rows, numel // rows) ** 0.5, overwritable=True)
