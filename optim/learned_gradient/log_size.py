"""The size of a whole tensor, learned as if it were the exponential of a parameter of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.engine.param_batch import (
    Group,
    ParamBatch,
    Scalar,
    State,
    TensorList,
    Update,
    at_least,
    choose,
    state_dtype,
    zero_per_axes,
)
from optim.engine.transform import Transform

PERIOD = 4  # steps between two changes of a size


class LogSize(Transform):
    """Grows or shrinks the parameter itself every fourth step; the gradient passes unchanged.

    At the parameter's own step t = 0, 1, …, of more than one element, q[t mod 4] = ⟨p, g⟩. If t mod 4 = 3, with
    b_i = β_i⁴ and r̂ = rms(p):

        v ← b₂ v + (1 − b₂) mean(q²),   m ← b₁ m + (1 − b₁) mean(q)
        s = −4 lr size_lr_scale · √(1 − b₂^((t+1)/4)) · m/(√v + 10⁻¹⁰)
        s = +4 lr size_lr_scale  if r̂ < param_min_rms,   −4 lr size_lr_scale  if r̂ > param_max_rms
        r ← max(r̂, param_min_rms),   p ← p (1 + s)

    State: q (``scale_grads``), m and v (``scale_exp_avg``, ``scale_exp_avg_sq``), r (``param_rms``), which starts at
    max(rms(p), param_min_rms).
    """

    allowed: ClassVar = {
        "size_lr_scale": "[0, inf)",
        "betas": ("(0, 1)", "(0, 1)"),
        "param_min_rms": "(0, inf)",
        "param_max_rms": "(0, inf)",
    }
    foreach = True

    def check(self, group: Group) -> None:
        """Refuse an empty range of sizes, and averages of the wrong order."""
        if group["param_max_rms"] < group["param_min_rms"]:
            raise ValueError(
                f"param_max_rms must be at least param_min_rms, given {group['param_max_rms']!r} and "
                f"{group['param_min_rms']!r}"
            )
        if not group["betas"][0] <= group["betas"][1]:
            raise ValueError(f"betas must rise, 0 < beta1 <= beta2 < 1, given {group['betas']!r}")

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the parameter's size (1, …), derivatives (4) and averages (1, …) of zero; none for one element."""
        if param.numel() <= 1:
            return {}
        rms = torch.linalg.vector_norm(param.detach(), dtype=state_dtype(param)) / param.numel() ** 0.5
        return {
            "param_rms": rms.clamp(min=group["param_min_rms"]).reshape([1] * param.dim()),
            "scale_grads": param.new_zeros(PERIOD, dtype=state_dtype(param)),
            "scale_exp_avg": zero_per_axes(param, ()),
            "scale_exp_avg_sq": zero_per_axes(param, ()),
        }

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update unchanged; change the size of the parameters if it is due."""
        if not batch.single_element:
            # one derivative per step; at the fourth, all of them change the size at once
            slot = (batch.step - 1) % PERIOD
            derivatives = _collected(slot, batch)
            due = slot == PERIOD - 1
            if due is not False:
                _grow(derivatives, due, batch)
        return update


def _collected(slot: Any, batch: ParamBatch) -> Tensor:
    """Put this step's derivatives in their slot, and return all: (4), or (N, 4) of several parameters."""
    derivative, held = batch.dot(batch.param, batch.grad), batch.state["scale_grads"]
    together = isinstance(held, TensorList)
    rows = torch.cat([x.view(-1, PERIOD) for x in held.tensors]) if together else held
    derivative = derivative.reshape(rows.shape[:-1]) if isinstance(derivative, Tensor) else derivative
    if isinstance(slot, Tensor):
        here = torch.arange(PERIOD, device=rows.device) == slot
        column = derivative.unsqueeze(-1) if isinstance(derivative, Tensor) else derivative
        rows.copy_(torch.where(here, column, rows))
    else:
        place = rows.select(-1, slot)
        place.copy_(derivative) if isinstance(derivative, Tensor) else place.fill_(derivative)
    if together:
        counts = [max(1, count) for count in held.counts]
        held.copy_(held.like([x.view(y.shape) for x, y in zip(rows.split(counts), held.tensors, strict=True)]))
    return rows


def _grow(derivatives: Tensor, due: bool | Tensor, batch: ParamBatch) -> None:
    group = batch.group
    rms = batch.rms(batch.param)
    step = _learned_step(derivatives, due, batch)
    # beyond the limits the full speed, whatever has been learned
    step = choose(rms > group["param_max_rms"], -1.0, choose(rms < group["param_min_rms"], 1.0, step))
    _replace(batch.state["param_rms"], at_least(rms, group["param_min_rms"]), due)
    batch.param.mul_(choose(due, 1 + PERIOD * group["size_lr_scale"] * group["lr"] * step, 1.0))


def _learned_step(derivatives: Tensor, due: bool | Tensor, batch: ParamBatch) -> Scalar:
    """Return the step of the size in units of its speed."""
    state, (beta1, beta2) = batch.state, (beta**PERIOD for beta in batch.group["betas"])
    # one update for four steps: the decays are those of four
    squares, average = state["scale_exp_avg_sq"], state["scale_exp_avg"]
    _replace(squares, squares.lerp(batch.per_parameter(derivatives.square().mean(-1)), 1 - beta2), due)
    _replace(average, average.lerp(batch.per_parameter(derivatives.mean(-1)), 1 - beta1), due)
    corrected = (1 - beta2 ** (batch.step // PERIOD)) ** 0.5
    return batch.read(average) / (batch.read(squares) ** 0.5 + 1e-10) * -corrected


def _replace(statistic: Tensor, value: Scalar, due: bool | Tensor) -> None:
    """Set a statistic to a value, if it is due."""
    new = choose(due, value, statistic)
    statistic.fill_(new) if isinstance(new, float) else statistic.copy_(new)
