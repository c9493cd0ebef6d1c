"""Limiters of a Zapformer, which change nothing in the forward pass, and add to gradients in the backward pass.

Each term is the gradient of a penalty, times a scale () that training sets. The penalties are sums over utterances and
frames, of padding too, like a loss that is summed over utterances.

B batch, T frames, S frames that are attended to, D channels, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from asr.models import devices
from asr.models.encoders.zipformer.scaling import limit_param_value
from asr.models.kernels import at_least_float32, blocks, is_tracing

TINY = 1e-20
MIN_CORRELATED = 4  # utterances: two may be copies of one, as with CR-CTC
MAX_CORRELATION, CORRELATION_SCALE = 0.25, 2.0
MAX_RMS = 1.0
MAX_GATE, GATE_SCALE = 2.0, 0.002
MAX_SCORE, SCORE_SCALE = 8.0, 0.01
ORTHOGONAL_SCALE = 20.0
MAX_SCALAR_GRADIENT = 30_000.0  # a sum over all frames would overflow in 16 bits


class _Limited(Function):
    """x (…) unchanged; ``pull(x, *others)`` (…) times scale () is added to its gradient, nothing if that is None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, pull: Callable[..., Tensor | None], *others: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale, *others)
        ctx.pull = pull
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, *others = ctx.saved_tensors
        pulled = ctx.pull(x, *others)
        if pulled is not None:
            gradient = torch.addcmul(at_least_float32(gradient), pulled, scale).to(gradient.dtype)
        return gradient, None, None, *(None for _ in others)


def limit_gates(gates: Tensor, scale: Tensor) -> Tensor:
    """Return gates (…); what is beyond ±2, where a sigmoid is flat, is pulled back."""
    return _Limited.apply(gates, scale, _gate_pull)


def _gate_pull(gates: Tensor) -> Tensor | None:
    if not devices.on_accelerator(gates) and max(x.abs() for x in gates.aminmax()) <= MAX_GATE:
        return None
    return torch.where(gates.abs() > MAX_GATE, gates.sign(), 0.0).mul_(GATE_SCALE)


def limit_correlation(x: Tensor, padding: Tensor, scale: Tensor) -> Tensor:
    """Return x (B, T, D); its channels are decorrelated if they vary alike in even and in odd utterances.

    The penalty is 2 B T (c − 0.25) for c above 0.25, the mean of the product of the second moments (D, D) of both
    halves of the batch, of frames with a root mean square of 1.

    Args:
        x: (B, T, D); fewer than four utterances are not limited.
        padding: (B, T) bool; those frames are not counted.
        scale: ().
    """
    return x if x.shape[0] < MIN_CORRELATED else _Limited.apply(x, scale, _correlation_pull, padding)


def _correlation_pull(x: Tensor, padding: Tensor) -> Tensor | None:
    exact = at_least_float32(x)
    inverse_rms = exact.square().mean(dim=-1, keepdim=True).add_(TINY).rsqrt_()
    unit = (exact * inverse_rms).masked_fill_(padding.unsqueeze(2), 0.0)
    even, odd = unit[0::2].flatten(0, 1), unit[1::2].flatten(0, 1)
    num_even, num_odd = ((~half).sum().clamp(min=1) for half in (padding[0::2], padding[1::2]))
    of_even, of_odd = even.t() @ even / num_even, odd.t() @ odd / num_odd
    is_correlated = (of_even * of_odd).mean() > MAX_CORRELATION
    # on a GPU all is computed, if only to be multiplied by 0: the host would have to wait for it
    if not devices.on_accelerator(x) and not is_correlated:
        return None
    pulled = torch.empty_like(unit)
    factor = is_correlated * (2 * CORRELATION_SCALE * padding.numel() / x.shape[2] ** 2)
    pulled[0::2] = (even @ (of_odd * (factor / num_even))).view_as(pulled[0::2])
    pulled[1::2] = (odd @ (of_even * (factor / num_odd))).view_as(pulled[1::2])
    # through the division by the root mean square
    return pulled.addcmul_(unit, (pulled * unit).mean(dim=-1, keepdim=True), value=-1).mul_(inverse_rms)


