"""Seeds derived from their use, so that no random state has to be saved."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(*key: str | int) -> int:
    """Return a 63-bit seed that depends on ``key`` alone, the same in every process and on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_order(num: int, *key: str | int) -> np.ndarray:
    """Return the numbers below ``num`` in a random order that depends on ``key`` alone."""
    # numpy may change `permutation` between versions; its raw Philox numbers are fixed by a paper
    return np.argsort(np.random.Philox(key=seed_for(*key)).random_raw(num), kind="stable")
