"""What adds to the score of a hypothesis token by token: language models, hotwords, and sums of them.

B utterances, K hypotheses of each, C tokens that may follow a hypothesis.
"""

from __future__ import annotations

from typing import Any, Protocol

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
