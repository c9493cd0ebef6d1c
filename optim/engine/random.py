"""Random numbers that are functions of (seed, step, purpose, parameter, element): no generator is read or changed.

Every process of a distributed run and every resumed run therefore draws the same, and a parameter draws the same alone
and in a stack. Legend: N parameters of a batch, n elements of each.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

# Lowbias32 of https://github.com/skeeto/hash-prospector: shifts and odd factors that were searched for such that each
# bit of the input changes each bit of the output with a probability near one half. As signed numbers.
FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))
UNIT_OF_16_BITS = 2.0**-16
UNIT_OF_24_BITS = 2.0**-24


def key_of(name: str) -> int:
    """Return the number that draws of a parameter of this name depend on."""
    return _digest(name)


def uniform_number(seed: int, step: int, purpose: str) -> float:
    """Return a number in [0, 1) that is equal for all parameters, for decisions that Python makes."""
    return _digest(seed, step, purpose) / 2.0**64


class Draw:
    """The random numbers of some parameters at one step and for one purpose.

    Elements are counted in the order of `torch.Tensor.reshape(-1)`, whatever the memory layout.

    Args:
        seed: of the optimizer.
        step: of the parameters.
        purpose: tells draws of one step apart.
        keys: N numbers of `key_of`.
        device: where the numbers are made; nothing waits for it.

    Reference:
        Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", SC11: random numbers as a keyed function of
        a counter. Differs: a keyed 32-bit hash in place of Philox, whose 64-bit products torch would make in several
        passes; fit for rounding and probes, not for cryptography.
    """

    def __init__(self, seed: int, step: int, purpose: str, keys: Sequence[int], device: torch.device) -> None:
        # a count on the device would be hashed by how it is printed
        first, second = _signed_halves(_digest(seed, operator.index(step), purpose))
        # mixed on the device, of numbers that stay there: a copy from the host would stop a CUDA graph's capture
        self.keys = _mixed(_on_device(tuple(keys), device) ^ first, second)

    def bits(self, count: int) -> Tensor:
        """Return (N, count) int32 with 32 random bits each."""
        first, second = self.keys.unsqueeze(-1).unbind(-2)
        x = torch.arange(count, dtype=torch.int32, device=self.keys.device) ^ first
        return _mixed(x, second)

    def bits16(self, count: int) -> Tensor:
        """Return (N, count) int16 with 16 random bits each."""
        return self.bits((count + 1) // 2).view(torch.int16)[:, :count]

    def uniform(self, count: int) -> Tensor:
        """Return (N, count) float32, uniform in (0, 1)."""
        # of 24 bits, so that the largest number is below 1 in float32
        return self.bits(count).bitwise_right_shift_(8).bitwise_and_(0xFFFFFF).float().add_(0.5).mul_(UNIT_OF_24_BITS)

    def normal(self, count: int) -> Tensor:
        """Return (N, count) float32 of the normal distribution, cut off at 4.9.

        Reference:
            Box and Muller 1958, "A Note on the Generation of Random Normal Deviates". The angle and the radius have 16
            bits each.
        """
        return torch.cat(self.normal_pairs((count + 1) // 2), -1)[:, :count]

    def normal_pairs(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first and the second half of 2 count numbers of `normal`, (N, count) each."""
        bits = self.bits(count)
        angle = (bits >> 16).float().add_(0.5).mul_(2 * math.pi * UNIT_OF_16_BITS)
        radius = bits.bitwise_and_(0xFFFF).float().add_(0.5).mul_(UNIT_OF_16_BITS).log_().mul_(-2).sqrt_()
        return torch.cos(angle).mul_(radius), angle.sin_().mul_(radius)


def _mixed(x: Tensor, key: Tensor | int) -> Tensor:
    """Mix the bits of int32 numbers in place, with a key halfway."""
    # torch shifts the sign in from the left: the mask takes it off again
    scratch = x >> 16
    x.bitwise_xor_(scratch.bitwise_and_(0xFFFF)).mul_(FACTORS[0])
    # with a key at the start alone, two draws would hold the same numbers in another order
    x.add_(key)
    torch.bitwise_right_shift(x, 15, out=scratch)
    x.bitwise_xor_(scratch.bitwise_and_(0x1FFFF)).mul_(FACTORS[1])
    torch.bitwise_right_shift(x, 16, out=scratch)
    return x.bitwise_xor_(scratch.bitwise_and_(0xFFFF))


@lru_cache(maxsize=1 << 14)
def _on_device(keys: tuple[int, ...], device: torch.device) -> Tensor:
    """Return (N, 2) int32."""
    return torch.tensor([_signed_halves(key) for key in keys], dtype=torch.int32, device=device)


@lru_cache(maxsize=1 << 10)
def _digest(*values: object) -> int:
    """Return 64 bits that depend on the values alone; Python's hash of a string differs from process to process."""
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=8).digest(), "little")


def _signed_halves(key: int) -> tuple[int, int]:
    halves = key & 0xFFFFFFFF, key >> 32
    return halves[0] - (1 << 31), halves[1] - (1 << 31)
