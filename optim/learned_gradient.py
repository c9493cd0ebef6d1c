"""LearnedGradient: the averaged gradient, preconditioned by matrices that are learned from the loss itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import WHOLE, check_order
from optim.engine.param_batch import (
    Group,
    ParamBatch,
    Scalar,
    State,
    Update,
    at_least,
    choose,
    state_dtype,
    zero_per_axes,
    zeros,
)
from optim.engine.transform import Transform
from optim.transforms.matrices import matmul

SMALL = 5  # elements up to which a tensor has no matrices
META_NORMS = ("frobenius", "rms", "rms_squared")
TINY = 1e-20
# The matrices move by a fixed length along what cancellation leaves of a derivative. That magnifies rounding most where
# there are few elements, and there float64 costs nothing.
FLOAT64_BELOW_NUMEL = 4096
BLOCK = 256  # rows up to which one call is faster than several that skip work
PERIOD = 4  # steps between two changes of a size


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
        common: see `ChainOptions`.

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
        **common: Unpack[ChainOptions],
    ) -> None:
        # the size first: it keeps the rms that the step of this update is relative to
        own = locals()
        transforms = [LogSize.of(own), LearnedAxes.of(own)]
        super().__init__(params, transforms, lr=lr, **common)


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

    size_lr_scale: Annotated[float, "[0, inf)"]
    betas: Annotated[tuple[float, float], ("(0, 1)", "(0, 1)")]
    param_min_rms: Annotated[float, "(0, inf)"]
    param_max_rms: Annotated[float, "(0, inf)"]
    foreach = True

    def check(self, group: Group) -> None:
        """Refuse an empty range of sizes, and averages of the wrong order."""
        check_order(group, "param_min_rms", "param_max_rms")
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
    derivative, held = batch.dot(batch.param, batch.grad), batch.tensors(batch.state["scale_grads"])
    rows = torch.cat([x.view(-1, PERIOD) for x in held]) if len(held) > 1 else held[0]
    derivative = derivative.reshape(rows.shape[:-1]) if isinstance(derivative, Tensor) else derivative
    if isinstance(slot, Tensor):
        here = torch.arange(PERIOD, device=rows.device) == slot
        column = derivative.unsqueeze(-1) if isinstance(derivative, Tensor) else derivative
        rows.copy_(torch.where(here, column, rows))
    else:
        place = rows.select(-1, slot)
        place.copy_(derivative) if isinstance(derivative, Tensor) else place.fill_(derivative)
    if len(held) > 1:
        counts = [len(part.entries) for part in batch.parts]
        torch._foreach_copy_(held, [x.view(y.shape) for x, y in zip(rows.split(counts), held, strict=True)])
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


class LearnedAxes(Transform):
    """The averaged gradient, multiplied on each axis k by a learned symmetric positive definite matrix M_k.

    At the parameter's own step t = 0, 1, …; ``x ×_k M`` multiplies x by M along axis k, ``G_(k)`` unfolds g along it.
    Axes are learned unless their size is 1 or that of the whole tensor; above ``max_full_dim``, M_k and C_k are
    diagonal. Every ``lr_est_period`` steps, with ḡ as it was after the previous step and μ = lr · meta_lr_scale:

        C_k ← β₂ C_k + G_(k) G_(k)ᵀ
        d = ḡ ×₁ M₁ ×₂ M₂ …,   c = d ×₁ C₁/mean(diag C₁) ×₂ …,   r = √mean(d c)
        h = g/r − ⟨g, d⟩/(r³ N) · c                      the derivative by d of J = ⟨g, d⟩/r
        D_k = h_(k) (ḡ ×_{j≠k} M_j)_(k)ᵀ,   S_k = ½ (D_k + D_kᵀ) M_k,   A_k = I + μ S_k/‖S_k‖
        M_k ← A_k M_k A_kᵀ, over its mean diagonal;   M_k ← (1 − identity_mix) M_k + identity_mix I

    If r is not finite and positive, as before any gradient, M stays; so does an M_k that would not be finite.
    Every step:

        ḡ ← β₁ ḡ + (1 − β₁) g,   d = ḡ ×₁ M₁ ×₂ M₂ …,   ρ = rms(d) + eps
        u = lr · r_p · √((1 − β₁)/(1 + β₁)) · clip(d, ±max_step_scale ρ)/ρ         r_p: ``param_rms`` of `LogSize`

    Tensors of up to 5 elements: v ← β₂ v + (1 − β₂) g², u = lr · r_p · ḡ/(√(mean(v)/(1 − β₂ᵗ⁺¹)) + eps), with r_p = 1
    for a single element.

    The matrices of tensors of less than 4096 elements are learned in float64, if the device has it, and kept in the
    state's dtype. A ``capturable`` optimizer computes in every step what only those of the period use.

    State: ḡ (``exp_avg``); M_k and C_k (``matrix_<axis>``, ``covariance_<axis>``), or v (``exp_avg_sq``).

    Args:
        meta_lr_scale: μ relative to lr, at least 0.
        betas: decay of ḡ, and of C and v.
        eps: added to ρ and to the root.
        lr_est_period: steps between two updates of the M_k.
        max_step_scale: limit of an element of d, in units of ρ.
        max_full_dim: largest axis with a full matrix.
        meta_norm: ‖·‖ is "frobenius"; "rms" its value per element; "rms_squared" that, with μ².
        identity_mix: in [0, 1).
    """

    meta_lr_scale: Annotated[float, "[0, inf)"]
    betas: Annotated[tuple[float, float], ("(0, 1)", "(0, 1)")]
    eps: Annotated[float, "[0, inf)"]
    lr_est_period: Annotated[int, "[1, inf)" + WHOLE]
    max_step_scale: Annotated[float, "(0, inf)"]
    max_full_dim: Annotated[int, "[0, inf)" + WHOLE]
    meta_norm: Annotated[str, [*META_NORMS]]
    identity_mix: Annotated[float, "[0, 1)"]
    foreach = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero (*shape), unit matrices and covariances of zero (n, n), or their diagonals (n)."""
        state: State = {"exp_avg": zeros(param, group)}
        if param.numel() <= SMALL:
            return {**state, "exp_avg_sq": zeros(param, group)}
        for axis, size in enumerate(param.shape):
            if size in (1, param.numel()):
                continue
            # a vector stands for a diagonal matrix: n² floats of a long axis would exceed the parameter itself
            one = param.new_ones(size, dtype=state_dtype(param))
            state[f"matrix_{axis}"] = one.diag() if size <= group["max_full_dim"] else one
            state[f"covariance_{axis}"] = torch.zeros_like(state[f"matrix_{axis}"])
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the step."""
        (beta1, beta2), grad, average = batch.group["betas"], update.value(), batch.state["exp_avg"]
        size: Scalar = 1.0 if batch.single_element else batch.read(batch.state["param_rms"])
        if "exp_avg_sq" in batch.state:
            average.lerp_(grad, 1 - beta1)
            v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            root = (batch.mean(v) / (1 - beta2**batch.step)) ** 0.5 + batch.group["eps"]
            return Update(average, size / root * batch.group["lr"])
        due = (batch.step - 1) % batch.group["lr_est_period"] == 0
        # before the average takes this gradient: the matrices are judged by the step that the old average made
        for part, g in zip(batch.parts, batch.tensors(grad), strict=True) if due is not False else ():
            learn(g, learned_axes(part), part, due)
        average.lerp_(grad, 1 - beta1)
        directions = []
        for part, m in zip(batch.parts, batch.tensors(average), strict=True):
            product = transformed(m, learned_axes(part), part)
            # without a learned axis nothing has made a new tensor, and clamp_ would write to the statistic
            directions.append(product.clone() if product is m else product)
        direction = batch.joined(directions)
        rms = batch.rms(direction) + batch.group["eps"]
        limit = rms * batch.group["max_step_scale"]
        direction.clamp_(-limit, limit)
        return Update(direction, size * batch.group["lr"] * ((1 - beta1) / (1 + beta1)) ** 0.5 / rms, overwritable=True)


def learned_axes(batch: ParamBatch) -> list[int]:
    """Return the axes that have a matrix, counted from the end."""
    num_axes = len(batch.shape)
    return [axis - num_axes for axis in range(num_axes) if f"matrix_{axis}" in batch.state]


def matrix_of(axis: int, batch: ParamBatch, kind: str = "matrix") -> Tensor:
    """Return M_k, or C_k as the kind "covariance"; or the vector of its diagonal."""
    matrix: Tensor = batch.state[f"{kind}_{axis + len(batch.shape)}"]
    return matrix


def _is_full(matrix: Tensor, batch: ParamBatch) -> bool:
    return matrix.dim() - batch.stacked == 2


def transformed(x: Tensor, axes: list[int], batch: ParamBatch, but: int | None = None) -> Tensor:
    """Return x, (*shape) or (N, *shape), multiplied by the matrices of all axes but one."""
    for axis in axes:
        if axis != but:
            x = multiplied(x, matrix_of(axis, batch), axis, batch.stacked)
    return x


def learn(grad: Tensor, axes: list[int], batch: ParamBatch, due: bool | Tensor = True) -> None:
    """Update the covariances with a gradient, (*shape) or (N, *shape), and improve the matrices by it, if it is due."""
    for axis in axes:
        covariance, columns = matrix_of(axis, batch, "covariance"), unfolded(grad, axis, batch.stacked)
        product = symmetric_product(columns.mT, columns.mT) if _is_full(covariance, batch) else columns.square().sum(-2)
        covariance.copy_(choose(due, product.add_(covariance, alpha=batch.group["betas"][1]), covariance))
    first = not isinstance(batch.step, Tensor) and batch.step == 1
    if first or not axes:
        return  # no average, and so no previous step to judge: h would hold NaN
    for axis, new in _improved(axes, precise(batch, grad)).items():
        old = matrix_of(axis, batch)
        # with a mean diagonal of 1, only elements that are not finite make a sum that is not
        takes = new.sum((-2, -1) if _is_full(new, batch) else -1, keepdim=True).isfinite()
        takes = takes & due if isinstance(due, Tensor) else takes
        torch.where(takes, new.to(old.dtype), old, out=old)


def precise(batch: ParamBatch, grad: Tensor) -> ParamBatch:
    """Return the batch with this gradient, (*shape) or (N, *shape), in float64 if that costs nothing."""
    if batch.numel >= FLOAT64_BELOW_NUMEL or grad.device.type == "mps":  # which has no float64
        return replace(batch, grad=grad)
    state = {key: value.double() for key, value in batch.state.items() if isinstance(value, Tensor)}
    return replace(batch, grad=grad.double(), state=state)


def _improved(axes: list[int], batch: ParamBatch) -> dict[int, Tensor]:
    """Return the new M_k by axis; empty if it is known that there is no derivative."""
    rests = {axis: transformed(batch.state["exp_avg"], axes, batch, but=axis) for axis in axes}
    # d from one of the rests by a single product, the cheapest
    shortest = min(axes, key=lambda axis: batch.shape[axis])
    direction = multiplied(rests[shortest], matrix_of(shortest, batch), shortest, batch.stacked)
    slope = meta_gradient(batch.grad, direction, axes, batch)
    if slope is None:
        return {}
    return {axis: _moved(axis, slope, rests[axis], direction, batch) for axis in axes}


def meta_gradient(grad: Tensor, direction: Tensor, axes: list[int], batch: ParamBatch) -> Tensor | None:
    """Return h, the derivative of J by d, (*shape) or (N, *shape) like g and d; None if it is known that there is none.

    If that cannot be read without waiting for the device, h holds NaN instead.
    """
    covered = direction
    for axis in axes:
        covariance = matrix_of(axis, batch, "covariance")
        full = _is_full(covariance, batch)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1) if full else covariance
        # over its mean: C is of the size of g², and a product over several axes could leave the range of float32
        mean = diagonal.mean(-1, keepdim=True).add_(TINY)
        covered = multiplied(covered, covariance / (mean.unsqueeze(-1) if full else mean), axis, batch.stacked)
    square = batch.dot(direction, covered) / batch.numel
    if isinstance(square, Tensor):
        square = torch.where((square > 0) & square.isfinite(), square, torch.nan)
    elif not 0 < square < float("inf"):
        return None
    root = square**0.5
    along_direction = batch.dot(grad, direction) / (square * root * batch.numel)
    return grad / root - covered * along_direction


def _moved(axis: int, slope: Tensor, rest: Tensor, direction: Tensor, batch: ParamBatch) -> Tensor:
    """Return M_k after one step along D_k, given h, ḡ ×_{j≠k} M_j and d."""
    matrix, mix = matrix_of(axis, batch), batch.group["identity_mix"]
    full = _is_full(matrix, batch)
    if full:
        step = _scaled(_full_step(axis, slope, rest, direction, batch), (-2, -1), batch.group)
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        new = symmetric_product(matmul(step, matrix), step)
        diagonal = new.diagonal(dim1=-2, dim2=-1)
        # J does not depend on the size of M_k: without this line it would drift
        new.div_(diagonal.mean(-1)[..., None, None])
    else:
        columns = unfolded(slope, axis, batch.stacked), unfolded(rest, axis, batch.stacked)
        step = _scaled((columns[0] * columns[1]).sum(-2).mul_(matrix), (-1,), batch.group)
        new = step.add_(1).square_().mul_(matrix)
        diagonal = new.div_(new.mean(-1, keepdim=True))
    # diagonal is a view of new, so both lines write to one tensor
    if mix:
        new.mul_(1 - mix)
        diagonal.add_(mix)
    return new


def _full_step(axis: int, slope: Tensor, rest: Tensor, direction: Tensor, batch: ParamBatch) -> Tensor:
    """Return S_k = ½ (D_k + D_kᵀ) M_k."""
    matrix, stacked = matrix_of(axis, batch), batch.stacked
    if batch.shape[axis] ** 2 > 2 * batch.numel:
        # M_k times two thin factors costs less than times D_k
        half = slope / 2
        return inner(half, direction, axis, stacked) + inner(
            rest, multiplied(half, matrix, axis, stacked), axis, stacked
        )
    # lerp with 0.5: (D + Dᵀ)/2 in one pass
    derivative = inner(slope, rest, axis, stacked)
    return matmul(torch.lerp(derivative, derivative.mT, 0.5), matrix)


def _scaled(step: Tensor, inner_axes: tuple[int, ...], group: Group) -> Tensor:
    """Scale a step to the length that the matrices move by, in place."""
    norm, speed = group["meta_norm"], group["lr"] * group["meta_lr_scale"]
    length = torch.linalg.vector_norm(step, dim=inner_axes, keepdim=True)
    if norm != "frobenius":
        length /= step.shape[-1] ** (len(inner_axes) / 2)
    return step.mul_((speed * speed if norm == "rms_squared" else speed) / length.add_(TINY))


def unfolded(x: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return x as a matrix whose columns run along an axis: (…, M, n); a stack of matrices for a stack.

    Args:
        x: (*shape) or (N, *shape).
        axis: counted from the end.
        stacked: whether there is a first axis of N.
    """
    lead = x.shape[:1] if stacked else ()
    moved = x.movedim(axis, -1)
    return moved.reshape(*lead, -1, x.shape[axis])


