"""The matched-pairs test of sclite, for single runs: it takes short segments for independent, whoever spoke them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from asr.compare.inputs.runs import Texts

MIN_GOOD = 2  # words that both systems have right between two segments


def matched_pairs(first: Texts, second: Texts) -> float | None:
    """Compare two systems on segments in which at least one of them has errors.

    Returns:
        The two-sided p-value of a normal z; None for fewer than two segments, or if all differences are equal.

    Reference:
        Gillick and Cox 1989, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP;
        sclite's MAPSSWE, src/sclite/mtchprs.c of NIST's SCTK.
        Differs: the alignment has the fewest edits, where sclite's has the least cost of 4 for a substitution and 3 for
        others; insertions after the last word count for both systems, where sclite drops those of the second one.
    """
    edges = [_edges(first), _edges(second)]
    starts, ends = (np.concatenate([bounds[place] for bounds in edges]) for place in (0, 1))
    signs = np.repeat([1, -1], [len(bounds[0]) for bounds in edges])
    if not len(starts):
        return None
    order = np.lexsort((ends, starts))
    starts, ends, signs = starts[order], np.maximum.accumulate(ends[order]), signs[order]
    segments = np.concatenate([[0], np.cumsum(starts[1:] - ends[:-1] >= MIN_GOOD)])
    differences = np.bincount(segments, weights=signs)
    num, mean = len(differences), float(differences.mean())
    sd = float(differences.std(ddof=1)) if num > 1 else 0.0
    return None if sd == 0 else float(2 * special.ndtr(-abs(mean) / (sd / math.sqrt(num))))


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
