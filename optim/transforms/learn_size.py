"""The size of a whole tensor, learnt on a logarithmic scale and kept below a limit."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Group, Scalar, Update, at_least, at_most
from optim.options import WHOLE
from optim.transform import Transform
from optim.transforms.tensor_size import period_ends

LARGEST_CHANGE = 0.1  # of the logarithm of the size, before momentum
TINY = 1e-30  # keeps quotients finite where tensors of zeros have no gradient


class LearnSize(Transform):
    """Adds to the change of a parameter what changes its size; must come after `TensorSize` and `ScaledChange`.

    At the end of every period of P = size_update_period steps, t = P, 2P, …, of a parameter of more than one element,
    with what `TensorSize` keeps, the size r, the derivative S and the average of its square z:

        s = −lr · scalar_lr_scale · √(1 − β₂ᵗ) · S/(√z + eps)          0 where r < param_min_rms
        s ← min(clamp(s, ±0.1), (param_max_rms − r)/r)
        δ ← δ + (1 − β₁) s p

    With P = 1 there is nothing yet at t = 1.

    Args:
        betas: the first is the decay of δ, the second of z; each in [0, 1).
        eps: added to the root, at least 0.
        scalar_lr_scale: how fast the size is learnt, relative to lr, at least 0.
        param_min_rms: smaller tensors are left to their gradients, at least 0.
        param_max_rms: larger tensors are shrunk, above 0.
        size_update_period: number of steps, at least 1.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "betas": ("[0, 1)", "[0, 1)"),
        "eps": "[0, inf)",
        "scalar_lr_scale": "[0, inf)",
        "param_min_rms": "[0, inf)",
        "param_max_rms": "(0, inf)",
        "size_update_period": "[1, inf)" + WHOLE,
    }

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        scalar_lr_scale: float = 0.1,
        param_min_rms: float = 1e-5,
        param_max_rms: float = 3.0,
        size_update_period: int = 4,
        *,
        name: str = "",
    ) -> None:
        super().__init__(
            name=name,
            betas=betas,
            eps=eps,
            scalar_lr_scale=scalar_lr_scale,
            param_min_rms=param_min_rms,
            param_max_rms=param_max_rms,
            size_update_period=size_update_period,
        )

    def check(self, group: Group) -> None:
        """Refuse a range of sizes without any."""
        if group["param_max_rms"] < group["param_min_rms"]:
            raise ValueError(
                f"param_max_rms must be at least param_min_rms, given {group['param_max_rms']!r} and "
                f"{group['param_min_rms']!r}"
            )

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update as it is, for it is the change itself that grows."""
        if batch.numel > 1 and batch.step > 1 and period_ends(batch):
            growth = _growth(batch)
            # an update is subtracted
            Update(batch.param, growth * (batch.group["betas"][0] - 1)).subtract_from(batch.state["delta"])
        return update


def _growth(batch: Batch) -> Scalar:
    """Return by how much the logarithm of the size shall change, before momentum."""
    group, read = batch.group, batch.read
    root = read(batch.state["scale_exp_avg_sq"]) ** 0.5 + group["eps"]
    corrected = (1 - group["betas"][1] ** batch.step) ** 0.5
    s = read(batch.state["scale_grad"]) / at_least(root, TINY) * (-corrected * group["scalar_lr_scale"] * group["lr"])
    rms = read(batch.state["param_rms"])
    s = at_most(at_least(s * (rms >= group["param_min_rms"]), -LARGEST_CHANGE), LARGEST_CHANGE)
    room = (group["param_max_rms"] - rms) / at_least(rms, TINY)
    return s.clamp(max=room) if isinstance(s, Tensor) else min(s, room)
