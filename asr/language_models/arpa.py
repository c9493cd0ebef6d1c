r"""Reads and writes n-gram language models in the ARPA format, as KenLM and SRILM do.

A file has a header ``\data\`` with ``ngram 1=COUNT`` and so on, a section ``\1-grams:`` for each order, and ``\end\``.
A line of a section is log10 probability, words, and log10 back-off weight, which may be left out.
"""

from __future__ import annotations

import codecs
import gzip
import math
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from asr.error_text import first_line
from asr.language_models.ngrams import UNKNOWN, NGrams
from asr.safe_io import check_regular_file, naming

MAX_BYTES = 2**32
MAX_LINE_BYTES = 2**14
MAX_ORDER = 10
MAX_NGRAMS = 2**25
# models compress to a fifth, to some 5 bytes for each n-gram; what compresses further is made to fill memory
MAX_RATIO = 100
FREE_BYTES = 2**24
BYTES_PER_NGRAM, FREE_NGRAMS = 3, 2**20
BLOCK = 2**16  # n-grams that are looked up at a time
MAX_OTHER_LINES = 10_000  # blank ones, the header, and what stands before it
# log10 of weights; SRILM writes -99 for a probability of 0
LARGEST = 1000.0
# rounding has added to log10 of a probability of 1; KenLM too takes it for 0 if it is asked to (lm/read_arpa.hh)
ROUNDING = 1e-3
UNSEEN = -100.0  # log10 probability of unknown words in a model without <unk>, as in KenLM


def read_arpa(path: Path) -> NGrams:
    """Return the language model of a file, decompressed if its name ends with ``.gz``.

    A model without ``<unk>`` gets one that is all but impossible.

    Raises:
        ValueError: it is no ARPA file, or larger than allowed; names the line.
    """
    check_regular_file(path, MAX_BYTES)
    with naming(path), gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
        lines = _Lines(file, path.stat().st_size)
        try:
            return _read(lines)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            why = f"it cannot be decompressed: {first_line(error)}; copy or download it again"
        except ValueError as error:
            why = f"line {error.number if isinstance(error, _WrongLine) else lines.number}: {error}"
    raise ValueError(f"{path}: {why}")


class _Lines:
    """The lines of a file without their ends, within limits.

    Attributes:
        number: of the line that was read last.
        max_number: how many lines there may be; the n-grams of the header are added once it is read.
        max_ngrams: how many n-grams a file of this size may hold.
    """

    def __init__(self, file: IO[bytes] | gzip.GzipFile, file_bytes: int) -> None:
        self._file, self._num_bytes, self._max_bytes = file, 0, min(FREE_BYTES + MAX_RATIO * file_bytes, MAX_BYTES)
        self.number, self.max_number = 0, MAX_OTHER_LINES
        self.max_ngrams = min(FREE_NGRAMS + file_bytes // BYTES_PER_NGRAM, MAX_NGRAMS)

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            self.number += 1
            self._num_bytes += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"it has more than {MAX_LINE_BYTES} bytes")
            if self._num_bytes > self._max_bytes:
                raise ValueError(f"the file has more than {self._max_bytes} bytes when unpacked")
            if self.number > self.max_number:
                raise ValueError(f"the file has more than {MAX_OTHER_LINES} lines that are no n-grams")
            yield line.removeprefix(codecs.BOM_UTF8 if self.number == 1 else b"").strip()
        raise ValueError("the file ends before \\end\\; it is no ARPA language model, or was cut short")


def _read(lines: _Lines) -> NGrams:
    rows = iter(lines)
    for line in rows:
        if line == b"\\data\\":
            break
    counts, marker = _header(rows, lines.max_ngrams)
    lines.max_number += sum(counts)
    words: dict[bytes, int] = {}
    model = None
    for order, count in enumerate(counts, 1):
        if marker != b"\\%d-grams:" % order:
            raise ValueError(f"expected \\{order}-grams:, found {_shown(marker)}")
        section = _Section(order, order == len(counts), words, model)
        for line in rows:
            if line.startswith(b"\\"):
                marker = line
                break
            if line:
                section.add(line, lines.number)
            if len(section.numbers) > count:
                raise ValueError(f"there are more {order}-grams than the {count} of the header")
        if len(section.numbers) < count:
            raise ValueError(f"there are {len(section.numbers)} {order}-grams before it, but the header says {count}")
        model = _with_unknown(section.unigrams()) if model is None else section.appended_to(model)
    if marker != b"\\end\\":
        raise ValueError(f"expected \\end\\, found {_shown(marker)}")
    assert model is not None
    return model


