"""Muon and its kin: NorMuon, MuonLaProp and Scion, whose updates of matrices have singular values near 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable, Part
from optim.engine.param_batch import Group, ParamBatch, State, Update, at_least, zero_per_axes
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS, NormalizedMomentum
from optim.transforms.momentum import Momentum, NesterovMomentum
from optim.transforms.orthogonalize import Orthogonalize, matrix_axes

UNUSED_BETA2 = 0.99
"""The only betas[1] that Muon accepts: it stands for none."""
NORMS = ("auto", "spectral", "sign", "row", "embedding")
TINY = 1e-30
EPS = 1e-8


class MatrixOptions(CommonOptions, total=False):
    """Options of every optimizer that orthogonalizes; `Orthogonalize` describes them and has their defaults.

    Attributes:
        orthogonalization: newton_schulz, polar_express, svd or qr; None, for `SOAP` alone, for none.
        ns_steps: iterations of the first two, 1 to 100.
        ns_dtype: of their arithmetic; None chooses by device.
        adjust_lr_fn: what the length of an update follows from: original, match_rms_adamw or spectral.
        stacked_matrices: whether the last two axes of a parameter are matrices, and the others count them.
        shard_matrix_work: in a distributed run, divide the matrices over the processes.
        equilibrate: divide rows, columns or both of a matrix by their norms before (MuonEq); None for nothing.

    Examples:
        >>> options: optim.MatrixOptions = {"orthogonalization": "polar_express", "adjust_lr_fn": "match_rms_adamw"}
        >>> optimizer = optim.Muon([nn.Parameter(torch.ones(2, 3))], lr=1e-3, **options)
        >>> optimizer.param_groups[0]["adjust_lr_fn"]
        'match_rms_adamw'
    """

    orthogonalization: str | None
    ns_steps: int
    ns_dtype: torch.dtype | str | None
    adjust_lr_fn: str
    stacked_matrices: bool
    shard_matrix_work: bool
    equilibrate: str | None


MATRIX_DEFAULTS: Mapping[str, Any] = {**Composable.common_defaults, **Orthogonalize().options}


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

    common_defaults: ClassVar = MATRIX_DEFAULTS

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.02,
        betas: tuple[float, float] = (0.95, UNUSED_BETA2),
        *,
        nesterov: bool = True,
        **options: Unpack[MatrixOptions],
    ) -> None:
        super().__init__(params, [NesterovMomentum(betas, nesterov), Orthogonalize], lr=lr, **options)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["betas"][1] != UNUSED_BETA2:
            raise ValueError(
                f"betas[1] does nothing in Muon and must be {UNUSED_BETA2}, given {group['betas'][1]!r}; "
                "it is an option of NorMuon"
            )


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
    common_defaults: ClassVar = MATRIX_DEFAULTS

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        **options: Unpack[MatrixOptions],
    ) -> None:
        super().__init__(params, [NormalizedMomentum(betas, eps), Orthogonalize], lr=lr, **options)


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

    common_defaults: ClassVar = MATRIX_DEFAULTS

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
        rule: list[Part] = [NesterovMomentum(betas, nesterov), Orthogonalize, NormalizeNeurons(betas, eps)]
        super().__init__(params, rule, lr=lr, **options)


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

    betas: Annotated[tuple[float, float], BETAS] = (0.95, 0.95)
    eps: Annotated[float, "(0, inf)"] = 1e-10

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

    common_defaults: ClassVar = {**MATRIX_DEFAULTS, "adjust_lr_fn": "spectral", "weight_decay": 1.0}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        beta1: float | None = 0.9,
        norm: str = "auto",
        scale: float = 1.0,
        **options: Unpack[MatrixOptions],
    ) -> None:
        super().__init__(params, [Momentum(beta1), NormBall], lr=lr, norm=norm, scale=scale, **options)


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
        norm: one of these names; after the options of `Orthogonalize`.
        scale: above 0.

    Reference:
        github.com/LIONS-EPFL/scion, scion.py: Spectral, Sign, RowNorm, ColNorm with ``transpose``, and BiasRMS.
    """

    norm: Annotated[str, [*NORMS]] = "auto"
    scale: Annotated[float, "(0, inf)"] = 1.0

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
