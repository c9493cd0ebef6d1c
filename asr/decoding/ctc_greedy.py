"""Greedy CTC search: the best token of every frame.

B batch, T frames, V vocabulary (blank is 0).
"""

from __future__ import annotations

from torch import Tensor

from asr.text.vocabulary import BLANK_ID


class CtcGreedy:
    """Takes the most probable label of every frame, merges repetitions, removes blanks.

    Reference:
        Graves et al. 2006, "Connectionist Temporal Classification", section 3.2, best path decoding.
    """

    def __call__(self, log_probs: Tensor, num_frames: Tensor) -> list[list[int]]:
        """Return the tokens of each utterance.

        Args:
            log_probs: (B, T, V).
            num_frames: (B,) valid frames.
        """
        best = log_probs.argmax(dim=-1)
        changed = best.diff(dim=1, prepend=best.new_full((len(best), 1), -1)) != 0
        keep = (changed & (best != BLANK_ID)).cpu()
        return [
            labels[:length][mask[:length]].tolist()
            for labels, mask, length in zip(best.cpu(), keep, num_frames.tolist(), strict=True)
        ]
