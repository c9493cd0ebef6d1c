"""SOAP with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.soap.rotated_adam import PRECOND_SCHEDULER, RotatedAdam


class SOAP(Composable):
    """Adam in the eigenbasis of the averaged gradient covariances of each axis, which a power iteration refreshes now
    and then.

    `RotatedAdam` explains the rule. A parameter's first step prepares its basis and does not move it, but weights
    decay. The eigenvalue decomposition of that step waits for the device; later steps do not.

    Use: if steps count more than seconds; with a warm-up.

    State: 24 bytes per float32 parameter of a square matrix, 8 (1 + (n² + m²)/(nm)) of an n×m one: m, v, and two
    matrices for each preconditioned axis.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of Adam's averages, each in [0, 1).
        shampoo_beta: decay of the covariances, in [0, 1).
        eps: added to the root, at least 0.
        precondition_frequency: steps between two refreshes of the bases, at least 1.
        max_precond_dim: longer axes have no matrix.
        merge_dims: join axes, as `merged_dims` says, up to max_precond_dim.
        precondition_1d: give vectors a matrix too.
        normalize_grads: make the rms of Adam's uncorrected direction 1.
        correct_bias: correct Adam's averages for their start at zero.
        split: cut axes longer than max_precond_dim into blocks.
        use_precond_schedule: refresh ever more rarely.
        precond_scheduler: (a, b) of that schedule, each above 0.
        shard_matrix_work: in a distributed run, divide the new bases over the processes.
        common: see `CommonOptions`; ``weight_decay`` is 0.01 by default.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321, algorithm 3. The
        defaults, the first step, the order of the columns, correct_bias and normalize_grads are those of the authors'
        code, github.com/nikhilvyas/SOAP, whose shampoo_beta of -1 stands for betas[1].
        Differs: eps is added to the corrected root, as in torch's Adam; weights decay before they move, and in the
        first step; parameters without a matrix move in the first step; axes of size 1 do not count; the basis of the
        eigenvalue 0 of a first covariance follows from the other eigenvectors, where rounding chooses it there.

    Examples:
        >>> weight = nn.Parameter(torch.ones(2, 3))
        >>> optimizer = optim.SOAP([weight], lr=0.01)
        >>> weight.grad = torch.arange(6.0).reshape(2, 3)
        >>> optimizer.step()
        >>> [tuple(optimizer.state[weight][basis].shape) for basis in ("q_0_0", "q_0_1")]
        [(2, 2), (3, 3)]
    """

    has_beta2: ClassVar = True
    refused: ClassVar = {
        "foreach": "what is faster on the device of the parameters is always done",
        "data_format": "torch's kernels have their channels first in every memory format",
    }

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10_000,
        merge_dims: bool = False,
        precondition_1d: bool = False,
        normalize_grads: bool = False,
        correct_bias: bool = True,
        split: bool = False,
        use_precond_schedule: bool = False,
        precond_scheduler: tuple[float, float] = PRECOND_SCHEDULER,
        shard_matrix_work: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        rule = RotatedAdam(
            betas=betas,
            shampoo_beta=shampoo_beta,
            eps=eps,
            precondition_frequency=precondition_frequency,
            max_precond_dim=max_precond_dim,
            merge_dims=merge_dims,
            precondition_1d=precondition_1d,
            normalize_grads=normalize_grads,
            correct_bias=correct_bias,
            split=split,
            use_precond_schedule=use_precond_schedule,
            precond_scheduler=precond_scheduler,
            shard_matrix_work=shard_matrix_work,
        )
        common.setdefault("weight_decay", 0.01)
        super().__init__(params, [rule], lr=lr, **common)
