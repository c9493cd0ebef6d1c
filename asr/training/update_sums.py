"""What an update is made of, summed over its micro-batches and over all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

ZERO = torch.zeros(())  # a 0-dim CPU tensor can be added to one of a GPU, and takes its device


class UpdateSums(NamedTuple):
    """Sums of one rank as float32 scalars, or of all ranks as numbers.

    Attributes:
        loss: nats.
        num_tokens: target tokens; those of utterances that are too short do not count.
        num_utterances: that were read.
        audio_s: seconds of their audio.
        num_too_short: utterances too short for their transcript.
        num_unreadable: utterances that could not be read.
        num_nonfinite: ranks whose gradients are not finite.
    """

    loss: Any = ZERO
    num_tokens: Any = ZERO
    num_utterances: Any = ZERO
    audio_s: Any = ZERO
    num_too_short: Any = ZERO
    num_unreadable: Any = ZERO
    num_nonfinite: Any = ZERO

    def plus(self, **terms: Tensor | float) -> UpdateSums:
        """Return the sums with one term more for each name; waits for no device."""
        return self._replace(**{name: getattr(self, name) + term for name, term in terms.items()})

    def over_ranks(self, strategy: Strategy, device: torch.device) -> UpdateSums:
        """Return the sums over all ranks as numbers, by one reduction for all."""
        # waits for the device, once per update
        local = torch.cat([value.to(device).view(1) for value in self])
        return UpdateSums(*strategy.reduce(local, reduce_op="sum").tolist())  # Lightning's default is the mean
