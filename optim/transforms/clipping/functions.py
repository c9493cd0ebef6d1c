"""Functions that limit an update, by name: of one parameter's update, never of all together."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from optim.engine.param_batch import ParamBatch, Scalar, Update, at_least

MU = 127.0
A = 87.6
TRUST_SCALE, TRUST_LERP, TRUST_LIMIT = 1.5, 0.9, 2.0


def l2(update: Update, batch: ParamBatch) -> Update:
    """Return u/max(1, ‖u‖₂)."""
    return _scaled_down(update, batch, batch.rms_of(update) * batch.numel**0.5)


def rms_norm(update: Update, batch: ParamBatch) -> Update:
    """Return u/max(1, rms(u)), as in Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 6."""
    return _scaled_down(update, batch, batch.rms_of(update))


def _scaled_down(update: Update, batch: ParamBatch, size: Scalar) -> Update:
    # divide by at least 1 instead of multiplying by min(1, 1/size): an update of zeros stays finite
    factor = 1 / at_least(size, 1.0)
    batch.note_limit(factor)
    return update.times(factor)


def trust_region(update: Update, batch: ParamBatch) -> Update:
    """Return, element by element, 1.5 (0.1 sign(y) log(1 + |y|) + 0.9 tanh y) within ±2, where y = u/1.5.

    Reference:
        HeavyBall 1.4.1, ``utils.trust_region_clip_``; no paper.
    """
    y = update.value() / TRUST_SCALE
    bounded = y.abs().log1p_().copysign_(y).lerp_(y.tanh(), TRUST_LERP)
    return Update(bounded.mul_(TRUST_SCALE).clamp_(-TRUST_LIMIT, TRUST_LIMIT), overwritable=True)


def mu_law(update: Update, batch: ParamBatch) -> Update:
    """Return, element by element, sign(u) log(1 + µ|u|)/log(1 + µ) with µ = 127; the µ-law of ITU-T G.711 has 255."""
    u = update.value()
    return Update(u.abs().mul_(MU).log1p_().div_(math.log1p(MU)).copysign_(u), overwritable=True)


def a_law(update: Update, batch: ParamBatch) -> Update:
    """Return, element by element, sign(u) f(A|u|)/(1 + log A): f(x) = x below 1, else 1 + log x; A of ITU-T G.711."""
    u = update.value()
    x = u.abs().mul_(A)
    return Update(torch.where(x < 1, x, 1 + x.log()).div_(1 + math.log(A)).copysign_(u), overwritable=True)


CLIPPERS: dict[str, Callable[[Update, ParamBatch], Update]] = {
    "l2": l2,
    "rms_norm": rms_norm,
    "trust_region": trust_region,
    "mu_law": mu_law,
    "a_law": a_law,
}
HEAVYBALL_NAMES = {
    "l2_clip_": "l2",
    "rmsnorm_clip_": "rms_norm",
    "trust_region_clip_": "trust_region",
    "mu_law_compress": "mu_law",
    "a_law_compress": "a_law",
}
