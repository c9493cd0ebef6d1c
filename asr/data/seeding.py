"""Seeds derived from their use, so that no random state has to be saved."""

from __future__ import annotations

import hashlib


def seed_for(*key: str | int) -> int:
    """Return a 63-bit seed that depends on ``key`` alone, the same in every process and on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
