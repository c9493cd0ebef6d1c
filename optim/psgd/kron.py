"""Gradients multiplied by a Kronecker product of triangular factors that make them white."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from optim.engine.distributed import divided
from optim.engine.options import OR_NONE, SWITCH, WHOLE
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
from optim.engine.transform import STORAGE_DTYPES, GroupTransform
from optim.psgd.kron_factors import (
    MEMORY_SAVE_MODES,
    Factor,
    Fit,
    applied,
    applied_products,
    applied_transposed,
    balance,
    fit,
    product_of,
    triangular_axes,
)
from optim.psgd.probes import probes
from optim.psgd.triangular import pack, pack_all, unpacked_all
from optim.psgd.update_schedule import balances_at, updates_at
from optim.transforms.matrices import MergedDims, merged_dims

NOISE = 2.0**-11.5  # √ε, of the mean absolute gradient


class KronPreconditioner(GroupTransform):
    """The averaged gradient times P = Q₁ᵀQ₁ ⊗ Q₂ᵀQ₂ ⊗ …, fitted such that P g has the covariance I.

    Every axis k of a parameter has an upper triangular Q_k, or a diagonal one: if the axis is longer than
    ``max_size_triangular``, if the parameter has less than ``min_ndim_triangular`` axes, and in ``memory_save_mode``
    "one_diag" the longest axis, in "all_diag" all. Axes of size 1 are dropped. ``x ×_k Q`` multiplies x by Q along axis
    k, ``X_(k)`` unfolds x with axis k first, |x| is the largest absolute value, d the number of axes. At the
    parameter's own step t = 1, 2, …:

        m ← β m + (1 − β) g,   ĝ = m/(1 − βᵗ)                                       ĝ = g without ``exp_avg_input``

    At the steps of `updates_at`, with probes v of the normal distribution and h = ĝ, or g without
    ``momentum_into_precond_update``:

        a = (h + √ε mean(abs h) v) ×₁ Q₁ ×₂ Q₂ …,   b = v ×₁ Q₁⁻ᵀ ×₂ Q₂⁻ᵀ …               ε = 2⁻²³
        Q_k ← Q_k − precond_lr/‖A_(k)A_(k)ᵀ + B_(k)B_(k)ᵀ‖ · triu(A_(k)A_(k)ᵀ − B_(k)B_(k)ᵀ) Q_k
        one time in a hundred, if d > 1:   Q_k ← Q_k · (Π_j |Q_j|)^(1/d)/|Q_k|

    ‖·‖ is `norm_bound`; of a diagonal Q_k only diagonals are computed, and the norm is the largest element. Every step:

        u = ĝ ×₁ Q₁ᵀQ₁ ×₂ Q₂ᵀQ₂ …

    Q_k begins as ``precond_init_scale``^(1/d) I. The step of Q_k is relative to Q_k, and so is independent of the size
    of gradients: a step along the Lie group of triangular matrices, which needs no damping.

    State: m (``exp_avg``); for every block i that ``split`` makes, or the only one, and axis k, Q_k (``factor_i_k``)
    and with ``cached`` Q_kᵀQ_k (``product_i_k``).

    Args:
        beta: decay of m, in [0, 1).
        preconditioner_update_probability: in (0, 1]; None for the schedule of `update_probability`.
        max_size_triangular: longest axis with a triangular factor, and the longest that ``merge_dims`` and ``split``
            make.
        min_ndim_triangular: see above.
        memory_save_mode: None, "one_diag" or "all_diag".
        momentum_into_precond_update: whether the factors are fitted to ĝ, and not to g.
        merge_dims: whether to merge neighboring axes first, see `merged_dims`.
        split: whether to split longer axes into blocks with factors of their own.
        store_triu_as_line: whether triangular factors are stored without their zeros, in n (n + 1)/2 elements.
        q_dtype: of the stored factors: "float32", which means the dtype of statistics, or "bfloat16", rounded
            stochastically; arithmetic is that of "float32".
        stochastic_schedule: whether updates are drawn, and not made whenever the sum of probabilities passes one.
        delayed: whether u is made before the update of the factors, and not after it.
        cached: whether the products are stored, so that steps without an update need half of the multiplications.
        exp_avg_input: whether gradients are averaged; False for PSGD without momentum.
        precond_init_scale: above 0.
        precond_lr: in (0, 1].
        shard_matrix_work: in a distributed run, divide the fits of the factors over the processes, see `divided`; the
            average is preconditioned by all.
        seed: of the probes and of the drawn updates.

    Reference:
        Li 2015, "Preconditioned Stochastic Gradient Descent", arXiv:1512.04202; Li 2022, "Black Box Lie Group
        Preconditioners for SGD", arXiv:2211.04422; github.com/evanatyourservice/kron_torch, class Kron 0.3.3.
        Differs from Kron: axes of size 1 are dropped; the noise does not reach u; u is clipped by a later transform;
        updates are drawn; all probes depend on seed, step and parameter alone.
    """

    foreach = True
    allowed: ClassVar = {
        "beta": "[0, 1)",
        "preconditioner_update_probability": "(0, 1]" + OR_NONE,
        "max_size_triangular": "[1, inf)" + WHOLE,
        "min_ndim_triangular": "[1, inf)" + WHOLE,
        "memory_save_mode": [*MEMORY_SAVE_MODES],
        "momentum_into_precond_update": SWITCH,
        "merge_dims": SWITCH,
        "split": SWITCH,
        "store_triu_as_line": SWITCH,
        "q_dtype": [*STORAGE_DTYPES],
        "stochastic_schedule": SWITCH,
        "delayed": SWITCH,
        "cached": SWITCH,
        "exp_avg_input": SWITCH,
        "precond_init_scale": "(0, inf)",
        "precond_lr": "(0, 1]",
        "shard_matrix_work": SWITCH,
        "seed": "[0, inf)" + WHOLE,
    }

    def check(self, group: Group) -> None:
        """Refuse a choice between gradients that are the same."""
        if not (group["exp_avg_input"] or group["momentum_into_precond_update"]):
            raise ValueError(
                "momentum_into_precond_update=False does nothing with exp_avg_input=False, which leaves no momentum; "
                "leave one of them out"
            )

    def draws(self, group: Group) -> bool:
        """Return True: the probes are random."""
        return True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return m of zero, (*shape), and multiples of the identity: (n, n), a line (n (n + 1)/2) or a diagonal (n)."""
        state: State = {"exp_avg": zeros(param, group)} if group["exp_avg_input"] else {}
        dtype = torch.bfloat16 if group["q_dtype"] == "bfloat16" else state_dtype(param)
        for block, shape in enumerate(_dims(param.shape, group).block_shapes()):
            for axis, (size, triangular) in enumerate(_axes(shape, group)):
                # the Kronecker product of all factors is then precond_init_scale times the identity
                q = param.new_full((size,), group["precond_init_scale"] ** (1 / max(1, len(shape))), dtype=dtype)
                if group["cached"]:
                    product = q.square()
                    state[f"product_{block}_{axis}"] = product.diag() if triangular else product
                q = q.diag() if triangular else q
                if triangular and group["store_triu_as_line"]:
                    line = q.new_empty(size * (size + 1) // 2)
                    pack(q, line)
                    q = line
                state[f"factor_{block}_{axis}"] = q
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the preconditioned average."""
        step = _begin_step(update, batch)
        if isinstance(batch, ForeachBatch):
            fit(step.fits)
        else:
            for work in step.fits:  # memory that one fit has left is still in the cache
                work.compute()
        return _finish_step(step, batch)

    def takes_all(self, group: Group) -> bool:
        """Return whether the fits are divided over processes."""
        return bool(group["shard_matrix_work"])

    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return all preconditioned averages; the factors of each block are fitted by one process."""
        steps = [_begin_step(update, batch) for update, batch in zip(updates, batches, strict=True)]
        fits = [each for step in steps for each in step.fits]
        costs = [each.gradient.numel() * sum(factor.q.shape[-1] for factor in each.factors) for each in fits]
        results = divided(Fit.compute, fits, costs, [[factor.q for factor in each.factors] for each in fits])
        for each, fitted in zip(fits, results, strict=True):
            for factor, q in zip(each.factors, fitted, strict=True):
                factor.q.copy_(q)
        return [_finish_step(step, batch) for step, batch in zip(steps, batches, strict=True)]


class Step(NamedTuple):
    """A step whose factors are still to be fitted.

    Attributes:
        average: to be preconditioned.
        scale: of the average, which leaves out its correction.
        factors: of every block; none if cached products are enough.
        fits: of every block; none if the factors are not due.
        early: the average preconditioned before the fits, if they are delayed.
    """

    average: Tensor
    scale: Scalar
    factors: list[list[Factor]]
    fits: list[Fit]
    early: Tensor | None


def _begin_step(update: Update, batch: ParamBatch) -> Step:
    """Average the gradient, and find out what is to be fitted."""
    group, g, scale = batch.group, update.value(), 1.0
    average = g
    if group["exp_avg_input"]:
        average = batch.state["exp_avg"].lerp_(g, 1 - group["beta"])
        scale = 1 / (1 - group["beta"] ** batch.step)
    due = updates_at(batch.step, **_schedule(group))
    # at other steps the cached products are enough
    factors = _factors(batch) if due or not group["cached"] else []
    early = _preconditioned(average, factors, batch) if due and group["delayed"] else None
    fits = _fits(average * scale if group["momentum_into_precond_update"] else g, factors, batch) if due else []
    return Step(average, scale, factors, fits, early)


def _finish_step(step: Step, batch: ParamBatch) -> Update:
    """Store the factors if they were fitted, and return the preconditioned average."""
    if step.fits:
        _store(step.factors, batch)
    u = _preconditioned(step.average, step.factors, batch) if step.early is None else step.early
    return Update(u, step.scale, overwritable=True)


def _schedule(group: Group) -> dict[str, Any]:
    constant, stochastic = group["preconditioner_update_probability"], group["stochastic_schedule"]
    return {"constant": constant, "stochastic": stochastic, "seed": group["seed"]}


def _dims(shape: torch.Size, group: Group) -> MergedDims:
    return merged_dims(tuple(shape), group["max_size_triangular"], merge=group["merge_dims"], split=group["split"])


def _axes(shape: tuple[int, ...], group: Group) -> list[tuple[int, bool]]:
    """Return the size of every axis of a block, and whether its factor is triangular; a number has one axis."""
    sizes = shape or (1,)
    options = group["max_size_triangular"], group["min_ndim_triangular"], group["memory_save_mode"]
    return list(zip(sizes, triangular_axes(sizes, *options), strict=True))


def _parts(batch: ParamBatch) -> list[ParamBatch]:
    return batch.parts if isinstance(batch, ForeachBatch) else [batch]


def _tensors(x: Tensor) -> list[Tensor]:
    return x.tensors if isinstance(x, TensorList) else [x]


def _blocks(x: Tensor, batch: ParamBatch) -> list[Tensor]:
    """Return the blocks of all tensors with the parameters' shapes, each with at least one axis."""
    blocks: list[Tensor] = []
    for part, tensor in zip(_parts(batch), _tensors(x), strict=True):
        dims = _dims(part.shape, batch.group)
        merged = dims.merge(tensor, stacked=part.stacked)
        blocks += dims.split(merged if dims.shape else merged.unsqueeze(-1))
    return blocks


def _stored(statistic: str, batch: ParamBatch) -> list[list[Factor]]:
    """Return the factors, or products, of every block of all parameters, as they are stored."""
    stored = []
    for part in _parts(batch):
        for block, shape in enumerate(_dims(part.shape, batch.group).block_shapes()):
            axes = _axes(shape, batch.group)
            stored.append(
                [
                    Factor(axis - len(axes), part.state[f"{statistic}_{block}_{axis}"], triangular)
                    for axis, (_, triangular) in enumerate(axes)
                ]
            )
    return stored


def _factors(batch: ParamBatch) -> list[list[Factor]]:
    """Return the factors of every block; triangular ones that are stored as a line are copies."""
    stored = _stored("factor", batch)
    if not batch.group["store_triu_as_line"]:
        return stored
    sizes = [
        size
        for part in _parts(batch)
        for shape in _dims(part.shape, batch.group).block_shapes()
        for size, triangular in _axes(shape, batch.group)
        if triangular
    ]
    whole = iter(unpacked_all([each.q for parts in stored for each in parts if each.triangular], sizes))
    return [[each._replace(q=next(whole)) if each.triangular else each for each in parts] for parts in stored]


def _fits(observed: Tensor, factors: list[list[Factor]], batch: ParamBatch) -> list[Fit]:
    """Return what the factors of every block are fitted to: a gradient with noise, and a probe."""
    group, probe = batch.group, probes(batch.group["seed"], batch, observed.dtype)
    # it keeps a gradient of low rank from growing the factors without limit
    noise = _mean_magnitude(observed, batch) * NOISE
    if isinstance(noise, Tensor):
        observed = torch.addcmul(observed, probe, noise)
    else:
        observed = torch.add(observed, probe, alpha=noise)
    pairs = zip(_blocks(observed, batch), _blocks(probe, batch), factors, strict=True)
    return [Fit(h, v, parts, group["precond_lr"]) for h, v, parts in pairs]


def _mean_magnitude(x: Tensor, batch: ParamBatch) -> Scalar:
    if isinstance(x, TensorList):
        return torch.stack(torch._foreach_norm(x.per_member(), 1)) / batch.numel
    return batch.read(torch.linalg.vector_norm(x.reshape(len(batch.entries), -1), 1, -1)) / batch.numel


def _store(factors: list[list[Factor]], batch: ParamBatch) -> None:
    """Balance the factors if it is time, and store them and their products."""
    group = batch.group
    if balances_at(batch.step, **_schedule(group)):
        for parts in factors:
            if len(parts) > 1:
                balance(parts)
    fitted = [factor for parts in factors for factor in parts]
    if group["store_triu_as_line"]:
        stored = [factor.q for parts in _stored("factor", batch) for factor in parts]
        triangular = [place for place, factor in enumerate(fitted) if factor.triangular]
        pack_all([fitted[i].q for i in triangular], [stored[i] for i in triangular])
    if group["cached"]:
        products = [product.q for parts in _stored("product", batch) for product in parts]
        for factor, product in zip(fitted, products, strict=True):
            product.copy_(product_of(factor))


def _preconditioned(average: Tensor, factors: list[list[Factor]], batch: ParamBatch) -> Tensor:
    """Return the average times all Q_kᵀQ_k."""
    blocks = _blocks(average, batch)
    if batch.group["cached"]:
        pairs = zip(blocks, _stored("product", batch), strict=True)
        done = iter([applied_products(x, products) for x, products in pairs])
    else:
        done = iter([applied_transposed(applied(x, qs), qs) for x, qs in zip(blocks, factors, strict=True)])
    joined = []
    for part in _parts(batch):
        dims = _dims(part.shape, batch.group)
        joined.append(dims.join([next(done) for _ in dims.blocks]).reshape(part.param.shape))
    return cast(Tensor, cast(TensorList, batch.param).like(joined)) if isinstance(batch, ForeachBatch) else joined[0]
