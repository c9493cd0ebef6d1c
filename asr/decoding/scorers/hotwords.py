"""Phrases that a search should rather find: a scorer that follows all of them at once.

B utterances, K hypotheses, C tokens that may follow, V tokens, N nodes, E moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr.decoding.scorers.scorer import Moves
from asr.text.vocabulary import BLANK_ID, UNKNOWN_ID
from asr.text_files import numbered_lines

ROOT = 0


def read_phrases(path: Path, boost: float, encode: Callable[[str], Sequence[int]]) -> dict[tuple[int, ...], float]:
    """Return the phrases of a text file, one in a line, with their boosts.

    Args:
        path: a phrase in each line, which may be followed by a tab and its boost.
        boost: of phrases without one.
        encode: phrase → tokens.

    Raises:
        ValueError: a line is malformed; names it.
    """
    phrases: dict[tuple[int, ...], float] = {}
    for where, line in numbered_lines(path):
        try:
            phrase, tab, written = line.strip(" ").partition("\t")
            tokens, phrase_boost = tuple(encode(phrase)), float(written) if tab else boost
            if not tokens or UNKNOWN_ID in tokens or not phrase_boost > 0:
                raise ValueError(f"{phrase!r} has a character that the run does not know, or a boost not above 0")
            phrases[tokens] = max(phrase_boost, phrases.get(tokens, 0.0))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return phrases


class HotwordScorer:
    """Adds a boost for each token of a phrase while it is followed, and takes it back where the phrase is left.

    A whole text gets the boost times the number of tokens of each phrase in it, as often as it occurs, phrases within
    others and overlaps too. A phrase that the next token makes a part of a longer word does not count. The state is the
    longest beginning of a phrase that a hypothesis ends with.

    Reference:
        Aho and Corasick 1975, "Efficient String Matching: An Aid to Bibliographic Search", Communications of the ACM
        18, algorithms 2 to 4.
    """

    def __init__(
        self,
        phrases: Mapping[tuple[int, ...], float],
        vocab_size: int,
        boundary: int | None = None,
        beginnings: Sequence[int] = (),
    ) -> None:
        """Build the automaton.

        Args:
            phrases: tokens of each, at least one, and its boost per token, above 0.
            vocab_size: V.
            boundary: token between words, for tokenizers whose other tokens do not say where words begin; phrases are
                then found at the beginnings of words only.
            beginnings: tokens before which a word ends, with the boundary; phrases then end where words end. Without
                any, as of tokenizers without spaces, they may end anywhere.
        """
        first = () if boundary is None else (boundary,)
        children: list[dict[int, int]] = [{}]
        completed, begun = [0.0], [0.0]
        for tokens, boost in phrases.items():
            node = ROOT
            for depth, token in enumerate((*first, *tokens)):
                begun[node] = max(begun[node], boost * (depth - len(first)))
                if token not in children[node]:
                    children[node][token] = len(children)
                    children.append({})
                    completed.append(0.0)
                    begun.append(0.0)
                node = children[node][token]
            completed[node] = boost * len(tokens)
        moves = enumerate(_finish(children, completed, begun))
        self.moves = Moves(((node, *move) for node, targets in moves for move in targets.items()), vocab_size)
        # where no move fits, a phrase may begin
        self.first = torch.zeros(vocab_size, dtype=torch.int64)
        for token, node in children[ROOT].items():
            self.first[token] = node
        self.ends_words = torch.full((vocab_size,), not beginnings)
        self.ends_words[list(beginnings)] = True
        self.completed = torch.tensor(completed, dtype=torch.float64)
        self.begun = torch.tensor(begun, dtype=torch.float64)
        self.begin = ROOT if boundary is None else children[ROOT].get(boundary, ROOT)

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the nodes (B, 1) of the empty text; see ``Scorer``, also for the other methods."""
        for name in ("moves", "first", "ends_words", "completed", "begun"):
            setattr(self, name, getattr(self, name).to(device))
        return torch.full((batch_size, 1), self.begin, device=device)

    def score(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return what tokens add to hypotheses, below 0 where they leave a phrase: (B, K, C)."""
        before, nodes = state.unsqueeze(2), self._after(state.unsqueeze(2), tokens)
        credited = self.begun[before] + self.completed[before].masked_fill(self.ends_words[tokens], 0.0)
        return self.completed[nodes] + self.begun[nodes] - credited

    def advance(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return the nodes (B, K) after tokens (B, K)."""
        return torch.where(tokens == BLANK_ID, state, self._after(state, tokens))

    def end(self, state: Tensor) -> Tensor:
        """Return what is taken back (B, K) for phrases that are not complete."""
        return -self.begun[state]

    def _after(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        return self.moves.after(nodes, tokens, otherwise=self.first[tokens])


def _finish(
    children: Sequence[Mapping[int, int]], completed: list[float], begun: list[float]
) -> Sequence[Mapping[int, int]]:
    """Give each node what the shorter endings of its hypotheses add, and return its moves by token.

    Args:
        children: (N,) by token, of the trie of all phrases.
        completed: (N,) for phrases that end in each node.
        begun: (N,) for the best phrase that is not complete in each node.
    """
    moves: list[dict[int, int]] = [{} for _ in children]
    shorter = [ROOT] * len(children)
    todo = deque(children[ROOT].values())
    while todo:
        node = todo.popleft()
        completed[node] += completed[shorter[node]]
        begun[node] = max(begun[node], begun[shorter[node]])
        for token, child in children[node].items():
            shorter[child] = moves[shorter[node]].get(token, children[ROOT].get(token, ROOT))
            todo.append(child)
        moves[node] = {**moves[shorter[node]], **children[node]}
    return moves
