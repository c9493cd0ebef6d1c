"""Scion: steps of fixed length in a norm that fits what a parameter is for."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import Composable
from optim.engine.param_batch import ParamBatch, Update, at_least
from optim.muon.muon import MatrixOptions, split_options
from optim.muon.orthogonalize import Orthogonalize, matrix_axes
from optim.transforms.momentum import Momentum

NORMS = ("auto", "spectral", "sign", "row", "embedding")
EPS = 1e-8


class Scion(Composable):
    """Steps of fixed length in a norm chosen per group, within a ball around zero.

    Every parameter moves by lr · scale in its norm, whatever the gradient's size; the average decides the direction.
    With ``weight_decay=1``, the default, p ← (1 − lr) p − lr · scale · u keeps the norm of a parameter below scale,
    once it is: the constrained form. 0 is the unconstrained one.

    Use: as `Muon`, or alone with a norm per rule: ``sign`` for the output layer, ``embedding`` for tables.

    State: 4 bytes per float32 parameter: the average (``exp_avg``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        beta1: decay of the average, in [0, 1); one minus the authors' ``momentum``. None for no average.
        norm: see `NormBall`; in a group of its own for the output layer and embeddings.
        scale: radius of the ball in that norm, above 0.
        options: see `MatrixOptions` and `CommonOptions`; ``weight_decay`` is by default 1,
            and ``adjust_lr_fn`` is ``spectral``; the authors use ``original`` for the input layer.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Pethick et al. 2025, "Training Deep Learning Models with Norm-Constrained LMOs", arXiv:2502.07529. The defaults
        are those of the authors' code, github.com/LIONS-EPFL/scion, but for beta1: that of their runs, "a good
        default", where the class begins without an average.
        Differs: weights are not initialized anew; a convolution is as long as its matrix says, that is √(out/in)/k for
        a k×k kernel instead of √(out/in)/k².

    Examples:
        >>> weight = nn.Parameter(torch.zeros(3, 3))
        >>> optimizer = optim.Scion([weight], lr=0.1, scale=2.0, orthogonalization="svd")
        >>> weight.grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0], [0.0, 1.0, 0.0]])
        >>> optimizer.step()
        >>> torch.linalg.svdvals(weight.detach())  # lr · scale
        tensor([0.2000, 0.2000, 0.2000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        beta1: float | None = 0.9,
        norm: str = "auto",
        scale: float = 1.0,
        **options: Unpack[MatrixOptions],
    ) -> None:
        own, common = split_options({"adjust_lr_fn": "spectral", "weight_decay": 1.0, **options})
        super().__init__(params, [Momentum(beta1), NormBall(norm, scale, **own)], lr=lr, **common)


class NormBall(Orthogonalize):
    """Replaces the update by the point of a ball of radius ``scale`` that lies farthest along it.

        spectral   s U Vᵀ as `Orthogonalize` makes it     hidden layers
        sign       sign(u)/C                              the output layer
        row        u/(√C ‖row‖₂)                          the output layer, if its rows are to move alike
        embedding  √C u/‖row‖₂                            tables whose rows are looked up: rows of RMS 1
        auto       as spectral

    for R×C matrices as in `Orthogonalize`. Parameters with fewer than two axes move by sign(u) with ``sign``, and by
    u/rms(u) with the others.

    Args:
        norm: one of these names.
        scale: above 0.
        options: see `Orthogonalize`.

    Reference:
        github.com/LIONS-EPFL/scion, scion.py: Spectral, Sign, RowNorm, ColNorm with ``transpose``, and BiasRMS.
    """

    allowed: ClassVar = {**Orthogonalize.allowed, "norm": [*NORMS], "scale": "(0, inf)"}

    def __init__(self, norm: str = "auto", scale: float = 1.0, **options: Any) -> None:
        super().__init__(**options, norm=norm, scale=scale)

    def takes(self, batch: ParamBatch) -> bool:
        """Return whether parameters are orthogonalized."""
        return super().takes(batch) and batch.group["norm"] in ("auto", "spectral")

    def resized(self, matrices: Tensor, batch: ParamBatch) -> Update:
        """Return the update that orthogonal matrices (…, R, C) make, in the parameters' shape."""
        return super().resized(matrices, batch).times(batch.group["scale"])

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the point of the ball."""
        if self.takes(batch):
            return super().__call__(update, batch)
        norm, scale, u = batch.group["norm"], batch.group["scale"], update.value()
        axes = matrix_axes(len(batch.shape), batch.group)[1:]
        num_cols = batch.shape[-len(axes) :].numel() if axes else 1
        if norm == "sign":
            return Update(u.sign(), scale / num_cols, overwritable=True)
        if not axes:
            return Update(u, scale / at_least(batch.rms(u), EPS))
        # a factor per row instead of a quotient: no pass over the elements
        per_row = 1 / torch.linalg.vector_norm(u, dim=axes, keepdim=True).clamp_(min=EPS)
        return Update(u, scale * num_cols ** (0.5 if norm == "embedding" else -0.5), row_scale=per_row)
