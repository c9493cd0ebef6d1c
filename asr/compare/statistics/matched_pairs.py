"""The matched-pairs test of sclite, for single runs: it takes short segments for independent, whoever spoke them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from asr.compare.inputs.runs import Texts

MIN_GOOD = 2  # words that both systems have right between two segments


@dataclass(frozen=True)
class MatchedPairs:
    """A test of two systems on segments in which at least one of them has errors.

    Attributes:
        num_segments: N.
        mean: difference of the numbers of errors in a segment; negative in favor of the first system.
        p_value: two-sided, of a normal z; None for fewer than two segments, or if all differences are equal.
    """

    num_segments: int
    mean: float
    p_value: float | None


def matched_pairs(one: Texts, other: Texts) -> MatchedPairs:
    """Compare two systems on the same utterances.

    Reference:
        Gillick and Cox 1989, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP;
        sclite's MAPSSWE, src/sclite/mtchprs.c of NIST's SCTK.
        Differs: the alignment has the fewest edits, where sclite's has the least cost of 4 for a substitution and 3 for
        others; insertions after the last word count for both systems, where sclite drops those of the second one.
    """
    edges = [_edges(one), _edges(other)]
    starts, ends = (np.concatenate([own[place] for own in edges]) for place in (0, 1))
    signs = np.repeat([1, -1], [len(own[0]) for own in edges])
    if not len(starts):
        return MatchedPairs(0, 0.0, None)
    order = np.lexsort((ends, starts))
    starts, ends, signs = starts[order], np.maximum.accumulate(ends[order]), signs[order]
    segments = np.concatenate([[0], np.cumsum(starts[1:] - ends[:-1] >= MIN_GOOD)])
    differences = np.bincount(segments, weights=signs)
    num, mean = len(differences), float(differences.mean())
    sd = float(differences.std(ddof=1)) if num > 1 else 0.0
    p_value = None if sd == 0 else float(2 * special.ndtr(-abs(mean) / (sd / math.sqrt(num))))
    return MatchedPairs(num, mean, p_value)


def _edges(texts: Texts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each error starts and ends, in words of all references, with a gap between utterances."""
    starts, ends, offset = [], [], 0
    for edits in texts.edits:
        for edit in edits:
            place = offset + edit.src_pos
            starts.append(place)
            ends.append(place + (edit.tag != "insert"))
        offset += edits.src_len + MIN_GOOD
    return np.array(starts, np.int64), np.array(ends, np.int64)
