"""All alignments of a transcript to frames, as a transducer counts them.

B batch, T frames, U tokens, S = U + 1 places between tokens. In frame t and at place u a blank leads to frame t + 1,
and the label of place u, token u + 1 of the transcript, to place u + 1. A path starts at (0, 0) and ends with the blank
of the last frame and the last place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

NEVER = -1e30  # a log-probability; two of them can be added
LEAST = 1e-12  # probability below which nothing is learned; denormal numbers would make half of the work


class PathLosses(Function):
    """Negative log-probability of all paths together; its gradients are the probabilities of passing a place.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.4: forward and
        backward variables. Differs: places are computed one after another, each for all frames by one cumulative sum in
        the log domain, instead of frame by frame.
    """

    @staticmethod
    def forward(ctx: Any, blank: Tensor, label: Tensor, num_frames: Tensor, num_tokens: Tensor) -> tuple[Tensor, ...]:
        """Return losses (B,) in nats, and the probabilities (B, T, S) that a path takes a blank, and a label.

        Args:
            blank: (B, T, S) log-probabilities.
            label: (B, T, S) log-probabilities; the last place may hold anything.
            num_frames: (B,) int64, at least 1.
            num_tokens: (B,) int64.
        """
        log_likelihood, *taken = _forward_backward(blank, label, num_frames, num_tokens)
        ctx.save_for_backward(*taken)
        ctx.mark_non_differentiable(*taken)
        return -log_likelihood, *taken

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients (B, T, S) of both log-probabilities, from that (B,) of the losses."""
        takes_blank, takes_label = ctx.saved_tensors
        return -takes_blank * gradient[:, None, None], -takes_label * gradient[:, None, None], None, None


def _forward_backward(
    blank: Tensor, label: Tensor, num_frames: Tensor, num_tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities (B,), and the probabilities (B, T, S) of taking blanks and labels."""
    (size, longest, num_places), device = blank.shape, blank.device
    row, frame = torch.arange(size, device=device), torch.arange(longest, device=device)
    place = torch.arange(num_places, device=device)[:, None, None]
    is_last_frame = frame >= (num_frames - 1)[:, None]
    is_end = (frame == (num_frames - 1)[:, None]) & (num_tokens[:, None] == place)
    # (S, B, T), in double precision: sums over a thousand frames are subtracted from each other
    blanks, labels = (scores.permute(2, 0, 1).double() for scores in (blank, label))
    labels = labels.masked_fill((place >= num_tokens[:, None]) | (frame >= num_frames[:, None]), NEVER)
    before = blanks.masked_fill(is_last_frame, 0.0)
    before = before.cumsum(-1).sub_(before)  # log-probability of blanks alone from frame 0 to t

    reached = torch.empty_like(blanks)
    arriving = F.pad(blanks.new_zeros(size, 1), (0, longest - 1), value=NEVER)
    for s in range(num_places):
        # arriving at s costs the blanks from s to t: a cumulative sum in the log domain, all frames at once
        torch.add(torch.logcumsumexp(arriving - before[s], -1), before[s], out=reached[s])
        arriving = reached[s] + labels[s]
    total = reached[num_tokens, row, num_frames - 1] + blanks[num_tokens, row, num_frames - 1]

    # the same from the end, with the frames in reverse
    ends, labelled, passed = (x.flip(-1) for x in (blanks.masked_fill(~is_end, NEVER), labels, before))
    remaining = torch.empty_like(ends)
    following = blanks.new_full((size, longest), NEVER)
    for s in reversed(range(num_places)):
        leaving = torch.logaddexp(ends[s], labelled[s] + following)
        following = torch.sub(torch.logcumsumexp(leaving + passed[s], -1), passed[s], out=remaining[s])
    remaining = remaining.flip(-1)

    next_frame = F.pad(remaining[..., 1:], (0, 1)).masked_fill_(is_last_frame, NEVER).masked_fill_(is_end, 0.0)
    next_place = F.pad(remaining[1:], (0, 0, 0, 0, 0, 1), value=NEVER)
    # as a share of the total before exp: probabilities of whole paths alone would underflow
    passing = reached - total[:, None]
    taken = ((passing + scores).add_(then).exp_() for scores, then in ((blanks, next_frame), (labels, next_place)))
    takes_blank, takes_label = (x.masked_fill_(x < LEAST, 0.0).permute(1, 2, 0).to(blank.dtype) for x in taken)
    return total.to(blank.dtype), takes_blank, takes_label
