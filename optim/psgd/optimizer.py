"""PSGDKron: gradients whitened by a Kronecker product of triangular factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.distributed import divided
from optim.engine.options import OR_NONE, SWITCH, WHOLE
from optim.engine.param_batch import ForeachBatch, Group, ParamBatch, Scalar, State, Update, state_dtype, zeros
from optim.engine.random import Draw, uniform_number
from optim.engine.transform import STORAGE_DTYPES, GroupTransform
from optim.psgd import kron_factors as kron
from optim.transforms.matrices import MergedDims, merged_dims

NOISE = 2.0**-11.5  # √ε, of the mean absolute gradient
CHUNK = 1 << 10  # pairs of numbers
FLAT_STEPS = 1000
DECAY = 1e-3
SMALLEST = 0.03
BALANCE_PROBABILITY = 0.01
# steps after FLAT_STEPS at which the probability reaches its floor
DECAY_STEPS = math.floor(math.log(1 / SMALLEST) / DECAY)


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

    common_defaults: ClassVar = {**Composable.common_defaults, "update_clipping": "trust_region"}

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
        rule = KronPreconditioner.of({**locals(), "seed": common.get("seed", 0)})
        super().__init__(params, [rule], lr=lr, **common)


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
    many_calls = True
    beta: Annotated[float, "[0, 1)"]
    preconditioner_update_probability: Annotated[float | None, "(0, 1]" + OR_NONE]
    max_size_triangular: Annotated[int, "[1, inf)" + WHOLE]
    min_ndim_triangular: Annotated[int, "[1, inf)" + WHOLE]
    memory_save_mode: Annotated[str | None, [*kron.MEMORY_SAVE_MODES]]
    momentum_into_precond_update: Annotated[bool, SWITCH]
    merge_dims: Annotated[bool, SWITCH]
    split: Annotated[bool, SWITCH]
    store_triu_as_line: Annotated[bool, SWITCH]
    q_dtype: Annotated[str, [*STORAGE_DTYPES]]
    stochastic_schedule: Annotated[bool, SWITCH]
    delayed: Annotated[bool, SWITCH]
    cached: Annotated[bool, SWITCH]
    exp_avg_input: Annotated[bool, SWITCH]
    precond_init_scale: Annotated[float, "(0, inf)"]
    precond_lr: Annotated[float, "(0, 1]"]
    shard_matrix_work: Annotated[bool, SWITCH]
    seed: Annotated[int, "[0, inf)" + WHOLE]

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
                    kron.pack_all([q], [line])
                    q = line
                state[f"factor_{block}_{axis}"] = q
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the preconditioned average."""
        step = _begin_step(update, batch)
        return _finish_step(step, kron.fit(step.fits) if step.fits else [], batch)

    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return all preconditioned averages; the factors of each block are fitted by one process."""
        steps = [_begin_step(update, batch) for update, batch in zip(updates, batches, strict=True)]
        fits = [each for step in steps for each in step.fits]
        costs = [each.gradient.numel() * sum(factor.q.shape[-1] for factor in each.factors) for each in fits]
        results = iter(divided(kron.Fit.compute, fits, costs, [[factor.q for factor in each.factors] for each in fits]))
        # in a message they begin anywhere in memory, and products of matrices have other bits there
        return [
            _finish_step(step, [[q.clone() for q in next(results)] for _ in step.fits], batch)
            for step, batch in zip(steps, batches, strict=True)
        ]


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
    factors: list[list[kron.Factor]]
    fits: list[kron.Fit]
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


def _finish_step(step: Step, fitted: Sequence[Sequence[Tensor]], batch: ParamBatch) -> Update:
    """Store the factors if they were fitted, and return the preconditioned average."""
    factors = step.factors
    if fitted:
        pairs = (zip(parts, qs, strict=True) for parts, qs in zip(factors, fitted, strict=True))
        factors = [[factor._replace(q=q) for factor, q in pair] for pair in pairs]
        _store(factors, batch)
    u = _preconditioned(step.average, factors, batch) if step.early is None else step.early
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
    return list(zip(sizes, kron.triangular_axes(sizes, *options), strict=True))


def _blocks(x: Tensor, batch: ParamBatch) -> list[Tensor]:
    """Return the blocks of all tensors with the parameters' shapes, each with at least one axis."""
    blocks: list[Tensor] = []
    for part, tensor in zip(batch.parts, batch.tensors(x), strict=True):
        dims = _dims(part.shape, batch.group)
        merged = dims.merge(tensor, stacked=part.stacked)
        blocks += dims.split(merged if dims.shape else merged.unsqueeze(-1))
    return blocks


