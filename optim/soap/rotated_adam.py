"""Adam in a basis that turns slowly with the gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from optim.engine.distributed import divided
from optim.engine.options import SWITCH, WHOLE
from optim.engine.param_batch import (
    ForeachBatch,
    Group,
    ParamBatch,
    Scalar,
    State,
    TensorList,
    Update,
    state_dtype,
    zeros,
)
from optim.engine.transform import GroupTransform
from optim.soap.eigenbasis import Block, Turn, computed, rotated
from optim.transforms.adam import BETAS, average_squares, beta2_correction, beta2_of
from optim.transforms.matrices import MergedDims, merged_dims

PRECOND_SCHEDULER = (1 / 3, 9)
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
TINY = 1e-30  # keeps the quotient finite if a direction is zero


class RotatedAdam(GroupTransform):
    """Adam's direction in the eigenbasis Q_k of the averaged G_(k) G_(k)ᵀ on each axis k.

    ``g ×_k Q`` multiplies g by Q along axis k; ``G_(k)`` unfolds g along it. At the parameter's own step t = 1, u = 0
    and

        C_k ← (1 − shampoo_beta) G_(k) G_(k)ᵀ,   Q_k ← its eigenvectors

    From t = 2, with s = t − 1:

        g' = g ×₁ Q₁ᵀ ×₂ Q₂ᵀ …
        m ← β₁ m + (1 − β₁) g',   v ← β₂ v + (1 − β₂) g'²                        β₂ may follow a schedule: `beta2_of`
        u = m/(1 − β₁ˢ) / (√v/√(1 − β₂ˢ) + eps) ×₁ Q₁ ×₂ Q₂ …
        C_k ← shampoo_beta C_k + (1 − shampoo_beta) G_(k) G_(k)ᵀ

    and then, if s is a multiple of ``precondition_frequency``,

        S = C_k Q_k, its columns in falling order of diag(Q_kᵀ C_k Q_k);   Q_k ← the Q of S = Q R

    m is rotated from the old basis to the new one, and v takes the order of the columns. Without ``correct_bias`` the
    divisors 1 − βˢ are 1. With ``normalize_grads`` the rms of the rotated quotient m/(√v + …) is made 1 before it is
    divided by them.

    With ``use_precond_schedule`` and precond_scheduler = (a, b), such a step refreshes Q only with the frequency
    p = 1/(1 + log₁₀(sᵃ)ᵇ): if the fractional part of s · (√5 − 1)/2 is below p. These parts cover [0, 1) evenly, so
    that the number of refreshes follows the sum of p, and s alone decides.

    A parameter with less than two axes longer than 1, or without an axis that has a matrix, takes plain Adam's steps
    from t = 1. Axes longer than ``max_precond_dim`` have no matrix, unless ``split`` cuts them.

    With ``shard_matrix_work`` the processes of a distributed run divide the new Q_k, see `divided`; what every step
    multiplies is not divided: to send all statistics would take longer.

    State: m (``exp_avg``) and v (``exp_avg_sq``), in the basis and merged; for block b and axis k, C (``gg_b_k``), in
    which elements above the diagonal are those of the last refresh, and Qᵀ (``q_b_k``).

    Reference:
        Vyas et al. 2024, "SOAP", arXiv:2409.11321, algorithm 3; see `SOAP`.
    """

    foreach = True
    allowed: ClassVar = {
        "betas": BETAS,
        "shampoo_beta": "[0, 1)",
        "eps": "[0, inf)",
        "precondition_frequency": "[1, inf)" + WHOLE,
        "max_precond_dim": "[1, inf)" + WHOLE,
        "merge_dims": SWITCH,
        "precondition_1d": SWITCH,
        "normalize_grads": SWITCH,
        "correct_bias": SWITCH,
        "split": SWITCH,
        "use_precond_schedule": SWITCH,
        "precond_scheduler": ("(0, inf)", "(0, inf)"),
        "shard_matrix_work": SWITCH,
    }

    def check(self, group: Group) -> None:
        """Refuse a schedule that is not used."""
        if not group["use_precond_schedule"] and group["precond_scheduler"] != PRECOND_SCHEDULER:
            raise ValueError(
                f"precond_scheduler={group['precond_scheduler']!r} does nothing without use_precond_schedule=True"
            )

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero, merged or for plain Adam (*shape), and matrices (d, d) that the first step fills."""
        plan, dtype = _plan_of(param.shape, group), state_dtype(param)
        if plan is None:
            return {"exp_avg": zeros(param, group), "exp_avg_sq": zeros(param, group)}
        state = {key: plan.dims.merge(zeros(param, group)) for key in ("exp_avg", "exp_avg_sq")}
        for axes, shape in zip(plan.axes, plan.dims.block_shapes(), strict=True):
            for axis, size in zip(axes, shape, strict=True):
                for matrix in ("gg", "q") if axis else ():
                    state[f"{matrix}_{axis}"] = param.new_zeros(size, size, dtype=dtype)
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return Adam's direction, turned back from the eigenbasis."""
        direction, turning = self._rotated_update(update, batch)
        first = batch.step == 1
        for blocks in _together(turning, batch):
            turns = [block.turns(first=first) for block in blocks]
            results = iter(computed([turn for of_block in turns for turn in of_block]))
            for block, of_block in zip(blocks, turns, strict=True):
                block.turn([next(results) for _ in of_block], first=first)
        return direction

    def takes_all(self, group: Group) -> bool:
        """Return whether new bases are divided over processes."""
        return bool(group["shard_matrix_work"])

    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return all directions; each new basis is computed by one process."""
        moved = [self._rotated_update(update, batch) for update, batch in zip(updates, batches, strict=True)]
        turning = [
            (block, batch.step == 1) for (_, blocks), batch in zip(moved, batches, strict=True) for block in blocks
        ]
        turns = [block.turns(first=first) for block, first in turning]
        work = [turn for of_block in turns for turn in of_block]
        costs = [turn.basis.numel() * turn.basis.shape[-1] for turn in work]
        results = iter(divided(Turn.compute, work, costs, [turn.like() for turn in work]))
        for (block, first), of_block in zip(turning, turns, strict=True):
            block.turn([next(results) for _ in of_block], first=first)
        return [direction for direction, _ in moved]

    def _rotated_update(self, update: Update, batch: ParamBatch) -> tuple[Update, list[Block]]:
        """Update the statistics; return Adam's direction, and the blocks whose bases are due."""
        group, state, u = batch.group, batch.state, update.value()
        if _plan_of(batch.shape, group) is None:
            return _scaled(_quotient(u, state["exp_avg"], state["exp_avg_sq"], batch), batch), []
        # Adam counts from the second step on: the first one only prepares the bases
        clock = copy.copy(batch)
        clock.step = batch.step - 1
        blocks, directions = list(_blocks(u, batch)), []
        for some in _together(blocks, batch):
            if clock.step > 0:
                directions += _directions(some, clock)
            for block in some:
                # only now: with this gradient in the basis, its own large elements would be made small
                block.cover(group["shampoo_beta"])
        due = blocks if clock.step == 0 or _refreshes(clock.step, group) else []
        if not directions:
            return Update(torch.zeros_like(u), overwritable=True), due
        return _scaled(_joined(directions, batch), clock), due


