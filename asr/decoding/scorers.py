"""Scorers of hypotheses: n-gram models of tokens and words, hotwords, and sums of them.

B batch, K hypotheses of an utterance, C tokens that each may grow by, V vocabulary, L contexts of an n-gram, N nodes.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from asr.language_models import BEGIN, END, SPECIAL, UNKNOWN, NGrams, read_arpa
from asr.text.tokenizer import BLANK_ID, NUM_SPECIAL, SPACE_PIECE, UNKNOWN_ID, Tokenizer
from werdict.normalization import SURROGATE
from werdict.text_files import numbered_lines

LN_10 = math.log(10)
ROOT = 0  # of a trie: between words, and where no hotword has begun
TOKENS = ""  # key of the tokens that end in a node of a trie of them

Trie = dict[str, Any]
WordState = tuple[Tensor, Tensor, Tensor]  # (B, K): n-grams, letters of the last word, whether a space ended it
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


def inserted(children: list[dict[Any, int]], symbols: Iterable[Any]) -> list[int]:
    """Add a word to a trie, the nodes after each node by symbol, and return the nodes on its way, the root first."""
    way = [ROOT]
    for symbol in symbols:
        way.append(children[way[-1]].setdefault(symbol, len(children)))
        if way[-1] == len(children):
            children.append({})
    return way


class Moves(nn.Module):
    """Where tokens lead from the nodes of a trie, as sorted keys: a device looks up those of all hypotheses at once.

    Args:
        moves: node, token, and the node that it leads to.
        vocab_size: of the tokens.
    """

    def __init__(self, moves: Iterable[tuple[int, int, int]], vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        # lists of as many numbers would take several times the memory
        keys, targets = array("q"), array("q")
        for node, token, target in moves:
            keys.append(node * vocab_size + token)
            targets.append(target)
        # without any move a key that nothing has
        keys, targets = (keys, targets) if keys else (array("q", [-1]), array("q", [0]))
        order = np.argsort(keys)
        self.keys, self.targets = (nn.Buffer(torch.from_numpy(np.array(values)[order])) for values in (keys, targets))

    def after(self, nodes: Tensor, tokens: Tensor, otherwise: Tensor | int) -> Tensor:
        """Return the nodes (…) int64 after tokens (…) at nodes (…); ``otherwise`` where no arc has the token."""
        keys = nodes * self.vocab_size + tokens
        places = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[places] == keys, self.targets[places], otherwise)


@dataclass(frozen=True)
class WeightedSum:
    """Adds up scorers, each times its weight, and a constant per token, which makes up for what they take off.

    Attributes:
        scorers: with their weights; a negative weight takes a scorer off.
        token_bonus: added for each token.
    """

    scorers: Sequence[tuple[Scorer, float]]
    token_bonus: float = 0.0

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


class HotwordScorer(nn.Module):
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
        super().__init__()
        first = () if boundary is None else (boundary,)
        children: list[dict[int, int]] = [{}]
        completed, begun = [0.0], [0.0]
        for tokens, boost in phrases.items():
            *way, last = inserted(children, (*first, *tokens))
            for values in (completed, begun):
                values.extend([0.0] * (len(children) - len(values)))
            for depth, node in enumerate(way):
                begun[node] = max(begun[node], boost * (depth - len(first)))
            completed[last] = boost * len(tokens)
        moves = enumerate(_finish(children, completed, begun))
        self.moves = Moves(((node, *move) for node, targets in moves for move in targets.items()), vocab_size)
        # where no move fits, a phrase may begin
        self.first = nn.Buffer(torch.zeros(vocab_size, dtype=torch.int64))
        for token, node in children[ROOT].items():
            self.first[token] = node
        self.ends_words = nn.Buffer(torch.full((vocab_size,), not beginnings))
        self.ends_words[list(beginnings)] = True
        self.completed = nn.Buffer(torch.tensor(completed, dtype=torch.float64))
        self.begun = nn.Buffer(torch.tensor(begun, dtype=torch.float64))
        self.begin = ROOT if boundary is None else children[ROOT].get(boundary, ROOT)

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the nodes (B, 1) of the empty text; see ``Scorer``, also for the other methods."""
        self.to(device)
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


