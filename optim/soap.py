"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner.

Legend: x (d₁, …, dₖ), or (N, d₁, …, dₖ) for a stack of N. C (d, d) or (N, d, d) is a covariance of gradients, in which
elements above the diagonal may be old. Q (d, d) or (N, d, d) is a basis, whose rows are eigenvectors, or None for an
axis that is left alone.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Unpack, cast

import torch
from torch import Tensor

from optim.composable import Composable
from optim.engine import group_step
from optim.engine.distributed import divided
from optim.engine.options import SWITCH, WHOLE
from optim.engine.param_batch import ForeachBatch, Group, ParamBatch, State, TensorList, Update, state_dtype, zeros
from optim.engine.transform import GroupTransform
from optim.muon import MATRIX_DEFAULTS, MatrixOptions
from optim.transforms.adam import BETAS, average_squares, beta2_correction, beta2_of
from optim.transforms.matrices import MergedDims, matmul, merged_dims
from optim.transforms.orthogonalize import METHODS, Orthogonalize

PRECOND_SCHEDULER = (1 / 3, 9)
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
TINY = 1e-30  # keeps the quotient finite if a direction is zero
STRIP = 128  # rows of a covariance that are computed by one call: fewer skip more above the diagonal, but call more
STACK_NUMEL = 1 << 25  # elements of bases that are improved together: they take 40 bytes each
FLOOR = 1e-10  # of the largest eigenvalue, where gradients are zero
FIRST_EIGENVALUE = 0.1
MOST_INVERSE_ROOT = (10, 4000)  # as many as the axis has elements, within these


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
        kl_factors: KL-SOAP: fit the covariances of all axes together; d more numbers for each axis of d elements.
        use_precond_schedule: refresh ever more rarely.
        precond_scheduler: (a, b) of that schedule, each above 0.
        options: see `MatrixOptions` and `CommonOptions`; ``weight_decay`` is 0.01 by default. With
            ``orthogonalization``, None by default, steps of matrices become orthogonal as `Muon`'s, with the lengths of
            ``adjust_lr_fn="match_rms_adamw"``. ``shard_matrix_work`` divides the new bases over the processes.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321, algorithm 3. The
        defaults, the first step, the order of the columns, correct_bias and normalize_grads are those of the authors'
        code, github.com/nikhilvyas/SOAP, whose shampoo_beta of -1 stands for betas[1]. KL-SOAP: Lin et al. 2025,
        "Understanding and Improving Shampoo and SOAP via Kullback-Leibler Minimization", arXiv:2509.03378, and the
        authors' code, github.com/yorkerlin/KL-Methods.
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
    common_defaults: ClassVar = {
        **MATRIX_DEFAULTS,
        **{"orthogonalization": None, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.01},
    }
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
        kl_factors: bool = False,
        use_precond_schedule: bool = False,
        precond_scheduler: tuple[float, float] = PRECOND_SCHEDULER,
        **options: Unpack[MatrixOptions],
    ) -> None:
        rule = RotatedAdam.of({**locals(), "shard_matrix_work": options.get("shard_matrix_work", False)})
        super().__init__(params, [rule, OrthogonalSteps], lr=lr, **options)


