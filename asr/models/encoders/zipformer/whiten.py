"""Whiten: keeps the channels of a module's output from depending on each other, by the gradient alone.

N frames of all utterances, D channels, G groups of D/G channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from asr.models import devices
from asr.models.encoders.zipformer.scaling import BatchCount, FloatLike, ScheduledFloat

TINY = 1e-20
SELDOM, OFTEN = 0.025, 0.25


def whitening_schedule(batch_count: BatchCount, limit: float, ratio: float = 2.0) -> ScheduledFloat:
    """Return a limit that grows to ``ratio`` times its first value in 20,000 batches."""
    return ScheduledFloat(batch_count, (0.0, limit), (20_000.0, ratio * limit))


def centered_groups(x: Tensor, num_groups: int) -> Tensor:
    """Return x (N, D) minus its mean, in groups (G, N, D/G)."""
    return (x - x.mean(dim=0)).unflatten(1, (num_groups, -1)).transpose(0, 1)


def whitening_metric(covariance: Tensor) -> Tensor:
    """Return mean(λ²) / mean(λ)² over the eigenvalues λ of covariances (G, D/G, D/G), a scalar: 1 if all are equal."""
    num_channels = covariance.shape[0] * covariance.shape[1]
    # without eigenvalues: the trace is their sum, and the squared Frobenius norm is the sum of their squares
    mean = covariance.diagonal(dim1=1, dim2=2).sum() / num_channels
    return covariance.square().sum() / num_channels / (mean.square() + TINY)


def gradient_matrix(covariance: Tensor) -> Tensor:
    """Return the matrices that map centered groups (G, N, D/G) to the gradient of the metric of centeredᵀ·centered.

    With S the covariances (G, D/G, D/G), M the metric and m the mean eigenvalue, the gradient by S, of its shape, is
    (2/D) (S − M m I) / m².
    """
    num_channels = covariance.shape[0] * covariance.shape[1]
    mean = covariance.diagonal(dim1=1, dim2=2).sum() / num_channels
    square = mean.square() + TINY
    matrix = covariance / square
    matrix.diagonal(dim1=1, dim2=2).sub_(whitening_metric(covariance) * mean / square)
    return matrix.mul_(4 / num_channels)


class _Whitened(Function):
    """x (…, D) unchanged, with the gradient of `Whiten`; limit (), and applies () bool."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Whiten, limit: Tensor, applies: Tensor) -> Tensor:
        ctx.save_for_backward(x, limit, applies)
        ctx.module = module
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, limit, applies = ctx.saved_tensors
        # eigenvalues of a covariance in 16 bits would be equal to within rounding, or infinite
        exact = x if x.dtype == torch.float64 else x.float()
        centered = centered_groups(exact.flatten(0, -2), ctx.module.num_groups)
        covariance = centered.transpose(1, 2) @ centered
        violated = whitening_metric(covariance) >= limit
        ctx.module.remember(violated, applies)
        # on a GPU all is computed, if only to be multiplied by 0: the host would have to wait for `violated`
        if not devices.on_accelerator(x) and not violated:
            return gradient, None, None, None
        extra = (centered @ gradient_matrix(covariance)).transpose(0, 1).reshape(gradient.shape)
        # the norm of a gradient in 16 bits overflows
        norm, extra_norm = (torch.linalg.vector_norm(g.to(exact.dtype)) for g in (gradient, extra))
        scale = ctx.module.gradient_scale * norm / (extra_norm + TINY)
        extra.mul_(torch.where(violated & applies, scale, 0.0))
        return extra.add_(gradient).to(gradient.dtype), None, None, None


class Whiten(nn.Module):
    """Returns its input, and adds a term to its gradient that makes the channels' covariance more like a multiple of 1.

    The term is the gradient of `whitening_metric` if that is above the limit, scaled to a fraction of the norm of the
    gradient. It is active in one of 4 forward passes while the limit is violated, else in one of 40.

    Args:
        limit: of `whitening_metric`, at least 1.
        gradient_scale: norm of the term, relative to the norm of the gradient.
        num_groups: G, whose covariances are all held to one multiple of 1.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230, appendix; the definition is that of icefall's code.
        Differs: its probability is saved in checkpoints, and all ranks use that of the first.
    """

    def __init__(
        self, batch_count: BatchCount, limit: FloatLike, gradient_scale: float = 0.01, num_groups: int = 1
    ) -> None:
        super().__init__()
        self.batch_count = batch_count
        self.limit, self.gradient_scale, self.num_groups = limit, gradient_scale, num_groups
        self.largest_probability = OFTEN
        self.place = batch_count.register(limit).start
        # a buffer: a resumed run must continue with it, and DistributedDataParallel sends the first rank's to all
        self.register_buffer("probability", torch.tensor(OFTEN))
        self.probability: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, …, D)."""
        # before the buffer is read: most passes end here, on every device
        is_active = self.training and self.batch_count.is_active(self.largest_probability)
        if not is_active or not x.requires_grad:
            return x
        random_number, limit = self.batch_count.values[0], self.batch_count.values[self.place]
        applies = self.probability > random_number
        if not devices.on_accelerator(x) and not applies:
            return x
        whitened: Tensor = _Whitened.apply(x, self, limit, applies)
        return whitened

    def remember(self, violated: Tensor, applies: Tensor) -> None:
        """Raise the probability of later passes if the limit was ``violated``, else lower it; both () bool."""
        probability = torch.where(violated, OFTEN, SELDOM)
        # a pass that was only computed to spare the host a wait must change nothing
        self.probability.copy_(torch.where(applies, probability, self.probability))
