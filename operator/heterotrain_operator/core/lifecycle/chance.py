"""Chance without randomness: numbers that differ from job to job and from try to try, and are the same when asked
again."""

from __future__ import annotations

import hashlib


def fraction(seed: str, number: int) -> float:
    """The n-th number of a seed, evenly spread over [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{number}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:6]) / 2**48
