"""Whether a greater size pays against a smaller one: the conditions of Elasticity 4.2."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heterotrain_operator.core.model import Scaling
from heterotrain_operator.core.remembered.sizes import Point


@dataclass(frozen=True, slots=True)
class Outlook:
    """What conditions rest on beside two points. Of the job `elapsed_seconds` have passed and `samples_left` are to be
    trained on; None: it is not known when it ends. It was to end `first_end_seconds` after its start when the search
    began (0: not known). `prices` are per second of one worker, by group in the order of a size.
    """

    elapsed_seconds: float = 0.0
    samples_left: float | None = None
    first_end_seconds: float = 0.0
    prices: tuple[float, ...] = ()

    def end_seconds(self, point: Point) -> float:
        """The job's whole time if it goes on at this size: `T = T_p + t_k n`."""
        return self.elapsed_seconds + (self.samples_left or 0.0) / point.throughput

    def cost(self, point: Point) -> float:
        """What is still to be paid at this size: `t_k n` seconds of all its workers. What was spent before is the same
        for all sizes.
        """
        price = sum(count * each for count, each in zip(point.workers, self.prices, strict=True))
        return (self.samples_left or 0.0) / point.throughput * price


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the greater size pays, and why, in words and numbers."""

    pays: bool
    why: str


Condition = Callable[[Scaling, Outlook, Point, Point], Judgement]
"""Judges a greater size, which is the last argument, against a smaller one."""


def efficiency(small: Point, great: Point) -> float:
    """`((R_{k+d} - R_k) / d) / (R_k / k)`, equation 1 of 4.2.1: what one of the workers more brings, of what one of
    those before does.

    Workers count by how fast they are, which their batches show, in those of the group that differs.
    """
    place = next(
        (at for at, pair in enumerate(zip(small.workers, great.workers, strict=True)) if pair[0] != pair[1]), 0
    )
    more = great.workers[place] - small.workers[place]
    share = great.samples[place] / great.workers[place] if great.workers[place] else 0.0
    before = great.batch / share - more if share > 0 else float(sum(small.workers))
    if before <= 0:
        before = float(sum(small.workers))
    return (great.throughput - small.throughput) / more / (small.throughput / before)


def _throughput(scaling: Scaling, _: Outlook, small: Point, great: Point) -> Judgement:
    found = efficiency(small, great)
    pays = found > scaling.threshold
    why = (
        f"{rate(small)} -> {rate(great)} samples/s, each new one brings {found:.2f} of an old one, "
        f"{'above' if pays else 'not above'} {scaling.threshold:g}"
    )
    return Judgement(pays, why)


def _by_utility(scaling: Scaling, outlook: Outlook, small: Point, great: Point) -> Judgement:
    late, early = outlook.end_seconds(small), outlook.end_seconds(great)
    first = outlook.first_end_seconds or late
    gain = utility(scaling, early, first) - utility(scaling, late, first)
    cost = outlook.cost(great) - outlook.cost(small)
    pays = gain > cost
    why = (
        f"{rate(small)} -> {rate(great)} samples/s, the job ends after {early:.0f} instead of {late:.0f} s, which is "
        f"worth {gain:.4g} more and costs {cost:.4g} more"
    )
    return Judgement(pays, why)


CONDITIONS: Mapping[str, Condition | None] = {"None": None, "Throughput": _throughput, "Utility": _by_utility}

JUDGE_ANY = frozenset({"Utility"})
"""Conditions by which any two sizes can be compared, also where neither is the greater one."""


def rate(point: Point) -> str:
    """The throughput in figures."""
    return f"{point.throughput:.4g}"


def utility(scaling: Scaling, seconds: float, first_end_seconds: float) -> float:
    """What it is worth that the job ends so many seconds after its start; flat outside the corners.

    `Linear` lines run between the corners; `Concave` falls with the square of the way from one to the next. A `Step`
    holds until its corner, and 0 after the last. Its gaps are bridged (4.2.2): from a corner a line falls to the next
    one, and from the last to the end that the job was to have first.
    """
    corners = list(scaling.corners)
    if not corners:
        return 0.0
    if scaling.form == "Step":
        end = corners[-1][0]
        if first_end_seconds > end:
            corners.append((first_end_seconds, 0.0))
        elif seconds > end:
            return 0.0
    if seconds <= corners[0][0]:
        return corners[0][1]
    for (before, high), (after, low) in itertools.pairwise(corners):
        if seconds <= after:
            way = (seconds - before) / (after - before)
            return high + (low - high) * (way * way if scaling.form == "Concave" else way)
    return corners[-1][1]
