"""Estimates n-gram language models with modified Kneser-Ney smoothing.

V words, N n-grams of one order, P words of text, sentence marks included.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from asr.language_models.arpa import BEGIN, END, SPECIAL, Ints, NGrams
from asr.text.tokenizer import NUM_SPECIAL, Tokenizer
from werdict.errors import ConfigError

FALLBACK = (0.5, 1.0, 1.5)  # those of KenLM's lmplz --discount_fallback
NEVER = -99.0  # log10, of <s>, which follows nothing


class Estimate(NamedTuple):
    """A language model.

    Attributes:
        model: with probabilities of every word after every context that sum to 1.
        assumed: orders whose discounts are ``FALLBACK``, because n-grams that occur once, twice and three times are
            too few to estimate them.
    """

    model: NGrams
    assumed: list[int]


class Text(NamedTuple):
    """Sentences in a row.

    Attributes:
        words: (P,) their numbers.
        places: (P,) of each word in its sentence, 0 of its mark of beginning.
        num_sentences: how many there are.
    """

    words: Ints
    places: Ints
    num_sentences: int


class TokenNumbers:
    """Sentences → numbers of the tokens of a run, all of which are words of its language models.

    Attributes:
        words: the marks of language models, then the tokens, by their numbers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self.words = [*SPECIAL, *tokenizer.pieces[NUM_SPECIAL:]]

    def numbers(self, sentence: str) -> list[int]:
        """Return the numbers of the tokens of a sentence."""
        shift = len(SPECIAL) - NUM_SPECIAL
        return [token + shift for token in self._encode(sentence)]


class WordNumbers:
    """Numbers of words, in the order in which they first occur."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {word: number for number, word in enumerate(SPECIAL)}

    @property
    def words(self) -> list[str]:
        """All words so far."""
        return [*self._numbers]

    def numbers(self, sentence: str) -> list[int]:
        """Return the numbers of the words of a sentence.

        Raises:
            ConfigError: a word is a mark of language models.
        """
        words = sentence.split(" ")
        if marks := set(SPECIAL) & set(words):
            raise ConfigError(
                f"text: {sentence[:60]!r} has the word {min(marks)}, which marks something else; remove it"
            )
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]


def laid_out(sentences: Iterable[Sequence[int]]) -> Text:
    """Return sentences in a row, each between its marks of beginning and end.

    Args:
        sentences: numbers of words, without marks; read one at a time.
    """
    text, lengths = array("q"), array("q")
    for sentence in sentences:
        text.append(SPECIAL.index(BEGIN))
        text.extend(sentence)
        text.append(SPECIAL.index(END))
        lengths.append(len(sentence) + 2)
    sizes = np.array(lengths, dtype=np.int64)
    starts = np.repeat(sizes.cumsum() - sizes, sizes)
    return Text(np.array(text, dtype=np.int64), np.arange(len(text)) - starts, len(lengths))


def estimate(text: Text, words: Sequence[str], order: int) -> Estimate:
    """Return the language model of a text, each order interpolated with the next shorter one, the first with 1/V.

    Args:
        text: at least one sentence.
        words: (V + 1,), first <s>, </s> and <unk>; those that do not occur get a probability too.
        order: words of the longest n-grams; of fewer if no sentence is so long.

    Reference:
        Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling", Computer Speech and
        Language 13, modified Kneser-Ney smoothing. As in KenLM (lm/builder/adjust_counts.cc), n-grams that begin with
        <s> keep their own counts, since nothing comes before them.
    """
    assert tuple(words[: len(SPECIAL)]) == SPECIAL
    levels = _levels(text, len(words), order)
    counts, assumed = [len(level.keys) for level in levels], []
    # by node, that of the empty context first
    probs, lost = np.full(1, 1 / (len(words) - 1)), np.zeros(0)
    for number, level in enumerate(levels, 1):
        adjusted = level.occurrences
        if number < len(levels):
            first = len(probs)
            continued = np.bincount(levels[number].suffixes - first, minlength=len(level.keys))
            adjusted = np.where(level.opens, adjusted, continued)
        if number == 1:
            adjusted[0] = 0  # <s> is given, never predicted
        discounts = _discounts(adjusted)
        if discounts is None:
            assumed.append(number)
        # one discount for n-grams that occur three times and more often
        taken = np.array((0.0, *(discounts or FALLBACK)))[adjusted.clip(max=3)]
        parents = level.keys // len(words)
        totals = np.bincount(parents, adjusted)
        # what is taken from the words of a context is shared among all words by the shorter one
        shares = np.divide(np.bincount(parents, taken), totals, out=np.ones(len(totals)), where=totals > 0)
        lost = np.concatenate((lost, shares[len(lost) :]))
        discounted = (adjusted - taken) / totals[parents]
        probs = np.concatenate((probs, discounted + shares[parents] * probs[level.suffixes]))
    # contexts that nothing follows back off for free, as do the longest n-grams
    lost = np.concatenate((lost, np.ones(len(probs) - len(lost))))
    log_probs, backoffs = (np.log10(values[1:].clip(min=10**NEVER)) for values in (probs, lost))
    log_probs[0] = NEVER
    keys = np.concatenate([level.keys for level in levels])
    return Estimate(NGrams(words, counts, keys, log_probs, backoffs), assumed)


class _Level(NamedTuple):
    """The n-grams of one order.

    Attributes:
        keys: (N,) as in ``NGrams``.
        occurrences: (N,) in the text.
        suffixes: (N,) node of each without its first word.
        opens: (N,) bool, whether they begin with <s>.
    """

    keys: Ints
    occurrences: Ints
    suffixes: Ints
    opens: np.ndarray


def _levels(text: Text, num_words: int, order: int) -> list[_Level]:
    """Return the n-grams of each order that occur, and all words."""
    ids, places, _ = text
    words = np.arange(num_words)
    opens = words == SPECIAL.index(BEGIN)
    levels = [_Level(words, np.bincount(ids, minlength=num_words), np.zeros(num_words, np.int64), opens)]
    # of the n-gram that ends at each position
    nodes, num_nodes = ids + 1, num_words
    for number in range(2, order + 1):
        ends = np.flatnonzero(places >= number - 1)
        if not len(ends):
            break
        keys, ranks = np.unique(nodes[ends - 1] * num_words + ids[ends], return_inverse=True)
        suffixes, opens = np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
        suffixes[ranks], opens[ranks] = nodes[ends], places[ends] == number - 1
        levels.append(_Level(keys, np.bincount(ranks), suffixes, opens))
        nodes[ends] = num_nodes + 1 + ranks
        num_nodes += len(keys)
    return levels


def _discounts(counts: Ints) -> tuple[float, float, float] | None:
    """Return what is taken from n-grams that occur once, twice and more often; None if it cannot be estimated."""
    once, twice, thrice, four_times = (int((counts == number).sum()) for number in range(1, 5))
    if 0 in (once, twice, thrice):
        return None
    share = once / (once + 2 * twice)
    discounts = (1 - 2 * share * twice / once, 2 - 3 * share * thrice / twice, 3 - 4 * share * four_times / thrice)
    return discounts if min(discounts) >= 0 else None
