"""Rubik: orthogonal steps of matrices, relative to a size of each tensor that is learned too."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from optim.engine.chain import Chain, ChainOptions
from optim.engine.distributed import divided
from optim.engine.group_step import launches_cost
from optim.engine.options import FLOAT_DTYPE, SWITCH
from optim.engine.param_batch import (
    HALF,
    Group,
    ParamBatch,
    Scalar,
    State,
    Update,
    assign,
    at_most,
    state_dtype,
    zero_per_axes,
    zeros,
)
from optim.engine.transform import GroupTransform
from optim.transforms.adam import average_squares
from optim.transforms.orthogonalize import Coefficients, iterate

# for five iterations from singular values of 2e-2 on, with a cushion of 2
POLAR_EXPRESS: tuple[Coefficients, ...] = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SAFETY, TINY = 1.01, 1e-6  # a matrix is divided by 1.01 of its norm, and a little


class Rubik(Chain):
    """Muon and Adam in units of a tensor's size, which is learned by the sign of its gradient.

    Every tensor p with more than one element is seen as s · p/s, where s is its size: steps are s times those of a
    tensor of RMS 1, and s itself shrinks or grows with the whole tensor, within ``scale_limits``. `RubikChange` has the
    equations.

    Use: with `InterpCosine` over the whole run, on all parameters; there is no weight decay.

    State: for a matrix of R×C elements the momentum (``momentum_buffer``, 2 bytes each by default) and max(R, C)
    averaged squares (``second_momentum_buffer``); for vectors and scalars ``exp_avg`` and ``exp_avg_sq``; for each
    tensor its size (``scale``) and the momentum of its gradient (``scale_grad_buffer``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate relative to the size, at least 0; a tensor of one element is allowed.
        beta1: decay of the momentum of matrices, in [0, 1).
        beta2: decay of the averaged squares of matrices, in [0, 1).
        eps: added to the roots, at least 0.
        scale_limits: least and largest size, 0 < least ≤ largest.
        scalar_scale: size of single elements, and times lr the rate of sizes, at least 0.
        adam_beta1: decay of the averages of vectors and single elements, in [0, 1).
        adam_beta2: decay of their averaged squares, in [0, 1).
        scale_momentum: decay of the sum of a size's gradients, in [0, 1).
        compute_dtype: of the momentum and the iterations of matrices; None for that of statistics.
        shard_matrix_work: in a distributed run, divide the matrices over the processes, as `Muon`.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/k2-fsa/icefall, pull request 2082 (commit 7e077af0), zapformer/batched_rubik.py, class BatchedRubik;
        no paper. Also the defaults.
        Differs: a parameter without gradient stands still, where a stack there counts a gradient of zeros, and each has
        a state of its own. Products of matrices are rounded once less in bfloat16.

    Examples:
        >>> weight = nn.Parameter(0.1 * torch.eye(2))
        >>> optimizer = optim.Rubik([weight], lr=0.1)
        >>> weight.grad = torch.tensor([[1.0, 2.0], [2.0, 5.0]])
        >>> optimizer.step()
        >>> f"{optimizer.state[weight]['scale'].item():.4f}"  # of RMS 0.0707, which the gradient shrinks
        '0.0704'
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.2e-2,
        beta1: float = 0.99,
        beta2: float = 0.98,
        eps: float = 1e-8,
        scale_limits: tuple[float, float] = (0.03, 0.15),
        scalar_scale: float = 0.05,
        adam_beta1: float = 0.98,
        adam_beta2: float = 0.98,
        scale_momentum: float = 0.95,
        compute_dtype: torch.dtype | str | None = "bfloat16",
        shard_matrix_work: bool = False,
        **common: Unpack[ChainOptions],
    ) -> None:
        super().__init__(params, [RubikChange.of(locals())], lr=lr, **common)


