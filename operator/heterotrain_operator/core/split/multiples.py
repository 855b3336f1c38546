"""Which batches are possible: whole samples within bounds, or whole multiples, as hardware that pads its batches to 8,
16 or 32 samples wants them.

Workers of one multiple share their part of the global batch in units of it, by the very rules that hold for single
samples. Of several multiples each must divide the next: then it is known without a search which totals can be reached,
and what the coarser ones leave over is for the finer ones, in the end for workers that take any number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

Bounds = tuple[int, int]
"""Least and greatest batch of one worker, both inclusive, in samples."""


def feasibility(total: int, bounds: Sequence[Bounds], names: Sequence[str] = ()) -> str | None:
    """Why no split of `total` samples keeps all bounds, with figures; None if one does.

    `names` are the workers', for the message; without them they are numbered.
    """
    if not bounds:
        return f"there is no worker to take the global batch of {total} samples"
    if total < 1:
        return f"the global batch of {total} samples is no batch"
    least = most = 0
    for rank, (low, high) in enumerate(bounds):
        if low < 0 or high < low:
            name = names[rank] if names else f"worker {rank}"
            return f"{name} is bounded to [{low}, {high}] samples, which holds no batch"
        least += low
        most += high
    batch = f"the global batch of {total} samples"
    if total < least:
        return f"{batch} is below {least}, the sum of the least batches of {len(bounds)} workers"
    if total > most:
        return f"{batch} exceeds {most}, the sum of the greatest batches of {len(bounds)} workers"
    return None


UnitSplit = Callable[[Sequence[int], int, Sequence[Bounds], int], Sequence[int]]
"""`(ranks, total, bounds, unit)` gives units to these workers: `total` and `bounds` are in units of `unit` samples."""

MOST_COMPARED = 3
"""Multiples in one job of which both neighbours of the ideal part are compared; of more, only the nearest is taken."""


class Level(NamedTuple):
    """Workers with one multiple: which ranks, and the least and greatest sums of their batches, in samples."""

    multiple: int
    ranks: tuple[int, ...]
    least: int
    most: int


def next_multiple(value: int, multiple: int) -> int:
    """The least multiple that is not below the value."""
    return -(-value // multiple) * multiple


def last_multiple(value: int, multiple: int) -> int:
    """The greatest multiple that is not above the value."""
    return value // multiple * multiple


def nearest_multiple(value: float, multiple: int) -> int:
    """The multiple that is nearest to the value."""
    return round(value / multiple) * multiple


def in_multiples(bounds: Bounds, multiple: int) -> Bounds:
    """The same bounds with ends that are multiples. One batch alone stays as it is: it was given, and is not to
    move."""
    low, high = bounds
    if multiple <= 1 or low == high:
        return bounds
    return next_multiple(low, multiple), last_multiple(high, multiple)


def divide_each_other(multiples: Sequence[int]) -> bool:
    """Whether of any two multiples one divides the other."""
    ordered = sorted(set(multiples))
    return all(coarse % fine == 0 for fine, coarse in itertools.pairwise(ordered))


def unreachable(total: int, bounds: Sequence[Bounds], multiples: Sequence[int]) -> str:
    """Why no batches in these multiples, by rank, add up to `total` within bounds, in words; empty if some do."""
    named = ", ".join(str(multiple) for multiple in sorted(set(multiples)))
    if not divide_each_other(multiples):
        return f"of the multiples {named} each must divide the next"
    rounded = [in_multiples(pair, multiple) for pair, multiple in zip(bounds, multiples, strict=True)]
    for rank, (low, high) in enumerate(rounded):
        if high < low:
            return f"there is no multiple of {multiples[rank]} between {bounds[rank][0]} and {bounds[rank][1]}"
    if _reaches(total, total, _levels(rounded, multiples)):
        return ""
    return f"no batches in multiples of {named} within their bounds add up to {total}"


def infeasible(total: int, bounds: Sequence[Bounds], multiples: Sequence[int], names: Sequence[str] = ()) -> str | None:
    """Why no split of `total` samples keeps all bounds and multiples (empty: of single samples), with figures; None if
    one does. `names` are the workers', for the message.
    """
    if not multiples:
        return feasibility(total, bounds, names)
    rounded = [in_multiples(pair, multiple) for pair, multiple in zip(bounds, multiples, strict=True)]
    why_not = feasibility(total, rounded, names)
    if why_not is not None:
        return why_not
    why_not = unreachable(total, bounds, multiples)
    return f"the global batch of {total} samples cannot be split: {why_not}" if why_not else None


def split_in_multiples(
    split: UnitSplit,
    total: int,
    bounds: Sequence[Bounds],
    multiples: Sequence[int],
    seconds: Callable[[Sequence[int]], float] | None = None,
) -> tuple[int, ...]:
    """Batches in these multiples, by rank, that add up to `total` within bounds.

    What all workers of one multiple get together is as near as possible to what `split` would give them in single
    samples; with `seconds`, the greatest own time of a split, the better of the two neighbours. Raises ValueError, in
    words, if there are no such batches.
    """
    why_not = unreachable(total, bounds, multiples)
    if why_not:
        raise ValueError(why_not)
    rounded = [in_multiples(pair, multiple) for pair, multiple in zip(bounds, multiples, strict=True)]
    levels = _levels(rounded, multiples)
    everybody = range(len(bounds))
    ideal = split(everybody, total, rounded, 1) if len(levels) > 1 else ()

    def solved(rest: int, count: int, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """With so many levels left, the coarsest of which is next; `chosen` are the units of those before."""
        if count == 0:
            return chosen
        level, finer = levels[count - 1], levels[: count - 1]
        parts = _parts(rest, level, finer, sum(ideal[rank] for rank in level.ranks) if finer else rest)
        if seconds is None or len(levels) > MOST_COMPARED:
            parts = parts[:1]
        found = [solved(rest - part, count - 1, _with(level, part, chosen)) for part in parts]
        return min(found, key=seconds) if seconds is not None and len(found) > 1 else found[0]

    def _with(level: Level, part: int, chosen: tuple[int, ...]) -> tuple[int, ...]:
        unit = level.multiple
        pairs = [(rounded[rank][0] // unit, rounded[rank][1] // unit) for rank in level.ranks]
        batches = list(chosen)
        for rank, units in zip(level.ranks, split(level.ranks, part // unit, pairs, unit), strict=True):
            batches[rank] = units * unit
        return tuple(batches)

    return solved(total, len(levels), (0,) * len(bounds))


def _levels(rounded: Sequence[Bounds], multiples: Sequence[int]) -> list[Level]:
    """The finest first. A worker that has one batch alone takes part with that, whatever its multiple is."""
    own = [
        1 if low == high and low % multiple else multiple
        for (low, high), multiple in zip(rounded, multiples, strict=True)
    ]
    ranks: dict[int, list[int]] = {}
    for rank, multiple in enumerate(own):
        ranks.setdefault(multiple, []).append(rank)
    return [
        Level(multiple, tuple(mine), sum(rounded[rank][0] for rank in mine), sum(rounded[rank][1] for rank in mine))
        for multiple, mine in sorted(ranks.items())
    ]


def _reaches(low: int, high: int, levels: Sequence[Level]) -> bool:
    """Whether some sum of multiples, of each level one within its sums, lies in the interval.

    All coarser sums are multiples of the finest level's, and its own sums are all multiples between its least and most;
    so the coarser ones must reach the interval that it leaves.
    """
    for multiple, _, least, most in levels:
        first, last = next_multiple(low, multiple), last_multiple(high, multiple)
        if first > last:
            return False
        low, high = first - most, last - least
    return low <= 0 <= high


def _parts(rest: int, level: Level, finer: Sequence[Level], ideal: int) -> list[int]:
    """Sums of the level, in samples, that leave the finer ones what they can reach: the nearest to the ideal first, and
    of each side at most one.
    """
    unit = level.multiple
    low = max(level.least, next_multiple(rest - sum(each.most for each in finer), unit))
    high = min(level.most, last_multiple(rest - sum(each.least for each in finer), unit))
    start = min(max(last_multiple(ideal, unit), low), high)
    sides = (range(start, low - 1, -unit), range(start + unit, high + 1, unit))
    found = [next((part for part in side if _reaches(rest - part, rest - part, finer)), math.nan) for side in sides]
    return sorted((int(part) for part in found if not math.isnan(part)), key=lambda part: abs(part - ideal))
