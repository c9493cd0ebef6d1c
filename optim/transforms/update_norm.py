"""Updates of a fixed size relative to the weights, with or without weights of a fixed size: Hyperball."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from optim.engine.param_batch import Group, ParamBatch, State, Update, assign, at_least, zero_per_axes
from optim.engine.transform import Transform

TINY = 1e-30
MIN_PARAM_RMS = 1e-3


class UpdateNorm(Transform):
    """Makes the update of a matrix as large as the matrix is, so that lr is the length of a step relative to it.

        None       u ← u
        param      u ← u · max(rms(p), min_param_rms)/rms(u)
        hyperball  u ← u · r/rms(u),  with r = max(rms(p), min_param_rms) before the first step of p

    for parameters of two or more axes; others keep their update. With ``hyperball``, `OnSphere` stands after the
    learning rate and brings p back to r, and the matrix does not decay: p ← r · normalize(p − lr · r · normalize(u)).
    `ScaledAdam`, `Rubik` and `Adafactor` have the same idea: the first two learn r too.

    State, only with ``hyperball``: r of a matrix (``radius``).

    Args:
        update_norm: see above.
        min_param_rms: at least 0; matrices that begin at zero would not move without it.
        name: see `Transform`.

    Reference:
        Wen et al. 2026, "Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball Optimization",
        arXiv:2606.16899. ``param`` is RelativeUpdateHook of github.com/NVIDIA-NeMo/Emerging-Optimizers.
        Differs: min_param_rms, which is 0 there.

    Examples:
        >>> weight = nn.Parameter(torch.full((2, 2), 3.0))
        >>> optimizer = optim.AdamW([weight], lr=0.1, update_norm="hyperball")
        >>> weight.grad = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
        >>> optimizer.step()
        >>> weight.data.square().mean()  # a tenth of its size away, and as large as before
        tensor(9.)
    """

    update_norm: Annotated[str | None, [None, "param", "hyperball"]] = "hyperball"
    min_param_rms: Annotated[float, "[0, inf)"] = MIN_PARAM_RMS
    switch = "update_norm"

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return a radius of zero, (1, …), that the first step fills."""
        keeps = group["update_norm"] == "hyperball" and param.dim() >= 2
        return {"radius": zero_per_axes(param, ())} if keeps else {}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, scaled."""
        if len(batch.shape) < 2:
            return update
        size = at_least(batch.rms(batch.param), batch.group["min_param_rms"])
        if is_on_sphere(batch):
            radius = batch.state["radius"]
            if isinstance(batch.step, Tensor):
                radius.copy_(torch.where(batch.step == 1, size, radius))
            elif batch.step == 1:
                assign(radius, size)
            size = batch.read(radius)
        return update.times(size / at_least(batch.rms_of(update), TINY))


class OnSphere(Transform):
    """Brings a matrix back to its size at the first step, after it has moved; see `UpdateNorm`, which it needs."""

    def is_noop(self, group: Group) -> bool:
        """Return whether parameters have no fixed size."""
        return bool(group["update_norm"] != "hyperball")

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update to a point of the sphere."""
        if len(batch.shape) < 2:
            return update
        moved = batch.param - update.value()
        moved *= batch.read(batch.state["radius"]) / at_least(batch.rms(moved), TINY)
        return Update(batch.param - moved, overwritable=True)


def is_on_sphere(batch: ParamBatch) -> bool:
    """Return whether `OnSphere` keeps the size of these parameters."""
    return batch.group.get("update_norm") == "hyperball" and len(batch.shape) >= 2
