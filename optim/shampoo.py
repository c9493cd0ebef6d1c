"""Shampoo: gradients multiplied on every axis by an inverse root of their averaged covariance.

Legend: x (d₁, …, dₖ), or (N, d₁, …, dₖ) for a stack of N; C and P (d, d) or (N, d, d).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.options import OR_NONE, SWITCH, WHOLE
from optim.engine.param_batch import Group, ParamBatch, State, Update, at_least, state_dtype, zeros
from optim.engine.transform import Transform
from optim.soap import TINY, Plan, cover, mirror, rotated
from optim.transforms.adam import BETAS, average_squares, beta2_correction, beta2_of
from optim.transforms.matrices import merged_dims


class Shampoo(Composable):
    """Multiply the averaged gradient, on each axis, by an inverse root of its averaged covariance; as long as Adam's
    step.

    The rule is `KroneckerRoots`. The eigenvalue decompositions of the steps that renew roots wait for the device.

    Use: as the baseline that `SOAP` was made to improve; with `WarmupCosine`.

    State: 24 bytes per float32 parameter of a square matrix, 8 (1 + (n² + m²)/(nm)) of an n×m one, 16 and
    8 (1 + min(n/m, m/n)) if one-sided: m, v, and two matrices for each preconditioned axis.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        shampoo_beta: decay of the covariances, in [0, 1).
        eps: added to Adam's root, at least 0.
        matrix_eps: added to eigenvalues, in units of the largest, above 0.
        exponent: of the inverse roots, above 0; None for 1/(2 · number of matrices of a parameter).
        one_sided: a matrix for the shortest axis alone.
        graft: ``adam`` for steps as long as Adam's; None for the length that the roots give.
        precondition_frequency: steps between two renewals of the roots, at least 1.
        max_precond_dim: longer axes have no matrix.
        merge_dims: join axes, as `merged_dims` says, up to max_precond_dim.
        common: see `CommonOptions`; ``weight_decay`` is 0.01 by default.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Gupta et al. 2018, "Shampoo: Preconditioned Stochastic Tensor Optimization", arXiv:1802.09568, algorithm 2;
        one-sided, averaged and grafted as in Vyas et al. 2024, "SOAP", arXiv:2409.11321, section 6, and Shi et al.
        2023, "A Distributed Data-Parallel PyTorch Implementation", arXiv:2309.06497.
        Differs: covariances are averages that are corrected for their start at zero, not sums; matrix_eps is relative;
        parameters without a matrix take Adam's steps.

    Examples:
        >>> weight = nn.Parameter(torch.zeros(2, 2))
        >>> optimizer = optim.Shampoo([weight], lr=0.1, graft=None)
        >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, -0.1]])
        >>> optimizer.step()
        >>> weight.data.diag()  # the roots of the first covariance make all directions equal
        tensor([-0.1000,  0.1000])
    """

    has_beta2: ClassVar = True
    common_defaults: ClassVar = {**Composable.common_defaults, "weight_decay": 0.01}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        matrix_eps: float = 1e-6,
        exponent: float | None = None,
        one_sided: bool = False,
        graft: str | None = "adam",
        precondition_frequency: int = 10,
        max_precond_dim: int = 10_000,
        merge_dims: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [KroneckerRoots.of(locals())], lr=lr, **common)


class KroneckerRoots(Transform):
    """Multiplies the averaged update by P_k = Ĉ_k^−p on every axis k, where Ĉ_k is the averaged U_(k) U_(k)ᵀ.

        m ← β₁ m + (1 − β₁) u,   C_k ← shampoo_beta C_k + (1 − shampoo_beta) U_(k) U_(k)ᵀ
        P_k ← (Ĉ_k + matrix_eps λ_max I)^−p,  Ĉ_k = C_k/(1 − shampoo_betaᵗ)         at t = 1 and every multiple of
        u' = m/(1 − β₁ᵗ) ×₁ P₁ ×₂ P₂ …                                              ``precondition_frequency``

    p is ``exponent``, or 1/(2K) with K matrices. With ``graft="adam"``, u' gets the norm of Adam's direction

        a = m/(1 − β₁ᵗ) / (√v/√(1 − β₂ᵗ) + eps),  v ← β₂ v + (1 − β₂) u²            β₂ may follow a schedule: `beta2_of`

    which a parameter with less than two axes longer than 1, or without a matrix, takes itself.

    State: m (``exp_avg``), v (``exp_avg_sq``) unless ``graft`` is None; for axis k, C (``gg_0_k``), in which elements
    above the diagonal may be old, and P (``root_0_k``).
    """

    betas: Annotated[tuple[float, float], BETAS]
    shampoo_beta: Annotated[float, "[0, 1)"]
    eps: Annotated[float, "[0, inf)"]
    matrix_eps: Annotated[float, "(0, inf)"]
    exponent: Annotated[float | None, "(0, inf)" + OR_NONE]
    one_sided: Annotated[bool, SWITCH]
    graft: Annotated[str | None, [None, "adam"]]
    precondition_frequency: Annotated[int, "[1, inf)" + WHOLE]
    max_precond_dim: Annotated[int, "[1, inf)" + WHOLE]
    merge_dims: Annotated[bool, SWITCH]

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero in the parameter's shape, and matrices of zero (d, d) that the first step fills."""
        plan = plan_of(param.shape, group)
        state = {"exp_avg": zeros(param, group)}
        if plan is None or group["graft"]:
            state["exp_avg_sq"] = zeros(param, group)
        for name, size in zip(plan.axes[0], plan.dims.shape, strict=True) if plan else ():
            for matrix in ("gg", "root") if name else ():
                state[f"{matrix}_{name}"] = param.new_zeros(size, size, dtype=state_dtype(param))
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the product, or Adam's direction."""
        group, state, u = batch.group, batch.state, update.value()
        plan, correction = plan_of(batch.shape, group), 1 - group["betas"][0] ** batch.step
        m, adam = state["exp_avg"].lerp_(u, 1 - group["betas"][0]), None
        if "exp_avg_sq" in state:
            c = beta2_correction(batch) ** 0.5
            root = average_squares(state["exp_avg_sq"], u, beta2_of(batch)).sqrt().add_(c * group["eps"])
            adam = Update(torch.div(m, root, out=root), c / correction, overwritable=True)
        if plan is None:
            assert adam is not None
            return adam
        roots = self._roots(plan.dims.merge(u, stacked=batch.stacked), plan, batch)
        product = rotated(plan.dims.merge(m, stacked=batch.stacked), roots).reshape(batch.param.shape)
        if adam is None:
            return Update(product, 1 / correction, overwritable=True)
        return Update(product, batch.rms_of(adam) / at_least(batch.rms(product), TINY), overwritable=True)

    def _roots(self, x: Tensor, plan: Plan, batch: ParamBatch) -> list[Tensor | None]:
        """Add an update to the covariances, renew the roots if they are due, and return them."""
        group, names = batch.group, plan.axes[0]
        due = batch.step == 1 or batch.step % group["precondition_frequency"] == 0
        exponent = group["exponent"] or 0.5 / sum(name is not None for name in names)
        for axis, name in enumerate(names, -len(names)):
            if name:
                covariance = batch.state[f"gg_{name}"]
                cover(covariance, x, axis, group["shampoo_beta"])
                if due:
                    mirror(covariance)
                    average = covariance / (1 - group["shampoo_beta"] ** batch.step)
                    batch.state[f"root_{name}"].copy_(inverse_root(average, exponent, group["matrix_eps"]))
        return [batch.state.get(f"root_{name}") for name in names]


