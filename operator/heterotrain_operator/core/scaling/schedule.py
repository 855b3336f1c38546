"""Which size is tried next: the search of Elasticity 4.1, for any number of groups.

It has a best size so far, and measures those beside it: `step` workers of one group more, or where none of them pays,
as many fewer. One that is better takes its place; once none is, the search rests there. With one group that is the
paper's schedule: it adds workers as long as that pays, and goes down from the first size at which it does not. With
several, workers of one group in place of another's may be better where neither more nor fewer are, as where the
exchange between many workers is dear; where a condition can compare such sizes, they are tried last.

It ends, whatever is measured: no size is measured twice, and none is the best one twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from heterotrain_operator.core.remembered.sizes import Point
from heterotrain_operator.core.scaling.curve import Size

MOST_TRIED = 128
"""Sizes that one search measures at most."""

Pays = Callable[[Point, Point], bool]
"""Whether the greater of two sizes, which is the second one, pays against the smaller."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of each group's workers, in the order of a size, workers that a step adds, sizes that can be, and whether
    one group's workers may be tried in place of another's.
    """

    bounds: Sequence[tuple[int, int]]
    step: int
    is_possible: Callable[[Size], bool] = lambda size: True
    swaps: bool = False

    def holds(self, size: Size) -> bool:
        """Whether a size is within the bounds."""
        pairs = zip(size, self.bounds, strict=True)
        return all(least <= count <= most for count, (least, most) in pairs)

    def beside(self, best: Size, known: Collection[Size], *, more: bool) -> list[Size]:
        """The sizes a step from this one, up or down: where one nearer was measured, that one."""
        found = []
        for place, (least, most) in enumerate(self.bounds):
            have = best[place]
            want = min(have + self.step, most) if more else max(have - self.step, least)
            if (want <= have) if more else (want >= have):
                continue
            near = [each[place] for each in known if _differ_at(each, best, place)]
            between = [each for each in near if have < each <= want or want <= each < have]
            want = (min(between) if more else max(between)) if between else want
            size = (*best[:place], want, *best[place + 1 :])
            if any(size) and self.is_possible(size):
                found.append(size)
        return found

    def swapped(self, best: Size) -> list[Size]:
        """The sizes with a step's workers of one group in place of as many of another."""
        found = []
        for more, fewer in itertools.permutations(range(len(best)) if self.swaps else (), 2):
            counts = list(best)
            counts[more] += self.step
            counts[fewer] -= self.step
            if self.holds(size := tuple(counts)) and self.is_possible(size):
                found.append(size)
        return found


@dataclass(frozen=True, slots=True)
class Next:
    """The size to have, the best one so far, those that were the best one before, and whether the search is over."""

    size: Size
    best: Size
    left: tuple[Size, ...]
    at_rest: bool


def next_size(
    best: Size,
    points: Mapping[Size, Point],
    reach: Range,
    pays: Pays,
    choose: Callable[[Size, Sequence[Size]], Size],
    *,
    most: int = MOST_TRIED,
) -> Next:
    """What follows from the points; `best` must have one. `choose` picks one of several sizes that nothing is known of,
    and `most` so many more may be measured.
    """
    left = {size for size, point in points.items() if point.left}
    while (better := _better(best, points, reach, pays, left)) is not None:
        left.add(best)
        best = better
    ways = (reach.beside(best, points, more=True), reach.beside(best, points, more=False), reach.swapped(best))
    for sizes in ways:
        fresh = [size for size in sizes if size not in points]
        if fresh and most > 0:
            return Next(choose(best, fresh), best, tuple(sorted(left)), False)
    return Next(best, best, tuple(sorted(left)), True)


def _better(best: Size, points: Mapping[Size, Point], reach: Range, pays: Pays, left: Collection[Size]) -> Size | None:
    """A size beside the best one that is better by what was measured; None if none is."""
    for more in (True, False):
        for size in reach.beside(best, points, more=more):
            if size not in points or size in left:
                continue
            small, great = (best, size) if more else (size, best)
            if pays(points[small], points[great]) is more:
                return size
    known = (size for size in reach.swapped(best) if size in points and size not in left)
    return next((size for size in known if pays(points[best], points[size])), None)


def _differ_at(one: Size, other: Size, place: int) -> bool:
    """Whether two sizes differ in this group alone."""
    return one[place] != other[place] and one[:place] + one[place + 1 :] == other[:place] + other[place + 1 :]
