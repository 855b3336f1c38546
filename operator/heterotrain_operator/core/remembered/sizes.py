"""How many workers a job has beside what its spec asks for, and what is known of the sizes that were tried.

A group's replicas in the spec stay what they are. What was found is kept as a difference to them, so that an edit of
the replicas, by whomever, ends it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole
from heterotrain_operator.core.columns import cut
from heterotrain_operator.core.fields import MEASURED, MOST_GROUPS, Kept, Rows

MOST_POINTS = 32
"""Sizes of which the throughput is remembered."""

MOST_TRIES = 32
"""Tries to enlarge a group that are counted."""

LONGEST_WHY = 400
"""Characters of a reason that are remembered."""

_MOST_COUNT = MAX_WHOLE // 2
_MOST_SECONDS = 1e6
"""A step that takes longer is none."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A group has `delta` workers more (or less, below zero) than the `replicas` that the job's spec asked for then."""

    group: str
    replicas: int
    delta: int


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one size: `workers` and their `samples` per step, both by group in the order of the names,
    seconds of a whole step and the steps behind it. `left`: the search has gone on from it to a better one.
    """

    workers: tuple[int, ...]
    samples: tuple[int, ...]
    step_seconds: float
    steps: int
    left: bool = False

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return sum(self.samples)

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.step_seconds

    def rounded(self) -> Point:
        """As it reads back."""
        return replace(self, step_seconds=cut(self.step_seconds))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A group that did not get the workers it was to have, for the `tries`-th time and for this reason; it is left
    alone until `until`, in Unix seconds (0: it may be tried again).
    """

    group: str
    tries: int
    until: float
    why: str = ""

    def moved(self, seconds: float) -> Refusal:
        """With its moment so much later, as after the clock has leapt."""
        return replace(self, until=max(self.until + seconds, 1.0)) if self.until > 0 else self

    def rounded(self) -> Refusal:
        """As it reads back."""
        return replace(self, why=self.why[:LONGEST_WHY])


def _resize_from(row: list[Any]) -> Resize | None:
    sound = len(row) >= 3 and is_text(row[0], MAX_NAME_LENGTH) and is_whole(row[1], high=_MOST_COUNT)
    return Resize(*row[:3]) if sound and is_whole(row[2], low=-_MOST_COUNT, high=_MOST_COUNT) else None


def _removal_from(row: list[Any]) -> Resize | None:
    found = _resize_from(row)
    return None if found is None or found.delta < 0 else replace(found, delta=-found.delta)


def _point_row(point: Point) -> list[Any]:
    return [point.step_seconds, point.steps, int(point.left), *point.workers, *point.samples]


def _point_from(row: list[Any]) -> Point | None:
    groups = (len(row) - 3) // 2
    if len(row) % 2 == 0 or not 1 <= groups <= MOST_GROUPS or not is_number(row[0]):
        return None
    if not 0 < row[0] <= _MOST_SECONDS or not all(is_whole(each, high=_MOST_COUNT) for each in row[1:]):
        return None
    workers, samples = tuple(row[3 : 3 + groups]), tuple(row[3 + groups :])
    if not sum(workers) or not sum(samples):
        return None
    return Point(workers, samples, float(row[0]), row[1], bool(row[2]))


def _refusal_from(row: list[Any]) -> Refusal | None:
    sound = len(row) >= 4 and is_text(row[0], MAX_NAME_LENGTH) and is_whole(row[1], high=MOST_TRIES)
    if not sound or not (is_number(row[2]) and row[2] >= 0 and is_text(row[3], LONGEST_WHY)):
        return None
    return Refusal(row[0], row[1], float(row[2]), row[3])


REMOVALS = Rows(lambda each: [each.group, each.replicas, -each.delta], _removal_from, MOST_GROUPS)
"""Rows that a version before sizes wrote, and reads: by how many workers a group is smaller."""

RESIZES = Rows(lambda each: [each.group, each.replicas, each.delta], _resize_from, MOST_GROUPS)
POINTS = Rows(_point_row, _point_from, MOST_POINTS, rounded=Point.rounded, newest=True)
REFUSALS = Rows(
    lambda each: [each.group, each.tries, each.until, each.why],
    _refusal_from,
    MOST_GROUPS,
    Refusal.moved,
    Refusal.rounded,
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """By how much groups differ from the spec: for stragglers that were `removed` (`lifecycle/removing.py`), and since
    a size that scaling found has them `resized` (`scaling/`).

    `points` are what the search has measured, `tried` so many sizes since it began. It compares others with the point
    of `best_size` (its workers by group, as text; empty: it has none yet), and is over where `at_rest`. Since
    `resized_at` workers of a new size have been on their way; None: nobody is. At rest the throughput was
    `rest_throughput` first, and has been another for `off_intervals` in a row; until the last look, under plan
    `rest_version`, so many steps were measured, and seconds. `searched_as` tells whether the settings are still those
    of the search. The job was to end `first_end_seconds` after its start when the search began. `said` is the last
    decision in words.
    """

    removed: Annotated[tuple[Resize, ...], REMOVALS] = ()
    resized: Annotated[tuple[Resize, ...], RESIZES] = ()
    points: Annotated[tuple[Point, ...], POINTS] = ()
    refusals: Annotated[tuple[Refusal, ...], REFUSALS] = ()
    best_size: str = ""
    tried: int = 0
    at_rest: bool = False
    resized_at: float | None = None
    searched_as: str = ""
    first_end_seconds: Annotated[float, Kept(most=1e12)] = 0.0
    rest_throughput: Annotated[float, MEASURED] = 0.0
    off_intervals: Annotated[int, MEASURED] = 0
    rest_version: Annotated[int, Kept(measured=True, most=MAX_WHOLE)] = 0
    rest_steps: Annotated[float, Kept(measured=True, digits=None, most=math.inf)] = 0.0
    rest_seconds: Annotated[float, Kept(measured=True, digits=None, most=math.inf)] = 0.0
    said: str = ""

    def begun_again(self) -> Sizes:
        """Once all workers start again, which they do as many as the spec asks for: what was measured is known."""
        known = self.points or self.refusals
        return replace(self, removed=(), resized=(), resized_at=None, at_rest=False) if known else Sizes()

    def searched_again(self) -> Sizes:
        """With no search, and nothing of what it has measured; sizes stay what they are."""
        return Sizes(removed=self.removed, resized=self.resized, refusals=self.refusals, said=self.said)