def plan_of(shape: torch.Size, group: Group) -> Plan | None:
    """Return how axes are merged, and the name of each that has a matrix; None if there is none."""
    dims = merged_dims(tuple(shape), group["max_precond_dim"], merge=group["merge_dims"])
    kept = [axis for axis, size in enumerate(dims.shape) if size <= group["max_precond_dim"]]
    if len(dims.shape) < 2 or not kept:
        return None
    kept = [min(kept, key=lambda axis: dims.shape[axis])] if group["one_sided"] else kept
    return Plan(dims, (tuple(f"0_{axis}" if axis in kept else None for axis in range(len(dims.shape))),))


def inverse_root(covariance: Tensor, exponent: float, eps: float) -> Tensor:
    """Return (C + eps λ_max I)^−exponent, (…, d, d), of a symmetric matrix; eigenvalues below zero are rounding."""
    # eigh raises for NaN, which is the one parameter's trouble and not that of the step
    eigenvalues, vectors = torch.linalg.eigh(covariance.nan_to_num(0.0, 0.0, 0.0))
    eigenvalues = eigenvalues.clamp_(min=0)
    eigenvalues = eigenvalues.add(eigenvalues[..., -1:] * eps).clamp_(min=TINY)
    return (vectors * eigenvalues.pow(-exponent).unsqueeze(-2)) @ vectors.mT
