"""Alignments as people read them, and counts of the most frequent confusions."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

from asr.evaluation.wer import AlignedWord

GAP = "*"
_ZERO_WIDTH = ("Mn", "Me", "Cf")


def aligned_view(alignment: Iterable[AlignedWord]) -> str:
    """Return three lines: reference words, hypothesis words below them, and S, D or I below every error."""
    columns = [_column(reference, hypothesis) for reference, hypothesis in alignment]
    lines = (
        zip(("REF", "HYP", "   "), zip(*columns, strict=True), strict=True) if columns else [("REF", ()), ("HYP", ())]
    )
    return "\n".join("  ".join([label, *cells]).rstrip() for label, cells in lines)


def confusions(alignments: Iterable[Iterable[AlignedWord]]) -> Counter[AlignedWord]:
    """Count the errors by their words: (said, recognized), with None for no word."""
    return Counter(pair for alignment in alignments for pair in alignment if pair[0] != pair[1])


def error_name(pair: AlignedWord) -> str:
    """Return ``substitution``, ``deletion`` or ``insertion``; empty if both words are the same."""
    reference, hypothesis = pair
    if reference == hypothesis:
        return ""
    if hypothesis is None:
        return "deletion"
    return "insertion" if reference is None else "substitution"


def _column(reference: str | None, hypothesis: str | None) -> tuple[str, str, str]:
    width = max(_width(reference or ""), _width(hypothesis or ""))
    mark = error_name((reference, hypothesis))[:1].upper()
    return (
        _pad(GAP * width if reference is None else reference, width),
        _pad(GAP * width if hypothesis is None else hypothesis, width),
        _pad(mark, width),
    )


def _pad(word: str, width: int) -> str:
    return word + " " * (width - _width(word))


def _width(word: str) -> int:
    """Return the columns in a terminal: East Asian wide characters take two, combining marks none."""
    visible = [character for character in word if unicodedata.category(character) not in _ZERO_WIDTH]
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in visible)