class OrthogonalSteps(Orthogonalize):
    """`Orthogonalize` that ``orthogonalization=None`` switches off."""

    orthogonalization: Annotated[str | None, [None, *METHODS]] = None
    switch = "orthogonalization"


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

    With ``kl_factors`` each C sees the gradient in the metric of all other axes. With eigenvalues λ_k, at first 0.1,
    and d_k and N elements on axis k and in all, from t = 2

        H_k = g' divided by √λ_j along each other axis j with a matrix,   C_k ← … (d_k/N) (H_k ×_k Q_k)_(k) (…)ᵀ …
        λ_k ← max(shampoo_beta λ_k + (1 − shampoo_beta) mean of H_k² over the other axes, 1/clamp(d_k, 10, 4000)²)

    and at t = 1, C_k ← (1 − shampoo_beta) (d_k/N) G_(k) G_(k)ᵀ.

    With ``use_precond_schedule`` and precond_scheduler = (a, b), such a step refreshes Q only with the frequency
    p = 1/(1 + log₁₀(sᵃ)ᵇ): if the fractional part of s · (√5 − 1)/2 is below p. These parts cover [0, 1) evenly, so
    that the number of refreshes follows the sum of p, and s alone decides.

    A parameter with less than two axes longer than 1, or without an axis that has a matrix, takes plain Adam's steps
    from t = 1. Axes longer than ``max_precond_dim`` have no matrix, unless ``split`` cuts them.

    With ``shard_matrix_work`` the processes of a distributed run divide the new Q_k, see `divided`; what every step
    multiplies is not divided: to send all statistics would take longer.

    State: m (``exp_avg``) and v (``exp_avg_sq``), in the basis and merged; for block b and axis k, C (``gg_b_k``), in
    which elements above the diagonal are those of the last refresh, and Qᵀ (``q_b_k``), and with ``kl_factors`` λ
    (``eigenvalues_b_k``).

    Reference:
        Vyas et al. 2024, "SOAP", arXiv:2409.11321, algorithm 3; see `SOAP`.
    """

    foreach = True
    betas: Annotated[tuple[float, float], BETAS]
    shampoo_beta: Annotated[float, "[0, 1)"]
    eps: Annotated[float, "[0, inf)"]
    precondition_frequency: Annotated[int, "[1, inf)" + WHOLE]
    max_precond_dim: Annotated[int, "[1, inf)" + WHOLE]
    merge_dims: Annotated[bool, SWITCH]
    precondition_1d: Annotated[bool, SWITCH]
    normalize_grads: Annotated[bool, SWITCH]
    correct_bias: Annotated[bool, SWITCH]
    split: Annotated[bool, SWITCH]
    kl_factors: Annotated[bool, SWITCH]
    use_precond_schedule: Annotated[bool, SWITCH]
    precond_scheduler: Annotated[tuple[float, float], ("(0, inf)", "(0, inf)")]
    shard_matrix_work: Annotated[bool, SWITCH]

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
                if axis and group["kl_factors"]:
                    state[f"eigenvalues_{axis}"] = param.new_full((size,), FIRST_EIGENVALUE, dtype=dtype)
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return Adam's direction, turned back from the eigenbasis."""
        direction, turning = self._rotated_update(update, batch)
        for blocks in _sharing_calls(turning, batch):
            _turn([(block, batch.step == 1) for block in blocks], computed)
        return direction

    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return all directions; each new basis is computed by one process."""
        moved = [self._rotated_update(update, batch) for update, batch in zip(updates, batches, strict=True)]
        turning = [
            (block, batch.step == 1) for (_, blocks), batch in zip(moved, batches, strict=True) for block in blocks
        ]
        _turn(turning, _divided)
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
        for some in _sharing_calls(blocks, batch):
            if clock.step > 0:
                directions += _directions(some, clock)
            for block in some:
                # only now: with this gradient in the basis, its own large elements would be made small
                block.cover(group["shampoo_beta"], first=clock.step == 0)
        due = blocks if clock.step == 0 or _refreshes(clock.step, group) else []
        if not directions:
            return Update(torch.zeros_like(u), overwritable=True), due
        return _scaled(_joined(directions, batch), clock), due


def _turn(turning: Sequence[tuple[Block, bool]], compute: Callable[[list[Turn]], Sequence[Sequence[Tensor]]]) -> None:
    """Set the bases of blocks, and whether they are the first ones, to what is computed of all."""
    turns = [block.turns(first=first) for block, first in turning]
    results = iter(compute([turn for of_block in turns for turn in of_block]))
    for (block, first), of_block in zip(turning, turns, strict=True):
        block.turn([next(results) for _ in of_block], first=first)


def _divided(turns: list[Turn]) -> list[Sequence[Tensor]]:
    """Return the results of all turns, each computed by one process."""
    costs = [turn.basis.numel() * turn.basis.shape[-1] for turn in turns]
    return divided(Turn.compute, turns, costs, [turn.like() for turn in turns])


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


def _parts(batch: ParamBatch) -> Iterator[tuple[ParamBatch, Plan]]:
    """Yield every stack, or parameter alone, with its plan."""
    for part in batch.parts:
        plan = _plan_of(part.shape, batch.group)
        assert plan is not None
        yield part, plan


def _blocks(u: Tensor, batch: ParamBatch) -> Iterator[Block]:
    for (part, plan), x in zip(_parts(batch), batch.tensors(u), strict=True):
        tensors = (plan.dims.merge(x, stacked=part.stacked), part.state["exp_avg"], part.state["exp_avg_sq"])
        for g, m, v, axes in zip(*map(plan.dims.split, tensors), plan.axes, strict=True):
            yield Block(
                *(g, m, v),
                *([part.state.get(f"{what}_{axis}") for axis in axes] for what in ("gg", "q", "eigenvalues")),
            )


def _sharing_calls(blocks: list[Block], batch: ParamBatch) -> list[list[Block]]:
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
    return batch.joined(
        [plan.dims.join([next(rest) for _ in plan.axes]).reshape(part.param.shape) for part, plan in _parts(batch)]
    )


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
    scale: Any = _root_correction(batch) / ((1 - group["betas"][0] ** batch.step) if group["correct_bias"] else 1.0)
    if group["normalize_grads"]:
        scale = scale / (batch.rms(direction) + TINY)
    return Update(direction, scale, overwritable=True)


class Block(NamedTuple):
    """One block of a parameter, or of a stack of them: its gradient, averages and matrices, changed in place.

    Attributes:
        grad: (d₁, …, dₖ) or (N, d₁, …, dₖ), not modified.
        exp_avg: m, in the basis.
        exp_avg_sq: v, in the basis.
        covariances: C or None, one per axis.
        bases: Q or None, one per axis.
        eigenvalues: λ (d) or (N, d), or None, one per axis; only with ``kl_factors``.
    """

    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    covariances: list[Tensor | None]
    bases: list[Tensor | None]
    eigenvalues: list[Tensor | None]

    def cover(self, decay: float, *, first: bool) -> None:
        """Add the gradient to the covariances, and with ``kl_factors`` to their eigenvalues."""
        num_axes = len(self.bases)
        numel = math.prod(self.grad.shape[self.grad.dim() - num_axes :])
        kept = enumerate(self.eigenvalues, -num_axes)
        roots = [None if x is None else self._along(axis, x.rsqrt()) for axis, x in kept]
        turned = self.grad if first or not any(x is not None for x in roots) else rotated(self.grad, self.bases)
        for axis, covariance, basis in self._matrices():
            eigenvalues = self.eigenvalues[axis]
            if eigenvalues is None:
                cover(covariance, self.grad, axis, decay)
                continue
            size = self.grad.shape[axis]
            scaled = turned * (size / numel) ** 0.5
            if not first:
                for other, root in enumerate(roots, -num_axes):
                    if root is not None and other != axis:
                        scaled = scaled * root
                rows = scaled.movedim(axis, -num_axes).reshape(*eigenvalues.shape, -1)
                least = min(max(size, MOST_INVERSE_ROOT[0]), MOST_INVERSE_ROOT[1]) ** -2.0
                eigenvalues.lerp_(rows.square().sum(-1), 1 - decay).clamp_(min=least)
                own = [basis if other == axis else None for other in range(-num_axes, 0)]
                scaled = rotated(scaled, own, back=True)
            cover(covariance, scaled, axis, decay)

    def _along(self, axis: int, x: Tensor) -> Tensor:
        """Return (d) or (N, d) in a shape that broadcasts along an axis, counted from the end."""
        shape = [1] * len(self.bases)
        shape[axis] = x.shape[-1]
        return x.reshape(*x.shape[:-1], *shape)

    def turns(self, *, first: bool) -> list[Turn]:
        """Return what is to be computed for new bases.

        Args:
            first: whether there is no basis yet, and the covariances know one gradient.
        """
        numel = math.prod(self.grad.shape[self.grad.dim() - len(self.bases) :])
        turns = []
        for axis, covariance, basis in self._matrices():
            mirror(covariance)
            turns.append(Turn(covariance, basis, numel // self.grad.shape[axis] if first else None))
        return turns

    def turn(self, results: Sequence[Sequence[Tensor]], *, first: bool) -> None:
        """Set the bases to the new ones, and turn the averages with them.

        Args:
            results: of each of the `turns` the new basis, (…, d, d), and unless ``first`` an order, (…, d).
            first: as there.
        """
        average = self.exp_avg if first else rotated(self.exp_avg, self.bases, back=True)
        for (axis, _, basis), (new, *orders) in zip(self._matrices(), results, strict=True):
            basis.copy_(new)
            eigenvalues = self.eigenvalues[axis]
            for order in orders:
                if eigenvalues is not None:
                    eigenvalues.copy_(reordered(eigenvalues, order, -1))
                self.exp_avg_sq.copy_(reordered(self.exp_avg_sq, order, axis))
        if not first:
            self.exp_avg.copy_(rotated(average, self.bases))

    def _matrices(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        for axis, (covariance, basis) in enumerate(zip(self.covariances, self.bases, strict=True), -len(self.bases)):
            if covariance is not None and basis is not None:
                yield axis, covariance, basis


class Turn(NamedTuple):
    """The basis of one axis that is to be made or improved.

    Attributes:
        covariance: C, whole.
        basis: Q, which is not modified.
        rank: that a first covariance can have at most; None if Q is to be improved.
    """

    covariance: Tensor
    basis: Tensor
    rank: int | None

    def like(self) -> list[Tensor]:
        """Return tensors like the results of `compute`."""
        order = self.basis.new_empty(self.basis.shape[:-1], dtype=torch.int64)
        return [self.basis, order] if self.rank is None else [self.basis]

    def compute(self) -> list[Tensor]:
        """Return the new basis, and if there was one, which of the old vectors each of its vectors comes from."""
        if self.rank is None:
            return [x.contiguous() for x in next_basis(self.covariance, self.basis)]
        return [first_basis(self.covariance, self.rank).contiguous()]


def computed(turns: Sequence[Turn]) -> list[list[Tensor]]:
    """Return the results of all turns; on an accelerator, bases of one size are improved together."""
    results: list[list[Tensor]] = [[] for _ in turns]
    places_of: dict[object, list[int]] = defaultdict(list)
    for place, turn in enumerate(turns):
        alone = turn.rank is not None or not group_step.launches_cost(turn.basis.device)
        places_of[place if alone else turn.basis.shape[-1:]].append(place)
    for places in places_of.values():
        if len(places) == 1:
            results[places[0]] = turns[places[0]].compute()
            continue
        bases = [turns[i].basis.view(-1, *turns[i].basis.shape[-2:]) for i in places]
        covariances = [turns[i].covariance.view_as(basis) for i, basis in zip(places, bases, strict=True)]
        most = max(1, STACK_NUMEL // bases[0][0].numel())
        pieces = zip(torch.cat(covariances).split(most), torch.cat(bases).split(most), strict=True)
        improved = [Turn(covariance, basis, None).compute() for covariance, basis in pieces]
        whole = (torch.cat(x) for x in zip(*improved, strict=True))
        parts = zip(*(x.split([len(basis) for basis in bases]) for x in whole), strict=True)
        for i, (basis, order) in zip(places, parts, strict=True):
            results[i] = [basis.view_as(turns[i].basis), order.view(turns[i].basis.shape[:-1])]
    return results


def rotated(x: Tensor, bases: Sequence[Tensor | None], *, back: bool = False) -> Tensor:
    """Return x, (d₁, …, dₖ) or (N, d₁, …, dₖ), in the bases of all its axes, or back from them."""
    first = x.dim() - len(bases)
    for basis in bases:
        # the first axis becomes the last: after all of them they are in order again, and no product copies x
        rest = x.shape[:first] + x.shape[first + 1 :]
        columns = x.reshape(*x.shape[: first + 1], -1).mT
        if basis is not None:
            columns = matmul(columns, basis if back else basis.mT)
        x = columns.reshape(*rest, columns.shape[-1])
    return x


def cover(covariance: Tensor, x: Tensor, axis: int, decay: float) -> None:
    """C ← decay C + (1 − decay) X Xᵀ, (…, d, d); rows of X are the slices of x along an axis counted from the end."""
    first = covariance.dim() - 2
    rows = x.movedim(axis, first).reshape(*covariance.shape[:-1], -1)
    if group_step.launches_cost(x.device):
        plus = covariance.baddbmm_ if first else covariance.addmm_
        plus(rows, rows.mT, beta=decay, alpha=1 - decay)
        return
    if first:
        covariance.lerp_(rows @ rows.mT, 1 - decay)
        return
    rows = rows.contiguous()
    for start in range(0, len(rows), STRIP):
        stop = min(start + STRIP, len(rows))
        # C is symmetric: what lies right of the strip's end would cost up to half of the products
        product = matmul(rows[start:stop], rows[:stop].mT)
        covariance[start:stop, :stop].lerp_(product, 1 - decay)


def mirror(covariance: Tensor) -> None:
    """Fill the part of C (…, d, d) that `cover` leaves out, or left out before parameters were stacked differently."""
    for start in range(STRIP, covariance.shape[-1], STRIP):
        stop = start + STRIP
        covariance[..., :start, start:stop].copy_(covariance[..., start:stop, :start].mT)


def first_basis(covariance: Tensor, rank: int) -> Tensor:
    """Return the eigenvectors of C as rows, (…, d, d), the largest eigenvalue's first.

    Args:
        covariance: of a single gradient.
        rank: which it can have at most.
    """
    # eigh raises for NaN, which is the one parameter's trouble and not that of the step
    _, columns = torch.linalg.eigh(covariance.nan_to_num(0.0, 0.0, 0.0))
    columns = columns.flip(-1)
    if rank < columns.shape[-1]:
        # rounding decides which vectors eigh returns for the eigenvalue 0, and Adam's steps depend on them; what
        # Householder's reflections add to the others depends on those alone
        columns = torch.linalg.qr(columns[..., :rank], mode="complete").Q
    return columns.mT


def next_basis(covariance: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the basis (…, d, d) after one power iteration, and which old vector each new one comes from, (…, d).

    The signs of its vectors differ between devices; no step depends on them.
    """
    powers = matmul(basis, covariance)
    eigenvalues = (powers * basis).sum(-1)
    order = eigenvalues.argsort(dim=-1, descending=True, stable=True)
    # in this order, because QR changes the first columns least, and those of large eigenvalues are known best
    device = powers.device
    if powers.dtype != torch.float32 or not group_step.launches_cost(device) or device.type == "mps":
        return torch.linalg.qr(reordered(powers, order, -2).mT).Q.mT, order
    # C plus a multiple of I has the same eigenvectors, and makes no vector zero or the multiple of another
    floor = eigenvalues.amax(-1)[..., None, None].double().mul_(FLOOR).clamp_(min=1e-100)
    return orthonormal(reordered(powers + basis * floor, order, -2)).float(), order


def orthonormal(rows: Tensor) -> Tensor:
    """Return the Q of QR of linearly independent vectors, in float64 and up to signs, by calls that take a whole stack.

    torch's QR on a GPU takes one matrix after the other, which is nearly all of SOAP's time there.

    Args:
        rows: (…, n, n) float64, the vectors.

    Reference:
        Fukaya et al. 2020, "Shifted Cholesky QR for Computing the QR Factorization of Ill-Conditioned Matrices",
        arXiv:1809.11085. Differs: each of the three passes normalizes the vectors, and shifts.
    """
    # ten times as much as Cholesky's factor was found to need
    shift = 50 * rows.shape[-1] * torch.finfo(rows.dtype).eps
    for _ in range(3):
        rows = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        gram = rows @ rows.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(shift)
        # cholesky would wait for the device, to raise for NaN
        rows = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(gram).L, rows, upper=False)
    return rows


def reordered(x: Tensor, order: Tensor, axis: int) -> Tensor:
    """Return x with its slices along an axis, counted from the end, in another order; (d) or (N, d) indices."""
    if order.dim() == 1:
        return x.index_select(axis, order)
    shape = [1] * x.dim()
    shape[0], shape[axis] = order.shape
    return x.take_along_dim(order.reshape(shape), axis)
