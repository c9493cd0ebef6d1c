"""Forced alignment: the frames in which the tokens of a known text were most probably spoken.

B batch, T frames, D width of encodings, U tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.models.heads.ctc import has_alignment
from asr.models.heads.protocols import FrameScores, ScoresPaths
from asr.text.tokenizer import BLANK_ID

NEVER = -math.inf


class Alignment(NamedTuple):
    """The most probable path of each text.

    Attributes:
        first: (B, U) int64 first frame of each token, counted from 0.
        last: (B, U) int64 last frame of each token, itself included; a transducer's tokens have one frame.
        log_probs: (B, U) of each token, in the frame where it is most probable.
        score: (B,) log-probability of the path; -inf of a text that has more tokens than frames, or needs more.
    """

    first: Tensor
    last: Tensor
    log_probs: Tensor
    score: Tensor


def align(
    head: FrameScores | ScoresPaths, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor
) -> Alignment:
    """Return the most probable path of each text by CTC, or by the transducer of a head without CTC.

    Args:
        head: scores frames, or paths.
        encodings: (B, T, D).
        num_frames: (B,) int64 valid frames.
        tokens: (B, U) int64; padding may hold any token.
        num_tokens: (B,) int64 valid tokens.
    """
    # of utterances without frames one is padding
    encodings = F.pad(encodings, (0, 0, 0, max(0, 1 - encodings.shape[1])))
    if isinstance(head, FrameScores):
        return align_ctc(head.frame_log_probs(encodings), num_frames, tokens, num_tokens)
    return align_transducer(*head.path_scores(encodings, tokens, num_tokens), num_frames, num_tokens)


def _stay(entering: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Follow a state that is entered with a score (B, T) before a frame, and has a score (B, T) in each frame.

    Returns:
        The score (B, T) of the best path that is in the state after each frame, and the frame (B, T) in which that path
        entered it.
    """
    # entered at s, a path has entering[s] - before[s] + before[t] at t: the best s is a running maximum
    before = scores.cumsum(-1) - scores
    best, since = (entering - before).cummax(-1)
    return best + before + scores, since


