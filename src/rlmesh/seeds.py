"""One random seed fans out by purpose and place, so that no two streams of a run are the same."""

import hashlib


def fan_out(seed: int, *path: str | int, bits: int = 31) -> int:
    """A seed for one purpose and place, in [0, 2**bits): the same path gives the same seed on every machine.

    >>> fan_out(0, "sample", 3, 1) == fan_out(0, "sample", 3, 1) != fan_out(0, "sample", 3, 2)
    True
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> (64 - bits)