def _stored(statistic: str, batch: ParamBatch) -> list[list[kron.Factor]]:
    """Return the factors, or products, of every block of all parameters, as they are stored."""
    stored = []
    for part in batch.parts:
        for block, shape in enumerate(_dims(part.shape, batch.group).block_shapes()):
            axes = _axes(shape, batch.group)
            stored.append(
                [
                    kron.Factor(axis - len(axes), part.state[f"{statistic}_{block}_{axis}"], triangular)
                    for axis, (_, triangular) in enumerate(axes)
                ]
            )
    return stored


def _factors(batch: ParamBatch) -> list[list[kron.Factor]]:
    """Return the factors of every block; triangular ones that are stored as a line are copies."""
    stored = _stored("factor", batch)
    if not batch.group["store_triu_as_line"]:
        return stored
    lines = [each.q for parts in stored for each in parts if each.triangular]
    whole = iter(kron.unpacked_all(lines) if lines else ())
    return [[each._replace(q=next(whole)) if each.triangular else each for each in parts] for parts in stored]


def _fits(observed: Tensor, factors: list[list[kron.Factor]], batch: ParamBatch) -> list[kron.Fit]:
    """Return what the factors of every block are fitted to: a gradient with noise, and a probe."""
    group, probe = batch.group, probes(batch.group["seed"], batch, observed.dtype)
    # it keeps a gradient of low rank from growing the factors without limit
    noise = batch.norm(observed, 1) / batch.numel * NOISE
    if isinstance(noise, Tensor):
        observed = torch.addcmul(observed, probe, noise)
    else:
        observed = torch.add(observed, probe, alpha=noise)
    pairs = zip(_blocks(observed, batch), _blocks(probe, batch), factors, strict=True)
    return [kron.Fit(h, v, parts, group["precond_lr"]) for h, v, parts in pairs]


def _store(factors: list[list[kron.Factor]], batch: ParamBatch) -> None:
    """Balance the factors if it is time, and store them and their products."""
    group = batch.group
    if balances_at(batch.step, **_schedule(group)):
        for parts in factors:
            if len(parts) > 1:
                kron.balance(parts)
    fitted = [factor for parts in factors for factor in parts]
    stored = [factor.q for parts in _stored("factor", batch) for factor in parts]
    lines = [i for i, factor in enumerate(fitted) if factor.triangular and group["store_triu_as_line"]]
    if lines:
        kron.pack_all([fitted[i].q for i in lines], [stored[i] for i in lines])
    whole = [i for i in range(len(fitted)) if i not in set(lines)]
    if whole:
        torch._foreach_copy_([stored[i] for i in whole], [fitted[i].q for i in whole])
    if group["cached"]:
        products = [product.q for parts in _stored("product", batch) for product in parts]
        for factor, product in zip(fitted, products, strict=True):
            product.copy_(kron.product_of(factor))


def _preconditioned(average: Tensor, factors: list[list[kron.Factor]], batch: ParamBatch) -> Tensor:
    """Return the average times all Q_kᵀQ_k."""
    blocks = _blocks(average, batch)
    if batch.group["cached"]:
        done = iter(kron.applied_products(blocks, _stored("product", batch)))
    else:
        done = iter(kron.applied_transposed(kron.applied(blocks, factors), factors))
    joined = []
    for part in batch.parts:
        dims = _dims(part.shape, batch.group)
        joined.append(dims.join([next(done) for _ in dims.blocks]).reshape(part.param.shape))
    return batch.joined(joined)