class RubikChange(GroupTransform):
    """Turns a gradient u into the change of a parameter p, at its own step t = 0, 1, …

    Vectors (all but one axis have one element) and single elements, b₁ = adam_beta1, b₂ = min(adam_beta2, t/(t+1)):

        m ← b₁ m + (1 − b₁) u,   v ← b₂ v + (1 − b₂) u²,   d = (b₁ m + (1 − b₁) u)/(√v + eps)

    Others are seen as the R×C matrix of adjacent axes whose sides differ least. In ``compute_dtype``, with
    b₁ = min(beta1, 1 − 1/(10 + t/5)), b₂ = min(beta2, t/(t+1)), v at first 1, and polar(g) orthogonal and close to g:

        m ← b₁ m + (1 − b₁) u,   g = polar((b₁ m + (1 − b₁) u)/(√v + eps))
        v ← b₂ v + (1 − b₂) mean of g² over the shorter side
        d = (1 − b₁)/√(1 − b₁²) · g/(√v + eps)

    Single elements:  p ← p − lr · scalar_scale · d.  Others, with limits clamped and s at first the RMS of p:

        h = ⟨u, p⟩,   a ← scale_momentum · a + h,   s' = s
        s ← clamp(s (1 − lr · scalar_scale · sign(scale_momentum · a + h)))
        p ← s/s' (1 − lr²/2) p − lr s d
    """

    beta1: Annotated[float, "[0, 1)"]
    beta2: Annotated[float, "[0, 1)"]
    eps: Annotated[float, "[0, inf)"]
    scale_limits: Annotated[tuple[float, float], ("(0, inf)", "(0, inf)")]
    scalar_scale: Annotated[float, "[0, inf)"]
    adam_beta1: Annotated[float, "[0, 1)"]
    adam_beta2: Annotated[float, "[0, 1)"]
    scale_momentum: Annotated[float, "[0, 1)"]
    compute_dtype: Annotated[torch.dtype | str | None, FLOAT_DTYPE]
    shard_matrix_work: Annotated[bool, SWITCH]
    foreach = True

    def check(self, group: Group) -> None:
        """Refuse an empty range of sizes."""
        least, most = group["scale_limits"]
        if least > most:
            raise ValueError(f"scale_limits must be (least, largest), given {group['scale_limits']!r}")

    def kind(self, shape: torch.Size) -> Hashable:
        """Return how many axes a parameter is seen with: 0, 1 or 2."""
        return num_axes(shape)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages in the parameter's shape, or of a matrix as (R, C) and (R, 1) or (1, C); for more than one
        element also the size and its gradient's momentum, (1, …).
        """
        if num_axes(param.shape) < 2:
            state: State = {"exp_avg": zeros(param, group), "exp_avg_sq": zeros(param, group)}
        else:
            rows, cols = matrix_shape(param.shape)
            name, wide = group["compute_dtype"], state_dtype(param)
            state = {
                "momentum_buffer": param.new_zeros(rows, cols, dtype=getattr(torch, name) if name else wide),
                "second_momentum_buffer": param.new_ones((rows, 1) if rows > cols else (1, cols), dtype=wide),
            }
        if num_axes(param.shape) == 0:
            return state
        norm = torch.linalg.vector_norm(param.detach(), dtype=state_dtype(param))
        size = (norm / param.numel() ** 0.5).clamp_(*group["scale_limits"]).reshape([1] * param.dim())
        return {**state, "scale": size, "scale_grad_buffer": zero_per_axes(param, ())}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the change, and shrink or grow the parameter."""
        u = update.value()
        if num_axes(batch.shape) == 2:
            steps = self._steps([polar(x) for x in self._inputs(u, batch)], batch)
            return Update(steps, self._learn_size(u, batch), overwritable=True)
        lr, direction = batch.group["lr"], self._adam(u, batch)
        size = batch.group["scalar_scale"] if num_axes(batch.shape) == 0 else self._learn_size(u, batch)
        return Update(direction, size * lr, overwritable=True)

    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return all changes, each matrix made orthogonal by one process."""
        us = [update.value() for update in updates]
        taken = [place for place, batch in enumerate(batches) if num_axes(batch.shape) == 2]
        inputs = [x for place in taken for x in self._inputs(us[place], batches[place])]
        costs = [x.numel() * min(x.shape[-2:]) for x in inputs]
        orthogonal = iter(divided(lambda x: [polar(x)], inputs, costs, [[x] for x in inputs]))
        return [
            Update(self._steps([*next(orthogonal)], batch), self._learn_size(u, batch), overwritable=True)
            if num_axes(batch.shape) == 2
            else self(update, batch)
            for u, update, batch in zip(us, updates, batches, strict=True)
        ]

    def _adam(self, u: Tensor, batch: ParamBatch) -> Tensor:
        group, state = batch.group, batch.state
        keep, beta2 = 1 - group["adam_beta1"], at_most((batch.step - 1) / batch.step, group["adam_beta2"])
        m = state["exp_avg"].lerp_(u, keep)
        v = average_squares(state["exp_avg_sq"], u, beta2)
        return m.lerp(u, keep).div_(v.sqrt().add_(group["eps"]))

    def _inputs(self, u: Tensor, batch: ParamBatch) -> list[Tensor]:
        """Return momentum a step ahead as matrices (N, R, C) of norm 1, divided by the root of averaged squares."""
        ms = batch.tensors(batch.state["momentum_buffer"])
        us = _cast([x.reshape(m.shape) for x, m in zip(batch.tensors(u), ms, strict=True)], ms[0].dtype)
        weight = 1 - self._beta1(batch)
        _lerp_(ms, us, weight)
        xs = _lerp(ms, us, weight)  # a step ahead
        torch._foreach_div_(xs, unflatten(self._roots(batch), batch.tensors(batch.state["second_momentum_buffer"])))
        norms = [torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) for x in xs]
        # not foreach calls, which round a number to bfloat16 first (torch 2.13)
        torch._foreach_div_(xs, unflatten(flatten(norms).mul_(SAFETY).add_(TINY), norms))
        return xs

    def _steps(self, matrices: list[Tensor], batch: ParamBatch) -> Tensor:
        """Return lr times the steps that orthogonal matrices (N, R, C) make, in the shape and dtype of parameters."""
        params, vs, dtype = (
            batch.tensors(batch.param),
            batch.tensors(batch.state["second_momentum_buffer"]),
            matrices[0].dtype,
        )
        axes = [-1 if v.shape[-1] == 1 else -2 for v in vs]
        if launches_cost(matrices[0].device) or dtype in HALF:
            pairs = zip(matrices, axes, strict=True)
            squares = [torch.linalg.vector_norm(x, dim=axis, keepdim=True, dtype=vs[0].dtype) for x, axis in pairs]
            torch._foreach_mul_(squares, squares)
        else:  # a norm along rows takes four times as long on a CPU (torch 2.13)
            squares = [
                torch.linalg.vecdot(x, x, dim=axis).view(v.shape).to(v.dtype)
                for x, axis, v in zip(matrices, axes, vs, strict=True)
            ]
        torch._foreach_div_(squares, [float(x.shape[axis]) for x, axis in zip(matrices, axes, strict=True)])
        beta2 = rounded(at_most((batch.step - 1) / batch.step, batch.group["beta2"]), dtype)
        _lerp_(vs, squares, 1 - beta2)
        # each operation of the reference rounds
        beta1, lr = self._beta1(batch), rounded(batch.group["lr"], dtype)
        root = rounded(rounded(1 - rounded(beta1 * beta1, dtype), dtype) ** -0.5, dtype)
        rate = rounded(lr * rounded(rounded(1 - beta1, dtype) * root, dtype), dtype)
        roots = self._roots(batch)
        if dtype in HALF:
            torch._foreach_div_(matrices, unflatten(roots, vs))
            torch._foreach_mul_(matrices, rate)
        else:  # one pass over the elements
            torch._foreach_mul_(matrices, unflatten(rate / roots, vs))
        shaped = _cast([step.reshape(p.shape) for step, p in zip(matrices, params, strict=True)], params[0].dtype)
        return batch.joined(shaped)

    def _beta1(self, batch: ParamBatch) -> Scalar:
        beta1 = at_most(1 - 1 / (10 + 0.2 * (batch.step - 1)), batch.group["beta1"])
        return rounded(beta1, batch.state["momentum_buffer"].dtype)

    def _roots(self, batch: ParamBatch) -> Tensor:
        """Return √v + eps of all matrices as a vector, in their dtype."""
        vs, dtype = batch.tensors(batch.state["second_momentum_buffer"]), batch.state["momentum_buffer"].dtype
        return flatten(vs).sqrt().add_(rounded(batch.group["eps"], dtype)).to(dtype)

    def _learn_size(self, u: Tensor, batch: ParamBatch) -> Scalar:
        """Learn the size s, shrink or grow the parameter with it, and return it."""
        group, lr = batch.group, batch.group["lr"]
        h = batch.dot(batch.param, u)
        # tensors also where numbers would be faster: p has to change by what is left of s after rounding
        before, a = (batch.per_parameter(batch.state[key]) for key in ("scale", "scale_grad_buffer"))
        a = a * group["scale_momentum"] + h
        sign = (a * group["scale_momentum"] + h).sign()
        size = (before * (1 - sign * (lr * group["scalar_scale"]))).clamp(*group["scale_limits"])
        batch.param.mul_(size / before * (1 - 0.5 * lr * lr))
        assign(batch.state["scale_grad_buffer"], a)
        assign(batch.state["scale"], size)
        return size


def num_axes(shape: torch.Size) -> int:
    """Return 0 for single elements, 1 where all elements lie along one axis, and 2 for matrices."""
    numel = shape.numel()
    return 0 if numel <= 1 else 1 if numel == max(shape) else 2


def matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns of a tensor seen as a matrix: of adjacent axes, those that differ least."""
    rows = [math.prod(shape[: end + 1]) for end in range(len(shape))]
    best = min(rows, key=lambda k: abs(k - shape.numel() // k))
    return best, shape.numel() // best


def rounded(x: Any, dtype: torch.dtype) -> Scalar:
    """Return a number as the reference's arithmetic has it, which rounds numbers to the dtype of matrices."""
    return x.to(dtype).to(x.dtype) if isinstance(x, Tensor) else _rounded(float(x), dtype)


@lru_cache(maxsize=256)
def _rounded(x: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(x, dtype=dtype))


def polar(x: Tensor) -> Tensor:
    """Return orthogonal matrices close to x (N, R, C) of norm 1, which is overwritten, by five iterations."""
    if launches_cost(x.device) or x.dtype not in HALF:
        return iterate(x, POLAR_EXPRESS)
    tall = x.shape[-2] > x.shape[-1]
    # the reference's operations: in 16 bits the small singular values are what rounding makes of them
    for a, b, c in POLAR_EXPRESS:
        gram = x.mT @ x if tall else x @ x.mT
        poly = (gram @ gram).mul_(c).add_(gram.mul_(b))
        x = (x @ poly if tall else poly @ x).add_(x.mul_(a))
    return x


def _cast(xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    if xs[0].dtype == dtype:
        return xs
    result = [torch.empty_like(x, dtype=dtype) for x in xs]
    torch._foreach_copy_(result, xs)  # one call for all
    return result


def _lerp_(xs: list[Tensor], ys: list[Tensor], weight: Scalar) -> None:
    """Replace each x by x + weight · (y − x)."""
    if isinstance(weight, Tensor):  # foreach calls take numbers alone
        torch._foreach_mul_(xs, 1 - weight)
        torch._foreach_add_(xs, torch._foreach_mul(ys, weight))
    else:
        torch._foreach_lerp_(xs, ys, weight)


def _lerp(xs: list[Tensor], ys: list[Tensor], weight: Scalar) -> list[Tensor]:
    """Return x + weight · (y − x) of each x and y."""
    if not isinstance(weight, Tensor):
        return list(torch._foreach_lerp(xs, ys, weight))
    result = list(torch._foreach_mul(xs, 1 - weight))
    torch._foreach_add_(result, torch._foreach_mul(ys, weight))
    return result
