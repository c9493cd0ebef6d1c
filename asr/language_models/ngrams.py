"""An n-gram language model as a trie of sorted keys."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPECIAL = (BEGIN, END, UNKNOWN)
ROOT = 0

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NGrams:
    """N-grams with their probabilities, N of them, of M words.

    Node 0 is the empty context, and the n-gram with the i-th key is node i + 1. A key is the node of all words but the
    last, times M, plus the number of the last word. Shorter n-grams come first.

    Attributes:
        words: the distinct words, by their numbers.
        counts: how many n-grams there are of each order.
        keys: (N,) ascending.
        log_probs: (N,) of the last word after the others, in log10.
        backoffs: (N,) what is added in log10 where the n-gram is followed by a word it has no n-gram with.
    """

    words: Sequence[str]
    counts: Sequence[int]
    keys: Ints
    log_probs: Floats
    backoffs: Floats

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @property
    def order(self) -> int:
        """Words of the longest n-grams."""
        return len(self.counts)

    @property
    def num_contexts(self) -> int:
        """How many nodes, the first ones, may be followed by a word: all but the longest n-grams."""
        return 1 + sum(self.counts[:-1])

    def children(self, nodes: Ints, words: Ints) -> Ints:
        """Return the nodes (…) after nodes (…) and one word (…) more, 0 where there are no such n-grams."""
        keys = nodes * len(self.words) + words
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places + 1, ROOT)

    def suffixes(self) -> Ints:
        """Return the node of the longest n-gram that each node ends with, itself left out: (N + 1,)."""
        suffixes = np.zeros(len(self.keys) + 1, dtype=np.int64)
        begin = self.counts[0]
        for count in self.counts[1:]:
            nodes = np.arange(begin, begin + count)
            parents, words = np.divmod(self.keys[nodes], len(self.words))
            longest, context = np.zeros_like(nodes), parents
            # a pruned model may lack some of the shorter ones
            while (todo := (longest == ROOT) & (context != ROOT)).any():
                context = np.where(todo, suffixes[context], context)
                longest = np.where(todo, self.children(context, words), longest)
            suffixes[nodes + 1] = longest
            begin += count
        return suffixes