class _LimitedResidual(Function):
    """`add_residual`: x and after (B, T, D), share, and scale () or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, after: Tensor, share: float, scale: Tensor | None) -> Tensor:
        y = torch.lerp(x, after, share)
        # both are kept by others too; their difference is what is limited
        ctx.save_for_backward(*((x, y, scale) if scale is not None else ()))
        ctx.share = share
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_x, d_after = torch.empty_like(gradient), torch.empty_like(gradient)
        for block in blocks(gradient):
            d_offset = gradient[block]
            if ctx.saved_tensors:
                x, y, scale = ctx.saved_tensors
                offset = y[block] - x[block]
                rms = offset.square().mean(dim=-1, keepdim=True).sqrt_()
                factor = torch.where(rms > MAX_RMS, scale / (rms.clamp(min=TINY) * (MAX_RMS * x.shape[-1])), 0.0)
                d_offset = offset.mul_(factor).add_(d_offset)
            torch.mul(d_offset, ctx.share, out=d_after[block])
            torch.sub(gradient[block], d_after[block], out=d_x[block])
        return d_x, d_after, None, None


def add_residual(x: Tensor, after: Tensor, share: float, scale: Tensor | None) -> Tensor:
    """Return x + offset with offset = share · (after − x), whose frames are pulled to a root mean square of at most 1.

    Args:
        x: (B, T, D), what went into a layer.
        after: (B, T, D), x and what the modules of the layer added.
        share: of what they added.
        scale: (); None: no limit.
    """
    return torch.lerp(x, after, share) if is_tracing() else _LimitedResidual.apply(x, after, share, scale)


@dataclass(frozen=True)
class AverageScoreLimit:
    """Pulls attention back where the average size of the scores that a frame attends by is above 8.

    Attributes:
        scale: ().
        padding: (B, T) bool; those frames are not counted.
    """

    scale: Tensor
    padding: Tensor

    def kept(self, block: slice, scores: Tensor, weights: Tensor) -> Tensor:
        """Return the scale (b, H, T, 1) of each frame's penalty, 0 where it does not apply."""
        # in place: nobody needs the scores any more
        average = scores.abs_().mul_(weights).sum(dim=-1, keepdim=True)
        applies = (average > MAX_SCORE) & ~self.padding[block, None, :, None]
        return applies * (self.scale * (SCORE_SCALE / (MAX_SCORE * scores.shape[1])))

    def pull_(self, gradient: Tensor, kept: Tensor, scores: Callable[[], Tensor], weights: Tensor) -> None:
        """Add the gradient of the penalties to that of the scores (b, H, T, S)."""
        if not devices.on_accelerator(kept) and not kept.any():
            return
        signed = scores()
        size = signed.abs()
        average = (size * weights).sum(dim=-1, keepdim=True)
        gradient.add_(signed.sign_().add_(size).sub_(average).mul_(weights).mul_(kept))


class _Orthogonal(Function):
    """A weight W (E, D) unchanged; the gradient G gets 40 mean|G| (W Wᵀ − 1) W, or W (Wᵀ W − 1) if E > D."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        is_tall = weight.shape[0] > weight.shape[1]
        product = weight.t() @ weight if is_tall else weight @ weight.t()
        product.diagonal().sub_(1.0)
        pulled = weight @ product if is_tall else product @ weight
        return torch.addcmul(gradient, pulled, 2 * ORTHOGONAL_SCALE * gradient.abs().mean())


def keep_orthogonal(weight: Tensor) -> Tensor:
    """Return a weight (E, D) unchanged; it is pulled to one whose rows or columns, the fewer, are orthonormal."""
    return _Orthogonal.apply(weight)


def limit_scalar(scalar: Tensor, least: float, most: float, training: bool) -> Tensor:
    """Return a scalar () unchanged; in training its gradient fits 16 bits, and leads back between the limits."""
    if not training or not torch.is_grad_enabled():
        return scalar
    limited = limit_param_value(scalar, (least, most))
    if limited.requires_grad:
        limited.register_hook(lambda gradient: gradient.clamp(-MAX_SCALAR_GRADIENT, MAX_SCALAR_GRADIENT))
    return limited
