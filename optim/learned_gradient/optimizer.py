"""LearnedGradient: the averaged gradient, preconditioned by matrices that are learned from the loss itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from optim.engine.chain import Chain
from optim.learned_gradient.learned_axes import LearnedAxes
from optim.learned_gradient.log_size import LogSize


class LearnedGradient(Chain):
    """The averaged gradient, multiplied on each axis by a matrix that is learned from the loss; steps of fixed relative
    length.

    `LogSize` changes the size of the parameter every fourth step. `LearnedAxes` multiplies the averaged gradient by one
    matrix per axis; every tenth step it moves the matrices in the direction that would have made the loss lower, per
    unit of length, had they made the previous step.

    The rms of a step does not depend on the size of the gradient. Matrix products cost nm(n + m) multiplications per
    step of an n×m matrix, and five times that, with n³ and m³, every tenth step.

    Use: for research; with a schedule that decays.

    State: 28.1 bytes per float32 parameter; of a matrix n×m 4 (1 + 2 (n² + m²)/(nm)), 20 if it is square: the average
    ḡ, and for every axis a matrix and a covariance.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate relative to the parameter's size; a tensor of one element is allowed.
        size_lr_scale: speed of a tensor's size, relative to lr, at least 0.
        meta_lr_scale: speed of the matrices, relative to lr, at least 0; lr times it should stay below 1.
        betas: decay of the averages of gradients and of their squares, 0 < beta1 ≤ beta2 < 1.
        eps: added to lengths, at least 0.
        param_min_rms: smaller tensors are grown, above 0.
        param_max_rms: larger tensors are shrunk.
        lr_est_period: steps between two updates of the matrices.
        max_step_scale: largest element of a step, in units of its rms.
        max_full_dim: longer axes have a diagonal in place of a matrix.
        meta_norm: how far one update moves a matrix: "frobenius", "rms" or "rms_squared".
        identity_mix: how much of the identity each update mixes into the matrices, in [0, 1).
        maximize: ascend instead of descend.
        skip_nonfinite: see `Chain`.
        capturable: see `Chain`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/k2-fsa/icefall/blob/41368f6b6/egs/librispeech/ASR/pruned_transducer_stateless7/optim.py, class
        LearnedGradient (Povey 2022), a draft that cannot take a step; no paper. Also the defaults.
        Differs: works. The update of M_k is the gradient of its stated objective in closed form, made symmetric, and
        moves A_k by lr · meta_lr_scale in Frobenius norm; non-finite M_k are discarded; tensors without a learned axis
        have no matrix; nothing is random or printed.

    Examples:
        >>> first, second = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
        >>> optimizer = optim.LearnedGradient([first, second], lr=0.03)
        >>> first.grad = torch.arange(6.0).reshape(2, 3)
        >>> second.grad = 100 * first.grad
        >>> optimizer.step()
        >>> torch.allclose(first, second)
        True
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 3e-2,
        size_lr_scale: float = 0.1,
        meta_lr_scale: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        param_min_rms: float = 1e-5,
        param_max_rms: float = 2.0,
        lr_est_period: int = 10,
        max_step_scale: float = 2.0,
        max_full_dim: int = 1023,
        meta_norm: str = "frobenius",
        identity_mix: float = 0.0,
        *,
        maximize: bool = False,
        skip_nonfinite: bool = False,
        capturable: bool = False,
    ) -> None:
        # the size first: it keeps the rms that the step of this update is relative to
        transforms = [
            LogSize(size_lr_scale=size_lr_scale, betas=betas, param_min_rms=param_min_rms, param_max_rms=param_max_rms),
            LearnedAxes(
                meta_lr_scale=meta_lr_scale,
                betas=betas,
                eps=eps,
                lr_est_period=lr_est_period,
                max_step_scale=max_step_scale,
                max_full_dim=max_full_dim,
                meta_norm=meta_norm,
                identity_mix=identity_mix,
            ),
        ]
        super().__init__(
            params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite, capturable=capturable
        )