def probes(seed: int, batch: ParamBatch, dtype: torch.dtype) -> Tensor:
    """Return a probe of the shape of every parameter; each depends on seed, step and parameter alone."""
    device = batch.param.device
    draw = Draw(seed, batch.step, "probe", batch.draw_keys, device)
    if not isinstance(batch, ForeachBatch):
        return draw.normal(batch.numel).to(dtype).reshape(batch.param.shape)
    # A draw is of one length. So it is one of chunks, which differ in the bits above those that count within.
    owners, starts, nums = _chunks(tuple(entry.param.numel() for entry in batch.entries), device)
    first, second = draw.keys[owners].unbind(-1)
    draw.keys = torch.stack((first ^ starts, second), -1)
    pairs = [numbers.to(dtype) for numbers in draw.normal_pairs(CHUNK)]
    parts, place = [], 0
    for part in batch.parts:
        num, members, half = nums[place], len(part.entries), (part.numel + 1) // 2
        first, second = (x[: num * members].view(members, num * CHUNK) for x in pairs)
        pairs, place = [x[num * members :] for x in pairs], place + members
        # as `Draw.normal` orders them: the first of every pair, then the second
        parts.append(torch.cat((first[:, :half], second[:, : part.numel - half]), -1).view(part.param.shape))
    return batch.joined(parts)


@lru_cache(maxsize=64)
def _chunks(numels: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
    """Return whose each chunk is, and which pair it starts with; and how many chunks each parameter has."""
    nums = [-(-((numel + 1) // 2) // CHUNK) for numel in numels]
    owners = [place for place, num in enumerate(nums) for _ in range(num)]
    starts = [CHUNK * chunk for num in nums for chunk in range(num)]
    return torch.tensor(owners, device=device), torch.tensor(starts, dtype=torch.int32, device=device), nums


def update_probability(step: int, constant: float | None) -> float:
    """Return the probability of an update at step n, from 1.

        max(0.03, min(1, exp(−0.001 (n − 1000))))     unless a constant is given

    Reference:
        `precond_update_prob_schedule` of https://github.com/evanatyourservice/kron_torch, with 1000 flat steps.
    """
    if constant is not None:
        return constant
    return max(SMALLEST, min(1.0, math.exp(-DECAY * (step - FLAT_STEPS))))


def expected_updates(step: int, constant: float | None) -> float:
    """Return the sum of the probabilities of steps 1 to n."""
    if constant is not None:
        return constant * step
    decaying = min(max(step - FLAT_STEPS, 0), DECAY_STEPS)
    # a geometric series
    ratio = math.exp(-DECAY)
    return (
        min(step, FLAT_STEPS)
        + ratio * (1 - ratio**decaying) / (1 - ratio)
        + SMALLEST * max(step - FLAT_STEPS - DECAY_STEPS, 0)
    )


def updates_at(step: int, constant: float | None, *, stochastic: bool, seed: int) -> bool:
    """Return whether the preconditioner is updated at step n.

    Args:
        step: n, from 1.
        constant: see `update_probability`.
        stochastic: whether to draw, and not to update whenever the sum of probabilities passes a whole number.
        seed: of the draws.
    """
    if stochastic:
        return uniform_number(seed, step, "update preconditioner") < update_probability(step, constant)
    return math.floor(expected_updates(step, constant)) > math.floor(expected_updates(step - 1, constant))


def balances_at(step: int, constant: float | None, *, stochastic: bool, seed: int) -> bool:
    """Return whether an update at step n also balances the factors: one in a hundred."""
    if stochastic:
        return uniform_number(seed, step, "balance preconditioner") < BALANCE_PROBABILITY
    return math.floor(expected_updates(step, constant)) % round(1 / BALANCE_PROBABILITY) == 0
