"""An n-gram language model of words as a scorer of tokens.

B utterances, K hypotheses, C tokens that may follow, V tokens, N nodes, M words of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.decoding.scorers.ngram import LN_10, NGramTables
from asr.decoding.scorers.scorer import Moves
from asr.language_models.ngrams import SPECIAL, UNKNOWN, NGrams
from asr.text.normalize import SURROGATE
from asr.text.vocabulary import BLANK_ID

ROOT = 0  # between words

Trie = dict[str, Any]
WordState = tuple[Tensor, Tensor, Tensor]  # (B, K): n-grams, letters of the last word, whether a space ended it
TOKENS = ""  # key of the tokens that end in a node of a trie of them


class WordNGramScorer:
    """Scores words when they are complete, and before that by the most probable word that begins as they do.

    A word is complete when the next one begins, and at the end of the text. What is expected of a word is the highest
    1-gram probability of all words with its letters so far; the difference from its real probability is added where it
    is complete, so that whole texts have the score of their words. Words that the model does not know are its
    ``<unk>``.

    Reference:
        Ortmanns et al. 1996, "Language-model look-ahead for large vocabulary speech recognition", ICSLP, with 1-grams.
    """

    def __init__(self, model: NGrams, surfaces: Sequence[str], normalize: Callable[[str], str]) -> None:
        """Lay out the tables.

        Args:
            surfaces: (V,) text of each token; a space in front begins a word, one at the end completes it.
            normalize: words of the model → words as in the transcripts of the run.

        Raises:
            ValueError: no word can be written with the tokens, or a token holds parts of several words.
        """
        if spanning := [surface for surface in surfaces if " " in surface.strip(" ")]:
            raise ValueError(
                f"a model of words cannot score tokens that hold parts of several, such as {spanning[:3]}; give a "
                "model of tokens, which asr-lm run=RUN text=FILE output=FILE makes"
            )
        self.tables = NGramTables(model)
        unigrams = model.log_probs[: model.counts[0]] * LN_10  # shorter n-grams come first, ordered by their words
        unknown = model.numbers[UNKNOWN]
        spelled = _spelled(model, unigrams, normalize)
        if SURROGATE.search("".join(surfaces)):  # tokens of single bytes: parts of letters, which may be split anywhere
            surfaces = [surface.encode("utf-8", "surrogateescape").decode("latin-1") for surface in surfaces]
            spelled = {word.encode().decode("latin-1"): number for word, number in spelled.items()}
        letters = set("".join(surfaces))
        if not any(letters.issuperset(word) for word in spelled):
            raise ValueError(f"its words are like {[*spelled][:3]}, and none is written with the letters of the run")
        children, word_of = _trie(spelled, unknown)
        self.dead = len(children)  # of words that the model does not know
        reach = _reach(children, word_of, unigrams, unknown)
        self.moves = Moves(_moves(children, surfaces), len(surfaces))
        self.begins = torch.tensor([surface.startswith(" ") for surface in surfaces])
        self.ends = torch.tensor([surface.endswith(" ") for surface in surfaces])
        self.word_of = torch.tensor([*word_of, unknown])
        self.reach = torch.tensor([*reach, unigrams[unknown]], dtype=torch.float64)

    def start(self, batch_size: int, device: torch.device) -> WordState:
        """Return the state (B, 1) of the empty text; see ``Scorer``, also for the other methods."""
        for name in ("moves", "begins", "ends", "word_of", "reach"):
            setattr(self, name, getattr(self, name).to(device))
        ngrams = self.tables.start(batch_size, device)
        return ngrams, torch.full_like(ngrams, ROOT), torch.zeros_like(ngrams, dtype=torch.bool)

    def score(self, state: WordState, tokens: Tensor) -> Tensor:
        """Return what tokens add (B, K, C): what is now expected of a word, and what is known of the one before."""
        ngrams, letters, ended_word = state
        begins, inside = self.begins[tokens] | ended_word.unsqueeze(2), letters.unsqueeze(2).expand(tokens.shape)
        # a token that begins a word leaves the letters of the word before
        target = self.moves.after(inside.masked_fill(begins, ROOT), tokens, otherwise=self.dead)
        ended = torch.where(begins, self._completed(ngrams, letters).unsqueeze(2), 0.0)
        return self.reach[target] - self.reach[inside] + ended

    def advance(self, state: WordState, tokens: Tensor) -> WordState:
        """Return the state (B, K) after tokens (B, K)."""
        ngrams, letters, ended_word = state
        begins, is_blank = self.begins[tokens] | ended_word, tokens == BLANK_ID
        after = torch.where(begins & ~is_blank, self._after(ngrams, letters), ngrams)
        target = self.moves.after(letters.masked_fill(begins, ROOT), tokens, otherwise=self.dead)
        ended_word = torch.where(is_blank, ended_word, self.ends[tokens])
        return after, torch.where(is_blank, letters, target), ended_word

    def end(self, state: WordState) -> Tensor:
        """Return what is known (B, K) of the last word and the end of the text."""
        ngrams, letters, _ = state
        return self._completed(ngrams, letters) - self.reach[letters] + self.tables.end(self._after(ngrams, letters))

    def _completed(self, ngrams: Tensor, letters: Tensor) -> Tensor:
        """Return log-probabilities (B, K) of the words whose letters these are; 0 between words."""
        log_probs = self.tables.log_probs(ngrams, self.word_of[letters].unsqueeze(2)).squeeze(2)
        return log_probs.masked_fill(letters == ROOT, 0.0)

    def _after(self, ngrams: Tensor, letters: Tensor) -> Tensor:
        """Return the n-grams (B, K) after the words whose letters these are."""
        return torch.where(letters == ROOT, ngrams, self.tables.after(ngrams, self.word_of[letters]))


def _spelled(model: NGrams, unigrams: np.ndarray, normalize: Callable[[str], str]) -> dict[str, int]:
    """Return the numbers of words by how the run writes them; the most probable one if it writes several in one way."""
    numbers: dict[str, int] = {}
    for word, number in model.numbers.items():
        written = word if word in SPECIAL else normalize(word)
        if word not in SPECIAL and written and " " not in written:
            other = numbers.setdefault(written, number)
            if unigrams[number] > unigrams[other]:
                numbers[written] = number
    return numbers


def _trie(spelled: dict[str, int], unknown: int) -> tuple[list[Trie], list[int]]:
    """Return the next nodes by letter, and the word that ends in each node."""
    children: list[Trie] = [{}]
    word_of = [unknown]
    for word, number in spelled.items():
        node = ROOT
        for letter in word:
            if letter not in children[node]:
                children[node][letter] = len(children)
                children.append({})
                word_of.append(unknown)
            node = children[node][letter]
        word_of[node] = number
    return children, word_of


def _reach(children: list[Trie], word_of: list[int], unigrams: np.ndarray, unknown: int) -> list[float]:
    """Return the highest log-probability of the words with the letters of each node, and 0 for the first."""
    reach = [unigrams[unknown] if word == unknown else unigrams[word] for word in word_of]
    # children have higher numbers
    for node in reversed(range(len(children))):
        word_reach = [] if word_of[node] == unknown else [reach[node]]
        reach[node] = max((*word_reach, *(reach[child] for child in children[node].values())), default=reach[node])
    reach[ROOT] = 0.0
    return reach


def _moves(children: list[Trie], surfaces: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield node, token, and the node that the token leads to."""
    inner: Trie = {}
    beginning: Trie = {}
    for token, surface in enumerate(surfaces):
        letters = surface.strip(" ")
        if surface and " " not in letters:
            trie = beginning if surface.startswith(" ") else inner
            for letter in letters:
                trie = trie.setdefault(letter, {})
            trie.setdefault(TOKENS, []).append(token)
    for node in range(len(children)):
        for trie in (inner, beginning) if node == ROOT else (inner,):
            yield from ((node, token, target) for token, target in _reached(children, node, trie))


def _reached(children: list[Trie], node: int, tokens: Trie) -> Iterator[tuple[int, int]]:
    """Yield the tokens whose letters may follow a node, and where they lead."""
    todo = [(node, tokens)]
    while todo:
        at, trie = todo.pop()
        yield from ((token, at) for token in trie.get(TOKENS, ()))
        todo += [(children[at][letter], trie[letter]) for letter in children[at].keys() & trie.keys()]
