"""Randomness as a pure function: every random choice has an address, and its seed follows from the address alone.

A shuffle, a crop or a dropout mask is seeded from (run seed, step, iteration, …). There is no generator state to save:
a resumed run, or one with another number of worker processes, draws exactly what the uninterrupted one would have.
"""

import hashlib


def seed_from(*address: int | str) -> int:
    """A 63-bit seed that depends on nothing but the address."""
    digest = hashlib.blake2b("/".join(map(str, address)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