def align_ctc(log_probs: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Alignment:
    """Return the most probable CTC path of each text.

    Tokens are computed one after another, each for all frames at once: since when a path has been in one follows from a
    cumulative maximum. So memory grows with T · U alone.

    Args:
        log_probs: (B, T, V), T at least 1.
        num_frames: (B,) int64.
        tokens: (B, U) int64.
        num_tokens: (B,) int64.

    Reference:
        Graves et al. 2006, "Connectionist Temporal Classification", section 4.1, with maxima in place of sums.
    """
    longest, last_frame = log_probs.shape[1], num_frames - 1
    of_blank = log_probs[..., BLANK_ID].double()  # sums over a whole recording are subtracted from each other
    repeats = F.pad(tokens[:, 1:] == tokens[:, :-1], (1, 0))
    entering = torch.full_like(of_blank, NEVER)
    entering[:, 0] = 0.0
    blank, _ = _stay(entering, of_blank)
    token, ends, passed = torch.full_like(entering, NEVER), [_at(blank, last_frame)], []
    for place in range(tokens.shape[1]):
        # from the token before, or from the blank between
        direct = token.masked_fill(repeats[:, place, None], NEVER)
        arriving = _delayed(torch.maximum(blank, direct))
        if place == 0:
            arriving[:, 0] = 0.0
        is_direct = direct > blank
        token, token_since = _stay(arriving, _of_token(log_probs, tokens[:, place]).double())
        blank, blank_since = _stay(_delayed(token), of_blank)
        ends.append(_at(torch.maximum(token, blank), last_frame))
        # all that is kept of a token: in 32 bits, for it grows with T · U
        passed.append((token_since.int(), blank_since.int(), blank > token, is_direct))
    first, last = _traced(passed, num_frames, num_tokens)
    frames, highest = torch.arange(longest, device=tokens.device), log_probs.new_zeros(tokens.shape)
    for place in range(tokens.shape[1]):
        inside = (first[:, place, None] <= frames) & (frames <= last[:, place, None])
        highest[:, place] = _of_token(log_probs, tokens[:, place]).masked_fill(~inside, NEVER).amax(1)
    score = torch.stack(ends, dim=1).gather(1, num_tokens[:, None]).squeeze(1)
    return Alignment(first, last, highest, score.masked_fill(~has_alignment(num_frames, tokens, num_tokens), NEVER))


def _of_token(log_probs: Tensor, token: Tensor) -> Tensor:
    """Return the log-probabilities (B, T) of one token (B,) of each text."""
    return log_probs.gather(2, token[:, None, None].expand(-1, log_probs.shape[1], -1)).squeeze(2)


def _delayed(scores: Tensor) -> Tensor:
    """Return the scores (B, T) of the frame before each."""
    return F.pad(scores[:, :-1], (1, 0), value=NEVER)


def _at(values: Tensor, frames: Tensor) -> Tensor:
    """Return one of the values (B, T) of each row; before the first frame that is the first."""
    return values.gather(1, frames.clamp(min=0)[:, None]).squeeze(1)


def _traced(
    passed: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], num_frames: Tensor, num_tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the first and the last frame (B, U) of each token, from the last token back.

    Args:
        passed: for each token since when (B, T) a path has been in it, and in the blank after it, whether that blank is
            the better end, and whether the token after it is better entered without that blank.
        num_frames: (B,).
        num_tokens: (B,).
    """
    first, last = (num_tokens.new_zeros(len(num_tokens), len(passed)) for _ in range(2))
    end = num_frames - 1
    through_blank = torch.ones_like(end, dtype=torch.bool)
    for place in reversed(range(len(passed))):
        token_since, blank_since, ends_in_blank, is_direct = passed[place]
        # texts of a batch begin their way back at their own last token
        is_last = num_tokens == place + 1
        end = torch.where(is_last, num_frames - 1, end)
        through_blank = torch.where(is_last, _at(ends_in_blank, end), through_blank)
        last[:, place] = torch.where(through_blank, _at(blank_since, end) - 1, end)
        first[:, place] = _at(token_since, last[:, place])
        end = first[:, place] - 1
        through_blank = ~_at(is_direct, end)
    return first, last


def align_transducer(blank: Tensor, label: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Alignment:
    """Return the most probable path of each text through the lattice of a transducer.

    Args:
        blank: (B, T, U + 1) log-probabilities, as of ``path_scores``, T at least 1.
        label: (B, T, U + 1) log-probabilities.
        num_frames: (B,) int64.
        num_tokens: (B,) int64.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.4, with
        maxima in place of sums.
    """
    row = torch.arange(len(blank), device=blank.device)
    arriving = blank.new_full(blank.shape[:2], NEVER, dtype=torch.float64)
    arriving[:, 0] = 0.0
    reached, since = [], []
    for of_blank, of_label in zip(blank.double().unbind(2), label.double().unbind(2), strict=True):
        # a label takes no frame, so that a path is in a place before the blank of the frame
        score, entered = _stay(arriving, of_blank)
        reached.append(score)
        since.append(entered)
        arriving = score - of_blank + of_label
    frames = num_tokens.new_zeros(len(blank), len(since) - 1)
    at = num_frames - 1
    for place in reversed(range(len(since) - 1)):
        at = torch.where(place < num_tokens, _at(since[place + 1], at), at)
        frames[:, place] = at
    places = torch.arange(frames.shape[1], device=frames.device)
    score = _at(torch.stack(reached)[num_tokens, row], num_frames - 1)
    impossible = (num_frames == 0) & (num_tokens > 0)
    return Alignment(frames, frames, label[row[:, None], frames, places], score.masked_fill(impossible, NEVER))
