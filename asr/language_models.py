"""N-gram models: their arrays, ARPA files, and estimation with modified Kneser-Ney smoothing.

M or V words, N n-grams, P words of text, sentence marks included.
"""

from __future__ import annotations

import functools
import gzip
import math
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asr.text.tokenizer import NUM_SPECIAL, Tokenizer
from werdict.errors import ConfigError, first_line
from werdict.files import naming
from werdict.text_files import composed

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPECIAL = (BEGIN, END, UNKNOWN)
ROOT = 0
BLOCK = 2**16  # n-grams that are looked up at a time
ROUNDING = 1e-3  # may have been added to log10 of a probability of 1
UNSEEN = -100.0  # for log10 of 0, which other programs write as -inf; of <unk> if a model has none, as in KenLM
FALLBACK = (0.5, 1.0, 1.5)  # those of KenLM's lmplz --discount_fallback
NEVER = -99.0  # log10, of <s>, which follows nothing

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


def read_arpa(path: Path) -> NGrams:
    """Return the language model of a file, decompressed if its name ends with ``.gz``.

    A model without ``<unk>`` gets one that is all but impossible.

    Raises:
        ValueError: it is no ARPA file, or was cut short; names the line.
        OSError: it cannot be read; names the file.
    """
    reader = _Reader()
    try:
        with naming(path), gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            return reader.read(file)
    except (ValueError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: line {reader.line_number}: {first_line(error)}") from error


class _Reader:
    """Reads the model of a file, section by section.

    Attributes:
        line_number: of the line that is wrong, if one is.
        model: of all sections so far.
    """

    def __init__(self) -> None:
        self.line_number = 0
        self.model = NGrams([], [], np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        self._ids: dict[bytes, int] = {}  # of words

    def read(self, file: Iterable[bytes]) -> NGrams:
        """Return the model of the lines of a file."""
        lines = self._lines(file)
        while not next(lines).endswith(b"\\data\\"):  # a byte-order mark may stand before it
            pass
        header, sizes = [], dict[int, int]()
        while not (line := next(lines)).startswith(b"\\"):
            header.append((self.line_number, line))
        while line != b"\\end\\" or not sizes:
            order = len(sizes) + 1
            if line != b"\\%d-grams:" % order:
                raise ValueError(f"expected \\{order}-grams: or \\end\\, found {line!r}")
            line, sizes[order] = self._read_section(lines, order)
        for self.line_number, entry in header:
            name, equals, count = entry.removeprefix(b"ngram").partition(b"=")
            if entry.startswith(b"ngram") and equals and (size := sizes.get(int(name), 0)) != int(count):
                raise ValueError(f"{entry.decode()} in the header, but the file has {size}")
        return self.model

    def _lines(self, file: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines that are not empty, without spaces around them."""
        for self.line_number, line in enumerate(file, 1):
            if stripped := line.strip():
                yield stripped
        raise ValueError("the file ends before \\end\\; it is no ARPA language model, or was cut short")

    def _read_section(self, lines: Iterator[bytes], order: int) -> tuple[bytes, int]:
        """Add the n-grams of a section to the model; return the line after them, and how many there are."""
        names, keys = [*self.model.words], list[Ints]()
        log_probs, backoffs = array("d"), array("d")
        ids, line_numbers = array("q"), array("q")  # of n-grams without keys, which take less memory
        while not (line := next(lines)).startswith(b"\\"):
            log_prob, *words = line.split()
            backoff = words.pop() if len(words) == order + 1 else b"0"
            if len(words) != order:
                raise ValueError(f"expected a log10 probability, {order} words and perhaps a back-off weight")
            if order == 1:
                self._ids[words[0]] = len(names)
                names.append(composed(words[0].decode()))
            ids.extend(numbers := [self._ids.get(word, -1) for word in words])
            if -1 in numbers:
                raise ValueError(f"{words[numbers.index(-1)]!r} has no 1-gram")
            if (value := _log10(log_prob)) > ROUNDING:
                raise ValueError(f"expected a log10 probability of at most 0, found {log_prob.decode()}")
            log_probs.append(min(value, 0.0))
            backoffs.append(_log10(backoff))
            line_numbers.append(self.line_number)
            if len(line_numbers) == BLOCK:
                keys.append(self._keys(ids, line_numbers, order))
                ids, line_numbers = array("q"), array("q")
        keys.append(self._keys(ids, line_numbers, order))
        ascending = np.argsort(all_keys := np.concatenate(keys), kind="stable")
        added = (np.array(values)[ascending] for values in (all_keys, log_probs, backoffs))
        former = self.model.keys, self.model.log_probs, self.model.backoffs
        values = map(np.concatenate, zip(former, added, strict=True))
        model = NGrams(names, [*self.model.counts, len(all_keys)], *values)
        self.model = _with_unknown(model) if order == 1 else model
        return line, len(all_keys)

    def _keys(self, ids: array[int], line_numbers: array[int], order: int) -> Ints:
        """Return the keys of n-grams of words with these ids."""
        words = np.array(ids).reshape(-1, order)
        nodes = np.zeros(len(words), dtype=np.int64)
        for column in words.T[:-1]:
            nodes = self.model.children(nodes, column)
            if not nodes.all():
                self.line_number = line_numbers[int(np.flatnonzero(nodes == 0)[0])]
                raise ValueError(f"its first {order - 1} words are no {order - 1}-gram")
        keys: Ints = nodes * len(self.model.words) + words[:, -1]
        return keys


def _log10(field: bytes) -> float:
    value = float(field)
    if math.isnan(value) or value == math.inf:
        raise ValueError(f"expected a number, or -inf for log10 of 0, found {field.decode()}")
    return value if value > -math.inf else UNSEEN


def _with_unknown(model: NGrams) -> NGrams:
    """Return a model of 1-grams with the unknown word, under the name that others use too."""
    if UNKNOWN in model.words:
        return model
    if UNKNOWN.upper() in model.words:
        words = [UNKNOWN if word == UNKNOWN.upper() else word for word in model.words]
        return NGrams(words, model.counts, model.keys, model.log_probs, model.backoffs)
    return NGrams(
        [*model.words, UNKNOWN],
        [len(model.words) + 1],
        np.arange(len(model.words) + 1),
        np.append(model.log_probs, UNSEEN),
        np.append(model.backoffs, 0.0),
    )


def arpa_lines(model: NGrams) -> Iterator[str]:
    """Yield the lines of an ARPA file with their ends."""
    yield "\\data\\\n"
    for order, count in enumerate(model.counts, 1):
        yield f"ngram {order}={count}\n"
    texts: Sequence[str] = [""]
    begin = 0
    for order, count in enumerate(model.counts, 1):
        yield f"\n\\{order}-grams:\n"
        section = slice(begin, begin + count)
        before = begin - model.counts[order - 2] + 1 if order > 1 else 0
        parents, words = np.divmod(model.keys[section], len(model.words))
        texts = [
            f"{texts[parent]} {model.words[word]}".lstrip()
            for parent, word in zip((parents - before).tolist(), words.tolist(), strict=True)
        ]
        rows = zip(model.log_probs[section].tolist(), texts, model.backoffs[section].tolist(), strict=True)
        for log_prob, text, backoff in rows:
            # the longest, and those that no word follows, have none
            yield f"{log_prob:.7g}\t{text}\t{backoff:.7g}\n" if backoff else f"{log_prob:.7g}\t{text}\n"
        begin += count
    yield "\n\\end\\\n"


def gzipped(content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a compressed file, piece by piece."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    yield from map(packer.compress, content)
    yield packer.flush()


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


def laid_out(sentences: Iterable[Sequence[int]]) -> Ints:
    """Return the numbers (P,) of the words of sentences in a row, each between its marks of beginning and end.

    Args:
        sentences: numbers of words, without marks; read one at a time.
    """
    text = array("q")
    for sentence in sentences:
        text.extend((SPECIAL.index(BEGIN), *sentence, SPECIAL.index(END)))
    return np.array(text, dtype=np.int64)


def estimate(text: Ints, words: Sequence[str], order: int) -> tuple[NGrams, list[int]]:
    """Return the language model of a text, each order interpolated with the next shorter one, the first with 1/V.

    Args:
        text: (P,) from `laid_out`, of at least one sentence.
        words: (V + 1,), first <s>, </s> and <unk>; those that do not occur get a probability too.
        order: words of the longest n-grams; of fewer if no sentence is so long.

    Returns:
        The model, with probabilities of every word after every context that sum to 1; and orders whose discounts are
        ``FALLBACK``, because n-grams that occur once, twice and three times are too few to estimate them.

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
    return NGrams(words, counts, keys, log_probs, backoffs), assumed


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


def _levels(text: Ints, num_words: int, order: int) -> list[_Level]:
    """Return the n-grams of each order that occur, and all words."""
    positions, words = np.arange(len(text)), np.arange(num_words)
    # of each word in its sentence, 0 of the mark of beginning
    places = positions - np.maximum.accumulate(np.where(text == SPECIAL.index(BEGIN), positions, 0))
    opens = words == SPECIAL.index(BEGIN)
    levels = [_Level(words, np.bincount(text, minlength=num_words), np.zeros(num_words, np.int64), opens)]
    # of the n-gram that ends at each position
    nodes, num_nodes = text + 1, num_words
    for number in range(2, order + 1):
        ends = np.flatnonzero(places >= number - 1)
        if not len(ends):
            break
        keys, ranks = np.unique(nodes[ends - 1] * num_words + text[ends], return_inverse=True)
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