class Plan(NamedTuple):
    """What a parameter's axes are merged and split to, and for each axis of each block, its name or None."""

    dims: MergedDims
    axes: tuple[tuple[str | None, ...], ...]


def _plan_of(shape: torch.Size, group: Group) -> Plan | None:
    """Return the plan of a parameter; None for plain Adam."""
    options = ("max_precond_dim", "merge_dims", "split", "precondition_1d")
    return _plan(tuple(shape), *(group[option] for option in options))


@lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], max_dim: int, merge: bool, split: bool, precondition_1d: bool) -> Plan | None:
    dims = merged_dims(shape, max_dim, merge=merge, split=split)
    axes = tuple(
        tuple(f"{b}_{k}" if size <= max_dim else None for k, size in enumerate(sizes))
        for b, sizes in enumerate(dims.block_shapes())
    )
    too_few = len(dims.shape) < (1 if precondition_1d else 2)
    return None if too_few or not any(any(names) for names in axes) else Plan(dims, axes)


def _parts(batch: ParamBatch, *xs: Tensor) -> Iterator[tuple[ParamBatch, Plan, list[Tensor]]]:
    """Yield every stack, or parameter alone, with its plan and its part of each tensor."""
    parts = batch.parts if isinstance(batch, ForeachBatch) else [batch]
    columns = [x.tensors if isinstance(x, TensorList) else [x] for x in xs]
    for i, part in enumerate(parts):
        plan = _plan_of(part.shape, batch.group)
        assert plan is not None
        yield part, plan, [column[i] for column in columns]


