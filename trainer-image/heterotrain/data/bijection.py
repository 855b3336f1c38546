"""The order of a large data set, computed by index: a keyed bijection, of which nothing is stored.

A permutation that is drawn takes eight bytes a sample, on every worker. Here the sample at a place of the order is a
function of the place, the seed and the epoch, so any part of an order costs as much as that part is long.

A Feistel network permutes the pairs of two halves of an index, whatever its round function is: Luby and Rackoff, "How
to Construct Pseudorandom Permutations from Pseudorandom Functions" (1988), section 3. An odd number of bits has a half
that is one bit longer: each round is undone by the same round all the same, and an even number of them restores the
lengths. So the domain is the next power of two; an index beyond the data set is permuted again until it is inside,
which is a bijection of what is inside: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), section 3.
"""

from __future__ import annotations

import hashlib
import struct

import torch

LONGEST = 1 << 62
"""Samples: above it a half would not fit into 31 bits, nor its products into 63."""

_ROUNDS = 6  # an even number
_32_BITS = (1 << 32) - 1


def keyed_order(length: int, seed: int, epoch: int, start: int, stop: int) -> torch.Tensor:
    """The part [start, stop) of the order of `length` samples, int64 of shape (stop - start,); the same everywhere.

    Raises ValueError for more than `LONGEST` samples.
    """
    if length > LONGEST:
        raise ValueError(f"the data set has {length} samples; at most {LONGEST} can be put in order")
    bits, keys = max(2, (length - 1).bit_length()), _round_keys(seed, epoch)
    found = _permuted(torch.arange(start, stop, dtype=torch.int64), bits, keys)
    outside = (found >= length).nonzero().flatten()
    # The domain is less than twice as large as the data set, so each time about half of them come inside.
    while len(outside):
        moved = _permuted(found[outside], bits, keys)
        found[outside] = moved
        outside = outside[moved >= length]
    return found


def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    name = struct.pack("<Qq", seed % 2**64, epoch)
    digest = hashlib.blake2b(name, digest_size=4 * _ROUNDS, person=b"order of samples").digest()
    return struct.unpack(f"<{_ROUNDS}I", digest)


def _permuted(indices: torch.Tensor, bits: int, keys: tuple[int, ...]) -> torch.Tensor:
    low = bits // 2
    mask, other_mask = (1 << (bits - low)) - 1, (1 << low) - 1
    left, right = indices >> low, indices & other_mask
    for key in keys:
        left, right = right, left ^ (_mixed(right, key) & mask)
        mask, other_mask = other_mask, mask
    return (left << low) | right


def _mixed(half: torch.Tensor, key: int) -> torch.Tensor:
    """A hash of 32 bits. Source of its form: Appleby, MurmurHash3 (2011), finalisation of 32 bits. Both factors are odd
    and below 2^31, so that products stay exact in 63 bits."""
    mixed = half + key & _32_BITS
    mixed = (mixed ^ (mixed >> 16)) * 0x7FEB352D & _32_BITS
    mixed = (mixed ^ (mixed >> 15)) * 0x31848BAB & _32_BITS
    return mixed ^ (mixed >> 16)
