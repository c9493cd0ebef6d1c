"""Greedy searches in encodings that arrive in pieces, with the tokens of the search in the whole.

T frames, D width of encodings.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asr import devices
from asr.models.heads.protocols import FrameScores, Transduces
from asr.text.vocabulary import BLANK_ID


class TokenStream(Protocol):
    """A search that continues with each piece.

    Attributes:
        tokens: found so far.
        num_silent: frames since the last token.
    """

    tokens: list[int]
    num_silent: int

    def accept(self, encodings: Tensor) -> None:
        """Search in encodings (1, T, D)."""


class CtcStream:
    """The tokens that ``CtcGreedy`` finds in the whole."""

    def __init__(self, head: FrameScores) -> None:
        self.head, self.last = head, BLANK_ID
        self.tokens: list[int] = []
        self.num_silent = 0

    def accept(self, encodings: Tensor) -> None:
        """Search in encodings (1, T, D)."""
        for label in devices.to_host(self.head.frame_log_probs(encodings)[0].argmax(dim=-1)):
            self.num_silent = self.num_silent + 1 if label == BLANK_ID else 0
            if label not in (BLANK_ID, self.last):
                self.tokens.append(label)
            self.last = label


class TransducerStream:
    """The tokens that ``TransducerGreedy`` finds in the whole.

    Args:
        head: of the recognizer.
        max_symbols: as there.
    """

    def __init__(self, head: Transduces, max_symbols: int) -> None:
        self.head, self.max_symbols = head, max_symbols
        self.context = torch.tensor([[-1] * (head.context_size - 1) + [BLANK_ID]])
        self.prediction: Tensor | None = None
        self.tokens: list[int] = []
        self.num_silent = 0

    def accept(self, encodings: Tensor) -> None:
        """Search in encodings (1, T, D)."""
        if self.prediction is None:
            self.context = self.context.to(encodings.device)
            self.prediction = self.head.predict(self.context)
        for frame in self.head.project(encodings)[0]:
            self.num_silent += 1
            for _ in range(self.max_symbols):
                label = self.head.join(frame[None], self.prediction).argmax(dim=-1)
                (token,) = devices.to_host(label)
                if token == BLANK_ID:
                    break
                self.tokens.append(token)
                self.num_silent = 0
                self.context = torch.cat((self.context[:, 1:], label[None]), dim=1)
                self.prediction = self.head.predict(self.context)