def _blocks(u: Tensor, batch: ParamBatch) -> Iterator[Block]:
    for part, plan, (x,) in _parts(batch, u):
        tensors = (plan.dims.merge(x, stacked=part.stacked), part.state["exp_avg"], part.state["exp_avg_sq"])
        for g, m, v, axes in zip(*map(plan.dims.split, tensors), plan.axes, strict=True):
            covariances, bases = ([part.state.get(f"{what}_{axis}") for axis in axes] for what in ("gg", "q"))
            yield Block(g, m, v, covariances, bases)


def _together(blocks: list[Block], batch: ParamBatch) -> list[list[Block]]:
    """Return which blocks share calls; on a CPU, memory that one has left is still in the cache."""
    return [blocks] if isinstance(batch, ForeachBatch) else [[block] for block in blocks]


def _directions(blocks: list[Block], clock: ParamBatch) -> list[Tensor]:
    """Update the averages of some blocks, and return Adam's directions."""
    turned = [rotated(block.grad, block.bases) for block in blocks]
    averages = zip(*((block.exp_avg, block.exp_avg_sq) for block in blocks), strict=True)
    counts = [0] * len(blocks)
    g, m, v = (cast(Tensor, TensorList(x, counts)) if len(x) > 1 else x[0] for x in (turned, *averages))
    quotients = _quotient(g, m, v, clock)
    listed = quotients.tensors if isinstance(quotients, TensorList) else [quotients]
    return [rotated(x, block.bases, back=True) for x, block in zip(listed, blocks, strict=True)]


def _joined(directions: list[Tensor], batch: ParamBatch) -> Tensor:
    """Return the directions of all blocks in the parameters' shapes."""
    rest = iter(directions)
    joined = [
        plan.dims.join([next(rest) for _ in plan.axes]).reshape(part.param.shape) for part, plan, _ in _parts(batch)
    ]
    return batch.joined(joined) if isinstance(batch, ForeachBatch) else joined[0]


def _refreshes(t: int, group: Group) -> bool:
    """Return whether the bases are refreshed after the t-th step of Adam."""
    if t % group["precondition_frequency"]:
        return False
    power, exponent = group["precond_scheduler"]
    probability = 1 / (1 + math.log10(t**power) ** exponent)
    return not group["use_precond_schedule"] or t * GOLDEN_RATIO % 1 < probability


def _quotient(g: Tensor, m: Tensor, v: Tensor, batch: ParamBatch) -> Tensor:
    """Update the averages, and return m/(√v + c eps)."""
    beta1, beta2 = batch.group["betas"][0], beta2_of(batch)
    m.lerp_(g, 1 - beta1)
    average_squares(v, g, beta2)
    root = v.sqrt().add_(_root_correction(batch) * batch.group["eps"])
    # m is a statistic: the quotient goes to the memory of the root, which is not needed again
    return torch.div(m, root, out=root)


def _root_correction(batch: ParamBatch) -> float:
    """Return c = √(1 − β₂ᵗ): m/(√v/c + eps) = c m/(√v + c eps) saves a pass over the elements."""
    return float(beta2_correction(batch) ** 0.5) if batch.group["correct_bias"] else 1.0


def _scaled(direction: Tensor, batch: ParamBatch) -> Update:
    """Return a parameter's quotients as an update."""
    group = batch.group
    scale: Scalar = _root_correction(batch) / ((1 - group["betas"][0] ** batch.step) if group["correct_bias"] else 1.0)
    if group["normalize_grads"]:
        scale = scale / (batch.rms(direction) + TINY)
    return Update(direction, scale, overwritable=True)
