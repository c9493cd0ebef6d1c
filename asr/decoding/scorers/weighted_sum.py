"""Several scorers as one, and a bonus for each token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.decoding.scorers.protocol import Scorer, State


class WeightedSum:
    """Adds up scorers, each times its weight, and a constant per token, which makes up for what they take off."""

    def __init__(self, scorers: Sequence[tuple[Scorer, float]], token_bonus: float = 0.0) -> None:
        """Combine scorers.

        Args:
            scorers: with their weights; a negative weight takes a scorer off.
            token_bonus: added for each token.
        """
        self.scorers = tuple(scorers)
        self.token_bonus = token_bonus

    def start(self, batch_size: int, device: torch.device) -> State:
        """Return the states (B, 1, …) of all, of the empty text; see ``Scorer``, also for the other methods."""
        # shows how many hypotheses there are, even if there is no scorer
        none = torch.zeros(batch_size, 1, device=device)
        return (none, *(scorer.start(batch_size, device) for scorer, _ in self.scorers))

    def score(self, state: State, tokens: Tensor) -> Tensor:
        """Return the weighted sum (B, K, C)."""
        scores = torch.full_like(tokens, self.token_bonus, dtype=torch.float64)
        for (scorer, weight), part in zip(self.scorers, state[1:], strict=True):
            scores += weight * scorer.score(part, tokens)
        return scores

    def advance(self, state: State, tokens: Tensor) -> State:
        """Return the states after the tokens (B, K)."""
        parts = zip(self.scorers, state[1:], strict=True)
        return (torch.zeros_like(tokens), *(scorer.advance(part, tokens) for (scorer, _), part in parts))

    def end(self, state: State) -> Tensor:
        """Return the weighted sum (B, K) of what all add at the end."""
        ends = torch.zeros_like(state[0], dtype=torch.float64)
        for (scorer, weight), part in zip(self.scorers, state[1:], strict=True):
            ends += weight * scorer.end(part)
        return ends
