"""Pairs of systems of which neither is the best nor the baseline: verdicts are corrected for them, so they are told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from asr.compare.result import Difference
from asr.compare.speed import SeedContrast
from asr.evaluation.formatting import count, shortlist

Pair = TypeVar("Pair", Difference, SeedContrast)


def other_pairs(pairs: Sequence[Pair], shown: Collection[str | None]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that are told apart, and those that cannot be, without the pairs of systems in ``shown``.

    Args:
        pairs: the better system first.
        shown: systems that each other one is compared with elsewhere.
    """
    tested = [one for one in pairs if one.p_adjusted is not None and not {one.system, one.other} & {*shown}]
    apart = [one for one in tested if one.verdict == "better"]
    return apart, [one for one in tested if one not in apart]


def other_pairs_sentence(pairs: Sequence[Pair], shown: Collection[str | None], *, has_table: bool) -> list[str]:
    """Return a sentence that counts the pairs that are told apart, and names them if no table does."""
    apart, alike = other_pairs(pairs, shown)
    if not apart and not alike:
        return []
    among = f"Of the {count(len(apart) + len(alike), 'other pair')}"
    if not apart:
        return [f"{among}, none is told apart."]
    named = shortlist(f"{one.system} is better than {one.other}" for one in apart)
    where = "see their table" if has_table else named
    return [f"{among}, {len(apart)} {'is' if len(apart) == 1 else 'are'} told apart: {where}."]