class NGramTables(nn.Module):
    """An n-gram model on a device; the state of a text is the node of the longest n-gram that may be continued.

    Attributes:
        order: words of the longest n-grams.

    Reference:
        Katz 1987, "Estimation of Probabilities from Sparse Data for the Language Model Component of a Speech
        Recognizer", for how back-off weights are used.
    """

    def __init__(self, model: NGrams) -> None:
        super().__init__()
        self.num_words, self.order, self.num_contexts = len(model.words), model.order, model.num_contexts
        self.keys = nn.Buffer(torch.from_numpy(model.keys))
        self.of_ngrams = nn.Buffer(torch.from_numpy(model.log_probs * LN_10))
        self.backoffs = nn.Buffer(torch.from_numpy(np.append(0.0, model.backoffs * LN_10)))
        self.suffixes = nn.Buffer(torch.from_numpy(model.suffixes()))
        self.begin, self.final = model.numbers.get(BEGIN), model.numbers.get(END)

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the nodes (B, 1) after the beginning of a sentence."""
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


class NGramScorer(nn.Module):
    """Scores tokens by a model of tokens: by the longest n-gram that they end, with the weights of backing off."""

    def __init__(self, model: NGrams, pieces: Sequence[str]) -> None:
        """Lay out the tables.

        Args:
            model: its words are pieces of the tokenizer.
            pieces: (V,) of the tokenizer; what is not in the model counts as its ``<unk>``.
        """
        super().__init__()
        unknown = model.numbers[UNKNOWN]
        self.tables = NGramTables(model)
        self.words = nn.Buffer(torch.tensor([model.numbers.get(piece, unknown) for piece in pieces]))

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the nodes (B, 1) after the beginning of a sentence; see ``Scorer``, also for the other methods."""
        return self.to(device).tables.start(batch_size, device)

    def score(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return log-probabilities (B, K, C) of tokens."""
        return self.tables.log_probs(state, self.words[tokens])

    def advance(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return the nodes (B, K) after tokens (B, K)."""
        return torch.where(tokens == BLANK_ID, state, self.tables.after(state, self.words[tokens]))

    def end(self, state: Tensor) -> Tensor:
        """Return log-probabilities (B, K) of the end of the sentence; 0 if the model knows none."""
        return self.tables.end(state)


class WordNGramScorer(nn.Module):
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
        super().__init__()
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
        self.begins = nn.Buffer(torch.tensor([surface.startswith(" ") for surface in surfaces]))
        self.ends = nn.Buffer(torch.tensor([surface.endswith(" ") for surface in surfaces]))
        self.word_of = nn.Buffer(torch.tensor([*word_of, unknown]))
        self.reach = nn.Buffer(torch.tensor([*reach, unigrams[unknown]], dtype=torch.float64))

    def start(self, batch_size: int, device: torch.device) -> WordState:
        """Return the state (B, 1) of the empty text; see ``Scorer``, also for the other methods."""
        ngrams = self.to(device).tables.start(batch_size, device)
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
        written = "" if word in SPECIAL else normalize(word)
        if written and " " not in written:
            other = numbers.setdefault(written, number)
            if unigrams[number] > unigrams[other]:
                numbers[written] = number
    return numbers


def _trie(spelled: dict[str, int], unknown: int) -> tuple[list[Trie], list[int]]:
    """Return the next nodes by letter, and the word that ends in each node."""
    children: list[Trie] = [{}]
    word_of = [unknown]
    for word, number in spelled.items():
        last = inserted(children, word)[-1]
        word_of.extend([unknown] * (len(children) - len(word_of)))
        word_of[last] = number
    return children, word_of


def _reach(children: list[Trie], word_of: list[int], unigrams: np.ndarray, unknown: int) -> list[float]:
    """Return the highest log-probability of the words with the letters of each node, and 0 for the first."""
    reach: list[float] = unigrams[word_of].tolist()
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
        # the tokens whose letters may follow the node, and where they lead
        todo = [(node, trie) for trie in ((inner, beginning) if node == ROOT else (inner,))]
        while todo:
            target, trie = todo.pop()
            yield from ((node, token, target) for token in trie.get(TOKENS, ()))
            todo += [(children[target][letter], trie[letter]) for letter in children[target].keys() & trie.keys()]


def read_hotwords(
    path: Path, boost: float, tokenizer: Tokenizer, normalize: Callable[[str], str]
) -> tuple[Scorer, str]:
    """Return a scorer of the phrases of a file, and what it is; see ``read_phrases``."""
    phrases = read_phrases(path, boost, lambda text: tokenizer.encode(normalize(text)))
    beginnings = [number for number, piece in enumerate(tokenizer.pieces) if piece.startswith(SPACE_PIECE)]
    # a token between words, if no other says where a word begins
    boundary = beginnings[0] if [tokenizer.pieces[number] for number in beginnings] == [SPACE_PIECE] else None
    scorer = HotwordScorer(phrases, tokenizer.vocab_size, boundary, beginnings)
    return scorer, f"{len(phrases)} hotwords of {path}"


def read_language_model(
    option: str, path: Path, tokenizer: Tokenizer, normalize: Callable[[str], str]
) -> tuple[Scorer, str]:
    """Return a scorer, and what it is: a model of words if it lacks the mark of a space, and few are tokens."""
    model, pieces = read_arpa(path), tokenizer.pieces
    tokens = pieces[NUM_SPECIAL:]
    words = [word for word in model.words if word not in SPECIAL]
    missing = [piece for piece in tokens if piece not in model.numbers]
    num_common = len(tokens) - len(missing)
    # with a word or two that are tokens by chance it is a model of words still, and so it is of letters and words
    token_set, letters = set(tokens), {*"".join(tokens)}
    of_tokens = 2 * num_common > len(words) and not any(
        len(word) > 1 and word not in token_set and letters.issuperset(word) for word in words
    )
    has_spaces = any(SPACE_PIECE in piece for piece in tokens)
    if has_spaces and not any(SPACE_PIECE in word for word in words) and not of_tokens:
        try:
            return (
                WordNGramScorer(model, tokenizer.surfaces, normalize),
                f"language model {path} of order {model.order}, of {len(words)} words",
            )
        except ValueError as error:
            raise ValueError(f"{option}: {path}: {error}") from None
    if not of_tokens:
        raise ValueError(
            f"{option}: {path} is a model of other tokens: its {len(words)} words are like {words[:3]}, the tokens of "
            f"the run like {tokens[:3]}, and {num_common or 'none'} are among both; asr-lm run=RUN text=FILE "
            "output=FILE makes one that fits"
        )
    lacking = f", without {len(missing)} of {len(tokens)} tokens, such as {missing[:3]}" if missing else ""
    return NGramScorer(model, pieces), f"language model {path} of order {model.order}{lacking}"
