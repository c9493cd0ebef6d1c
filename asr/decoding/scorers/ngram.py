"""An n-gram language model on a device, and one of tokens as a scorer.

B utterances, K hypotheses, C tokens that may follow, L orders of the model, V tokens, N n-grams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from asr.language_models.ngrams import BEGIN, END, UNKNOWN, NGrams
from asr.text.vocabulary import BLANK_ID

LN_10 = math.log(10)


class NGramTables:
    """An n-gram model on a device; the state of a text is the node of the longest n-gram that may be continued.

    Attributes:
        order: words of the longest n-grams.

    Reference:
        Katz 1987, "Estimation of Probabilities from Sparse Data for the Language Model Component of a Speech
        Recognizer", for how back-off weights are used.
    """

    def __init__(self, model: NGrams) -> None:
        self.num_words, self.order, self.num_contexts = len(model.words), model.order, model.num_contexts
        self.keys = torch.from_numpy(model.keys)
        self.of_ngrams = torch.from_numpy(model.log_probs * LN_10)
        self.backoffs = torch.cat((torch.zeros(1, dtype=torch.float64), torch.from_numpy(model.backoffs * LN_10)))
        self.suffixes = torch.from_numpy(model.suffixes())
        self.begin, self.final = model.numbers.get(BEGIN), model.numbers.get(END)

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the nodes (B, 1) after the beginning of a sentence, and move the tables to the device."""
        for name in ("keys", "of_ngrams", "backoffs", "suffixes"):
            setattr(self, name, getattr(self, name).to(device))
        root = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
        return root if self.begin is None else self.after(root, torch.full_like(root, self.begin))

    def log_probs(self, nodes: Tensor, words: Tensor) -> Tensor:
        """Return log-probabilities (B, K, C) of words (B, K, C) after nodes (B, K)."""
        places, levels, contexts = self._found(nodes, words)
        # backing off to a context costs the weights of all longer ones, not its own
        weights = self.backoffs[contexts].cumsum(dim=2).roll(1, dims=2)
        weights[..., 0] = 0.0
        return self.of_ngrams[places] + weights.gather(2, levels)

    def after(self, nodes: Tensor, words: Tensor) -> Tensor:
        """Return the nodes (B, K) after words (B, K)."""
        longest = self._found(nodes, words.unsqueeze(2))[0].squeeze(2) + 1
        # the longest n-grams cannot be continued
        return torch.where(longest < self.num_contexts, longest, self.suffixes[longest])

    def end(self, nodes: Tensor) -> Tensor:
        """Return log-probabilities (B, K) of the end of the sentence; 0 if the model knows none."""
        if self.final is None:
            return torch.zeros_like(nodes, dtype=torch.float64)
        return self.log_probs(nodes, torch.full_like(nodes, self.final).unsqueeze(2)).squeeze(2)

    def _found(self, nodes: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places (B, K, C) of the longest n-grams, how many contexts were too long, and these (B, K, L).

        Args:
            nodes: (B, K).
            words: (B, K, C); each has a 1-gram.
        """
        contexts = [nodes]
        for _ in range(1, self.order):
            contexts.append(self.suffixes[contexts[-1]])
        stacked = torch.stack(contexts, dim=2)
        keys = stacked.unsqueeze(2) * self.num_words + words.unsqueeze(3)
        # keys are unique: no n-gram is taken for another
        places = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        levels = (self.keys[places] == keys).int().argmax(dim=3, keepdim=True)
        return places.gather(3, levels).squeeze(3), levels.squeeze(3), stacked


class NGramScorer:
    """Scores tokens by a model of tokens: by the longest n-gram that they end, with the weights of backing off."""

    def __init__(self, model: NGrams, pieces: Sequence[str]) -> None:
        """Lay out the tables.

        Args:
            model: its words are pieces of the tokenizer.
            pieces: (V,) of the tokenizer; what is not in the model counts as its ``<unk>``.
        """
        unknown = model.numbers[UNKNOWN]
        self.tables = NGramTables(model)
        self.words = torch.tensor([model.numbers.get(piece, unknown) for piece in pieces])

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the nodes (B, 1) after the beginning of a sentence; see ``Scorer``, also for the other methods."""
        self.words = self.words.to(device)
        return self.tables.start(batch_size, device)

    def score(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return log-probabilities (B, K, C) of tokens."""
        return self.tables.log_probs(state, self.words[tokens])

    def advance(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return the nodes (B, K) after tokens (B, K)."""
        return torch.where(tokens == BLANK_ID, state, self.tables.after(state, self.words[tokens]))

    def end(self, state: Tensor) -> Tensor:
        """Return log-probabilities (B, K) of the end of the sentence; 0 if the model knows none."""
        return self.tables.end(state)
