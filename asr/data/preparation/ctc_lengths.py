"""The frames that cuts have and that CTC needs: which cuts are too short depends on an encoder's subsampling.

N cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.text.tokenizer import Tokenizer

Lengths = NDArray[np.int64]
OutputFrames = Callable[[Lengths], Lengths]


@dataclass(frozen=True)
class CtcLengths:
    """Lengths of the cuts of a split, in their order; they depend on tokenizer and features, but on no encoder.

    Attributes:
        num_frames: (N,) frames of features.
        num_ctc_frames: (N,) frames that CTC needs: one for each token, and a blank between equal neighbors.
    """

    num_frames: Lengths
    num_ctc_frames: Lengths

    @classmethod
    def of(
        cls, durations_s: Iterable[float], texts: Iterable[str], tokenizer: Tokenizer, frame_shift_s: float
    ) -> CtcLengths:
        """Return the lengths of cuts with these durations and transcripts."""
        tokens = map(tokenizer.encode, texts)
        needed = [len(ids) + sum(a == b for a, b in pairwise(ids)) for ids in tokens]
        # from durations, because features that are computed while training do not exist yet
        num_frames = [round(duration_s / frame_shift_s) for duration_s in durations_s]
        return cls(np.array(num_frames, np.int64), np.array(needed, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[CtcLengths]) -> CtcLengths:
        """Return the lengths of the cuts of several parts, in their order."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("num_frames", "num_ctc_frames"))
        )

    def save(self, path: Path) -> None:
        """Write the lengths to an npz file."""
        np.savez(path, num_frames=self.num_frames, num_ctc_frames=self.num_ctc_frames)

    @classmethod
    def load(cls, path: Path) -> CtcLengths:
        """Read the lengths of all cuts."""
        with np.load(path) as arrays:
            return cls(**arrays)

    def without(self, numbers: Sequence[int]) -> CtcLengths:
        """Return the lengths of the other cuts."""
        return CtcLengths(np.delete(self.num_frames, numbers), np.delete(self.num_ctc_frames, numbers))

    def too_short(self, output_frames: OutputFrames) -> dict[int, str]:
        """Return the numbers of the cuts without a CTC alignment, and why.

        Args:
            output_frames: (N,) frames of features → (N,) frames of encodings.
        """
        num_output_frames = output_frames(self.num_frames)
        return {
            int(i): f"too short for its transcript: {num_output_frames[i]} frames, {self.num_ctc_frames[i]} needed"
            for i in np.flatnonzero(num_output_frames < self.num_ctc_frames)
        }
