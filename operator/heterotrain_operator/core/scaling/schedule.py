"""Which size is tried next: the search of Elasticity 4.1, for any number of groups.

It has a best size so far, and measures those beside it: `step` workers of one group more, or where none of them pays,
as many fewer. One that is better takes its place; once none is, the search rests there. With one group that is the
paper's schedule: it adds workers as long as that pays, and goes down from the first size at which it does not.

It ends, whatever is measured: no size is measured twice, and none is the best one twice.
"""

from __future__ import annotations

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
    """Bounds of each group's workers, in the order of a size, workers that a step adds, and sizes that can be."""

    bounds: Sequence[tuple[int, int]]
    step: int
    is_possible: Callable[[Size], bool] = lambda size: True

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
    for more in (True, False):
        fresh = [size for size in reach.beside(best, points, more=more) if size not in points]
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
    return None


def _differ_at(one: Size, other: Size, place: int) -> bool:
    """Whether two sizes differ in this group alone."""
    return one[place] != other[place] and one[:place] + one[place + 1 :] == other[:place] + other[place + 1 :]
