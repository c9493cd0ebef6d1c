"""What adds to the score of a hypothesis token by token: language models, hotwords, and sums of them.

B utterances, K hypotheses of each, C tokens that may follow a hypothesis.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

State = Any
"""What a scorer knows of hypotheses: a tensor (B, K, …), or a tuple of states."""


class Scorer(Protocol):
    """Scores tokens by the tokens before them; a search may call it with any number of hypotheses per utterance.

    Scores are natural logarithms, or what is added to such, with their weight applied. That of a whole text is the
    sum over its tokens, in order, and ``end``.
    """

    def start(self, batch_size: int, device: torch.device) -> State:
        """Return the state (B, 1, …) of the empty text."""

    def score(self, state: State, tokens: Tensor) -> Tensor:
        """Return what each token adds if it comes next.

        Args:
            state: of hypotheses, (B, K, …).
            tokens: (B, K, C) int64, no blanks.

        Returns:
            (B, K, C), float.
        """

    def advance(self, state: State, tokens: Tensor) -> State:
        """Return the state after a token has been appended to each hypothesis.

        Args:
            state: of hypotheses, (B, K, …).
            tokens: (B, K) int64; a blank leaves the state of its hypothesis as it is.
        """

    def end(self, state: State) -> Tensor:
        """Return what is added if the text ends here: (B, K), float."""


def select(state: State, index: Tensor) -> State:
    """Return the states of some hypotheses.

    Args:
        state: (B, K, …).
        index: (B, J) int64, of hypotheses.

    Returns:
        (B, J, …).
    """
    if isinstance(state, Tensor):
        return state[torch.arange(len(index), device=index.device).unsqueeze(1), index]
    return tuple(select(item, index) for item in state)


class Moves:
    """Where tokens lead from the nodes of a trie, as sorted keys: a device looks up those of all hypotheses at once.

    Args:
        moves: node, token, and the node that it leads to.
        vocab_size: of the tokens.
    """

    def __init__(self, moves: Iterable[tuple[int, int, int]], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        # lists of as many numbers would take several times the memory
        keys, targets = array("q"), array("q")
        for node, token, target in moves:
            keys.append(node * vocab_size + token)
            targets.append(target)
        # without any move a key that nothing has
        keys, targets = (keys, targets) if keys else (array("q", [-1]), array("q", [0]))
        order = np.argsort(keys)
        self.keys, self.targets = (torch.from_numpy(np.array(values)[order]) for values in (keys, targets))

    def to(self, device: torch.device) -> Moves:
        """Move the table to a device, and return it."""
        self.keys, self.targets = self.keys.to(device), self.targets.to(device)
        return self

    def after(self, nodes: Tensor, tokens: Tensor, otherwise: Tensor | int) -> Tensor:
        """Return the nodes (…) int64 after tokens (…) at nodes (…); ``otherwise`` where no arc has the token."""
        keys = nodes * self.vocab_size + tokens
        places = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[places] == keys, self.targets[places], otherwise)


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
