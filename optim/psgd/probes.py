"""The probes of `KronPreconditioner`: numbers of the normal distribution, of all parameters of a batch by one draw."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from optim.engine.param_batch import DRAW_KEY, ForeachBatch, ParamBatch
from optim.engine.random import Draw

CHUNK = 1 << 10  # pairs of numbers


def probes(seed: int, batch: ParamBatch, dtype: torch.dtype) -> Tensor:
    """Return a probe of the shape of every parameter; each depends on seed, step and parameter alone."""
    keys, device = [entry.state[DRAW_KEY] for entry in batch.entries], batch.param.device
    draw = Draw(seed, batch.step, "probe", keys, device)
    if not isinstance(batch, ForeachBatch):
        return draw.normal(batch.numel).to(dtype).reshape(batch.param.shape)
    # A draw is of one length. So it is one of chunks, which differ in the bits above those that count within.
    owners, starts, nums = _chunks(tuple(entry.param.numel() for entry in batch.entries), device)
    first, second = draw.keys[owners].unbind(-1)
    draw.keys = torch.stack((first ^ starts, second), -1)
    chunks = draw.normal(2 * CHUNK).to(dtype).view(-1, 2, CHUNK)
    parts, place = [], 0
    for part in batch.parts:
        num, members, numel = nums[place], len(part.entries), part.numel
        pairs = chunks[: num * members].view(members, num, 2, CHUNK).movedim(2, 1).flatten(2)
        # as `Draw.normal` orders them: the first of every pair, then the second
        parts.append(pairs[..., : (numel + 1) // 2].flatten(1)[:, :numel].reshape(part.param.shape))
        chunks, place = chunks[num * members :], place + members
    return batch.joined(parts)


@lru_cache(maxsize=64)
def _chunks(numels: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
    """Return whose each chunk is, and which pair it starts with; and how many chunks each parameter has."""
    nums = [-(-((numel + 1) // 2) // CHUNK) for numel in numels]
    owners = [place for place, num in enumerate(nums) for _ in range(num)]
    starts = [CHUNK * chunk for num in nums for chunk in range(num)]
    return torch.tensor(owners, device=device), torch.tensor(starts, dtype=torch.int32, device=device), nums
