"""Whether an export gives what the recognizer gives.

B batch, T frames, F mel bins, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from asr.errors import RunFailed
from asr.export.graph import Call
from asr.export.kinds import Export
from asr.features.global_norm import GlobalNorm

SIZES = ((1, 3), (1, 7), (2, 9), (1, 16), (3, 64), (2, 157), (1, 333), (3, 1000))  # utterances, frames of the longest
LARGEST_DIFFERENCE = 1e-5  # relative to the largest log-probability of a frame: both are rounded to 32 bits
LARGEST_CHANGE = 0.1  # of probabilities in eight bits, on average


def check_equal(export: Export, call: Call, norm: GlobalNorm) -> float:
    """Return the largest difference in log-probabilities between a recognizer and its graphs.

    Args:
        norm: of the recognizer, from whose statistics features are drawn.

    Raises:
        RunFailed: it is more than rounding explains, or another number of frames comes out.
    """
    largest = []
    for exported, expected in _trials(export, call, norm):
        difference = (exported - expected).abs().amax(dim=-1)
        scale = expected.abs().amax(dim=-1).clamp(min=1.0)
        largest.append(torch.stack([difference.max(), (difference / scale).max()]))
    absolute, relative = torch.stack(largest).amax(dim=0).tolist()  # NaN if any is
    if not relative <= LARGEST_DIFFERENCE:
        raise RunFailed(
            f"log-probabilities of the export differ from the recognizer's by {absolute:.1e}, {relative:.1e} of the "
            f"largest in a frame, where {LARGEST_DIFFERENCE} are allowed; nothing was left of it. If it is nan, the "
            "recognizer's own are not finite: choose another checkpoint. Else please report this, with config.yaml"
        )
    return absolute


def check_close(export: Export, call: Call, norm: GlobalNorm) -> float:
    """Return by how much probabilities change in a graph of eight bits: half the L1 distance, the mean of all frames.

    Raises:
        RunFailed: it is more than 0.1.
    """
    changes = [(f.exp() - e.exp()).abs().sum(dim=-1) / 2 for f, e in _trials(export, call, norm)]
    change = float(torch.cat(changes).mean())
    if not change <= LARGEST_CHANGE:
        raise RunFailed(
            f"in eight bits the probabilities of tokens change by {change:.0%} on average, more than "
            f"{LARGEST_CHANGE:.0%}; nothing was left of the export. Leave quantize out"
        )
    return change


def _trials(export: Export, call: Call, norm: GlobalNorm) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities (N, V) of valid frames, of the graphs and of the recognizer."""
    generator = torch.Generator().manual_seed(0)
    for size, longest in SIZES:
        noise = torch.randn(size, longest, len(norm.mean), generator=generator)
        num_frames = torch.randint(max(1, longest // 2), longest + 1, (size,), generator=generator)
        num_frames[0] = longest
        features = norm.mean + noise / norm.inverse_std
        with torch.no_grad():
            expected, expected_lengths = export.expected(features, num_frames)
        exported, lengths = export.log_probs(call, features, num_frames)
        if not torch.equal(lengths, expected_lengths):
            raise RunFailed(
                f"utterances of {num_frames.tolist()} frames become {lengths.tolist()} in the export, "
                f"{expected_lengths.tolist()} in the recognizer; nothing was left of it"
            )
        valid = torch.arange(expected.shape[1]) < lengths[:, None]
        if valid.any():
            yield exported[:, : valid.shape[1]][valid], expected[valid]