def _header(rows: Iterator[bytes], max_ngrams: int) -> tuple[list[int], bytes]:
    """Return the counts of n-grams, and the first line after them that is a marker."""
    counts: list[int] = []
    for line in rows:
        if line.startswith(b"\\"):
            if not counts:
                raise ValueError("the header has no line 'ngram 1=COUNT'")
            return counts, line
        found = re.fullmatch(rb"ngram\s+(\d{1,3})\s*=\s*(\d{1,12})", line)
        if line and (found is None or int(found[1]) != len(counts) + 1):
            raise ValueError(f"expected 'ngram {len(counts) + 1}=COUNT', found {_shown(line)}")
        if found:
            counts.append(int(found[2]))
        if len(counts) > MAX_ORDER or sum(counts) > max_ngrams or 0 in counts[:1]:
            raise ValueError(
                f"n-grams of each order: {counts}; at least one word, and at most {MAX_ORDER} orders and {max_ngrams} "
                "n-grams are read from a file of this size: prune the model"
            )
    raise AssertionError("the lines of a file end with an error")


class _WrongLine(ValueError):
    """What is wrong with a line that was read before."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class _Section:
    """The n-grams of one order, as they are read.

    Args:
        order: words of each.
        is_last: none are longer.
        words: the numbers of the known words, which 1-grams are added to.
        shorter: the model of shorter n-grams; None for 1-grams.
    """

    def __init__(self, order: int, is_last: bool, words: dict[bytes, int], shorter: NGrams | None) -> None:
        self.order, self.is_last, self.words, self.shorter = order, is_last, words, shorter
        self.log_probs, self.backoffs = array("d"), array("d")
        self.ids, self.keys, self.numbers = array("q"), array("q"), array("q")

    def add(self, line: bytes, number: int) -> None:
        """Read a line."""
        fields = line.split()
        num_more = len(fields) - 1 - self.order
        if num_more not in (0, 1):
            raise ValueError(
                f"expected a log10 probability, {self.order} words and perhaps a back-off weight, found {_shown(line)}"
            )
        log_prob, backoff = _number(fields[0]), _number(fields[-1]) if num_more else 0.0
        if log_prob > ROUNDING:
            raise ValueError(f"a log10 probability must be at most 0, found {_shown(fields[0])}")
        if self.is_last and backoff != 0:
            raise ValueError(f"the longest n-grams have no back-off weight, found {_shown(fields[-1])}")
        given, words = fields[1 : self.order + 1], self.words
        if self.shorter is None:
            if words.setdefault(given[0], len(words)) != len(words) - 1 or len(words) == len(self.numbers):
                raise ValueError(f"the word {_shown(given[0])} has a 1-gram already")
        else:
            try:
                self.ids.extend([words[word] for word in given])
            except KeyError as error:
                raise ValueError(f"the word {_shown(error.args[0])} has no 1-gram") from None
        self.log_probs.append(min(log_prob, 0.0))
        self.backoffs.append(backoff)
        self.numbers.append(number)
        if len(self.ids) >= BLOCK * self.order:
            self._look_up()

    def unigrams(self) -> NGrams:
        """Return a model of the 1-grams."""
        names = []
        for word, number in zip(self.words, self.numbers, strict=True):
            try:
                names.append(word.decode())
            except UnicodeDecodeError:
                raise _WrongLine(number, f"the word {_shown(word)} is not UTF-8; convert the file") from None
        keys = np.arange(len(names))
        return NGrams(names, [len(names)], keys, np.array(self.log_probs), np.array(self.backoffs))

    def appended_to(self, model: NGrams) -> NGrams:
        """Return a model of one order more."""
        self._look_up()
        keys = np.array(self.keys)
        ascending = np.argsort(keys, kind="stable")
        keys = keys[ascending]
        if len(doubled := np.flatnonzero(keys[1:] == keys[:-1])):
            raise _WrongLine(self.numbers[int(ascending[doubled[0] + 1])], f"this {self.order}-gram occurs before too")
        return NGrams(
            model.words,
            [*model.counts, len(keys)],
            np.concatenate((model.keys, keys)),
            np.concatenate((model.log_probs, np.array(self.log_probs)[ascending])),
            np.concatenate((model.backoffs, np.array(self.backoffs)[ascending])),
        )

    def _look_up(self) -> None:
        """Turn the words of n-grams into keys, which take less memory."""
        assert self.shorter is not None
        ids = np.array(self.ids).reshape(-1, self.order)
        nodes = np.zeros(len(ids), dtype=np.int64)
        for column in ids.T[:-1]:
            nodes = self.shorter.children(nodes, column)
            if not nodes.all():
                number = self.numbers[len(self.keys) + int(np.flatnonzero(nodes == 0)[0])]
                raise _WrongLine(number, f"its first {self.order - 1} words are no {self.order - 1}-gram")
        self.keys.frombytes((nodes * len(self.shorter.words) + ids[:, -1]).tobytes())
        self.ids = array("q")


def _number(field: bytes) -> float:
    try:
        # float() would also take 1_0
        value = math.nan if b"_" in field else float(field)
    except ValueError:
        value = math.nan
    if not -LARGEST <= value <= LARGEST:
        raise ValueError(f"expected a number from {-LARGEST:g} to {LARGEST:g}, found {_shown(field)}")
    return value


def _shown(field: bytes) -> str:
    return repr(field[:60].decode(errors="backslashreplace"))


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