def multiplied(x: Tensor, matrix: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return x multiplied along an axis by a symmetric matrix (n, n), or by a diagonal one, given as (n).

    Args:
        x: (*shape) or (N, *shape).
        matrix: (n, n) or (n); with a first axis of N if x is a stack.
        axis: counted from the end.
        stacked: whether there is a first axis of N.
    """
    if matrix.dim() - stacked == 1:
        return x * along(matrix, x, axis, stacked)
    # the last two axes need no movedim, whose reshape would copy x; M is symmetric, so either side is right
    if axis == -1 and x.dim() - stacked >= 2:
        return matmul(x, matrix.reshape(len(x), *[1] * (x.dim() - 3), *matrix.shape[1:]) if stacked else matrix)
    if axis == -2 and x.dim() - stacked == 2:
        return matmul(matrix, x)
    product = matmul(unfolded(x, axis, stacked), matrix)
    return product.reshape(x.movedim(axis, -1).shape).movedim(-1, axis)


def along(vector: Tensor, x: Tensor, axis: int, stacked: bool) -> Tensor:
    """Shape a vector (n), or (N, n) of a stack, so that it broadcasts along an axis of x."""
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    if stacked:
        shape[0] = x.shape[0]
    return vector.reshape(shape)


def inner(first: Tensor, second: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return the inner products of all pairs of slices along an axis, (n, n), or (N, n, n) of stacks."""
    return matmul(unfolded(first, axis, stacked).mT, unfolded(second, axis, stacked))


def symmetric_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of the first matrix and the second transposed; the caller knows that it is symmetric.

    The part above the diagonal is mirrored, not multiplied: for large matrices that saves up to three eighths.

    Args:
        first: (…, n, m).
        second: (…, n, m).
    """
    product = first.new_empty(*first.shape[:-1], first.shape[-2])
    _fill_symmetric(product, first, second)
    return product


def _fill_symmetric(product: Tensor, first: Tensor, second: Tensor) -> None:
    size = product.shape[-1]
    if size <= BLOCK:
        block = matmul(first, second.mT)
        # matmul rounds (i, j) and (j, i) differently: without this the matrices would lose their symmetry over time
        torch.add(block, block.mT, out=product).mul_(0.5)
        return
    half = size // 2
    for part in (slice(half), slice(half, size)):
        _fill_symmetric(product[..., part, part], first[..., part, :], second[..., part, :])
    # halves, not single blocks: matmul is efficient on large parts only
    below = matmul(first[..., half:, :], second[..., :half, :].mT)
    product[..., half:, :half] = below
    product[..., :half, half:] = below.mT
