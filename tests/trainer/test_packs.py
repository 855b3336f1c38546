"""Small tensors travel together, large ones from where they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.groups.packs import packs

MOST = 64
"""Bytes, so that tensors of 16 and more travel alone."""


def of(*sizes: int) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=torch.uint8) for size in sizes]


def packed(*sizes: int) -> list[list[int]]:
    return [[len(each) for each in pack] for pack in packs(of(*sizes), MOST)]


def test_small_tensors_between_large_ones_travel_together() -> None:
    assert packed(20, 3, 20, 3, 20, 3) == [[20], [20], [20], [3, 3, 3]]


def test_a_pack_is_at_most_so_large() -> None:
    assert packed(*[15] * 9) == [[15] * 4, [15] * 4, [15]]


@given(st.lists(st.integers(0, 40)))
def test_every_other_tensor_travels_once(sizes: list[int]) -> None:
    assert sorted(size for pack in packed(*sizes) for size in pack) == sorted(filter(None, sizes))


def test_tensors_are_asked_for_as_they_are_needed() -> None:
    """Whoever receives what it forgets has room for no more than a pack at once."""
    asked = []

    def ask() -> Iterator[torch.Tensor]:
        for size in (20, 20, 3, 20):
            asked.append(size)
            yield from of(size)

    coming = packs(ask(), MOST)
    next(coming)
    assert asked == [20]
