"""PSGDKron: gradients whitened by a Kronecker product of triangular factors."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.psgd.kron import KronPreconditioner


class PSGDKron(Composable):
    """Multiply the averaged gradient, on every axis, by a learned triangular matrix that makes it white.

    See `KronPreconditioner` for the rule. Variants: without momentum with ``exp_avg_input=False``; ``delayed=True`` and
    ``cached=True``, together or alone.

    Use: if a step may cost as much as the model; with `WarmupCosine`.

    State: 8 bytes per float32 parameter of a square matrix, 4 (1 + (n² + m²)/(2nm)) of an n×m one: the average
    (``exp_avg``), and two triangular matrices.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed. The update has an RMS of about 1.
        beta: see `KronPreconditioner`, also for all options that are not named here.
        common: see `CommonOptions`; ``update_clipping`` is "trust_region" by default.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Li 2015, "Preconditioned Stochastic Gradient Descent", arXiv:1512.04202; Li 2022, "Black Box Lie Group
        Preconditioners for SGD", arXiv:2211.04422; github.com/evanatyourservice/kron_torch. The defaults are those of
        its class Kron 0.3.3; but it limits the RMS of an update to 1.1, where ``update_clipping`` here is HeavyBall's
        "trust_region", and its updates of the factors become rarer after 500 steps, not after 1000.
        Differs: see `KronPreconditioner`.

    Examples:
        >>> weight = nn.Parameter(torch.ones(2, 3))
        >>> optimizer = optim.PSGDKron([weight], lr=0.01)
        >>> weight.grad = torch.arange(6.0).reshape(2, 3)
        >>> optimizer.step()
        >>> [optimizer.state[weight][factor].numel() for factor in ("factor_0_0", "factor_0_1")]  # triangles
        [3, 6]
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 3e-4,
        beta: float = 0.9,
        preconditioner_update_probability: float | None = None,
        max_size_triangular: int = 8192,
        min_ndim_triangular: int = 2,
        memory_save_mode: str | None = None,
        momentum_into_precond_update: bool = True,
        merge_dims: bool = True,
        split: bool = False,
        store_triu_as_line: bool = True,
        q_dtype: str = "float32",
        stochastic_schedule: bool = True,
        delayed: bool = False,
        cached: bool = False,
        exp_avg_input: bool = True,
        precond_init_scale: float = 1.0,
        precond_lr: float = 0.1,
        shard_matrix_work: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        rule = KronPreconditioner(
            beta=beta,
            preconditioner_update_probability=preconditioner_update_probability,
            max_size_triangular=max_size_triangular,
            min_ndim_triangular=min_ndim_triangular,
            memory_save_mode=memory_save_mode,
            momentum_into_precond_update=momentum_into_precond_update,
            merge_dims=merge_dims,
            split=split,
            store_triu_as_line=store_triu_as_line,
            q_dtype=q_dtype,
            stochastic_schedule=stochastic_schedule,
            delayed=delayed,
            cached=cached,
            exp_avg_input=exp_avg_input,
            precond_init_scale=precond_init_scale,
            precond_lr=precond_lr,
            shard_matrix_work=shard_matrix_work,
            seed=common.get("seed", 0),
        )
        common.setdefault("update_clipping", "trust_region")
        super().__init__(params, [rule], lr=lr, **common)
