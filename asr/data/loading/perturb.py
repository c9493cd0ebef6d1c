"""Augmentation of audio, before features are computed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated

from lhotse.cut import Cut
from pydantic import Field

# resampling by 1.0001 takes a filter of a hundred million numbers
Speed = Annotated[float, Field(ge=0.5, le=2.0, multiple_of=0.01)]
Speeds = Annotated[Sequence[Speed], Field(min_length=1)]


class SpeedPerturb:
    """Plays a cut at one of several speeds, drawn with equal probability.

    Args:
        factors: speeds, 1.0 for unchanged.

    Reference:
        Ko et al. 2015, "Audio Augmentation for Speech Recognition" (factors 0.9, 1.0, 1.1).
        Differs: drawn again in every epoch, instead of tripling the corpus.
    """

    def __init__(self, factors: Speeds = (0.9, 1.0, 1.1)) -> None:
        self.factors = tuple(factors)

    def __call__(self, cut: Cut, rng: random.Random) -> Cut:
        """Return the cut at a speed drawn from ``rng``."""
        factor = rng.choice(self.factors)
        return cut if factor == 1.0 else cut.perturb_speed(factor)

    def slowest(self) -> SpeedPerturb:
        """Return a perturbation that always uses the slowest speed, for measuring memory."""
        return SpeedPerturb((min(self.factors),))
