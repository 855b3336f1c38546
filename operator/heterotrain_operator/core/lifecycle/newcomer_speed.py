"""How fast a newcomer is that is to take a straggler's place, and whether the step gets shorter with it.

It is taken for as fast as the straggler when that was healthy, or for as slow as its warm-up has shown: steps that it
computed by itself before it joined anybody. These lack the optimizer's step and whatever others do at the same time, so
that they show who is slow, and not who is faster than all of its group. One that exports none is taken for as slow as
the straggler on the very node where that is slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from heterotrain_operator.core.batching.asking import seats_of
from heterotrain_operator.core.batching.policies import Seat
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.lifecycle.prior import place_of
from heterotrain_operator.core.model import Job, WorkerSeen
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS
from heterotrain_operator.core.remembered.replacements import GREATEST_FACTOR
from heterotrain_operator.core.state import Remembered, is_of
from heterotrain_operator.core.stragglers.remedies import LEAST_ELASTIC_GAIN, LEAST_GAIN, fair_share, outlooks
from heterotrain_operator.core.stragglers.verdict import Verdict
from heterotrain_operator.core.stragglers.watch import replacement_seconds

LEAST_PART = 0.5
"""Of the gain of a healthy worker, for which the newcomer was created: enough where that is little, as in a large
job."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a swap: the newcomer's steps take `factor` times as long as the straggler's, so that it would have so many
    `samples` beside the present ones of the others; `balanced` and `swapped` are the own seconds of a whole step
    without and with it, and `healthy` those that were expected of a healthy one. `measured`: its warm-up has shown
    that.
    """

    name: str
    factor: float
    samples: float
    balanced: float
    swapped: float
    healthy: float
    measured: bool

    @property
    def gains(self) -> bool:
        """Whether the swap shortens the step by enough to be seen, or brings a good part of what a healthy worker
        would; that alone may be far off where the straggler's times are known at few batches.
        """
        gain = self.balanced - self.swapped
        enough = min(LEAST_GAIN * self.balanced, LEAST_PART * (self.balanced - self.healthy))
        return gain >= max(enough, LEAST_ELASTIC_GAIN * self.balanced)

    @property
    def words(self) -> str:
        """Why it does not."""
        source = "as its warm-up shows" if self.measured else "since it has the straggler's place"
        return (
            f"a step takes {duration(self.balanced)} and would take {duration(self.swapped)} with {self.name}, {source}"
        )

    @staticmethod
    def of(verdict: Verdict) -> str:
        """What is expected of a replacement before there is one, in words."""
        ahead = verdict.outlooks
        if ahead is None:
            return "what that gains is not known"
        return f"a step takes {duration(ahead.rebalanced)}, and {duration(ahead.replaced)} with a healthy one"


def forecast(
    job: Job, facts: Facts, memory: Remembered, *, straggler: WorkerSeen, newcomer: WorkerSeen, verdict: Verdict
) -> Forecast | None:
    """What the swap of these two leads to; None if too little is known of the members."""
    plan = facts.plan
    if plan is None or not is_of(memory, plan):
        return None
    rank = plan.rank_of(straggler.name, straggler.uid)
    seats = seats_of(job, plan, memory.workers, [None] * len(plan.members))
    if rank is None or seats[rank].prediction is None:
        return None
    shown, factor = _shown_factor(newcomer, seats[rank]), 1 / max(verdict.slowdown, 1.0)
    known = memory.workers[rank].place
    if shown is not None:
        factor = max(shown, min(factor, _peers_factor(seats, rank)))
    elif known > 0 and known == place_of(newcomer):
        factor = 1.0
    factor = min(max(factor, 1 / GREATEST_FACTOR), GREATEST_FACTOR)
    ahead = outlooks(seats, {rank: 1 / factor}, replacement_seconds(memory)).get(rank)
    samples = fair_share(seats, rank, 1 / factor)
    if ahead is None or samples is None or verdict.outlooks is None:
        return None
    healthy = verdict.outlooks.replaced
    return Forecast(newcomer.name, factor, samples, ahead.rebalanced, ahead.replaced, healthy, shown is not None)


def _peers_factor(seats: Sequence[Seat], rank: int) -> float:
    """How many times as long the steps of the straggler's peers take, of the median of those that are not named, as its
    own of the same batch; infinite where it has none. The slowdown alone is known at its own few samples only.
    """
    line, group = seats[rank].line(), seats[rank].group.name
    peers = [seat for seat in seats if seat.group.name == group and not seat.memory.evidence.named and seat.batch > 0]
    lines = [(seat.batch, seat.line()) for seat in peers]
    if line is None:
        return math.inf
    ratios = [other.at(batch) / line.at(batch) for batch, other in lines if other is not None and line.at(batch) > 0]
    return median_low(ratios) if ratios else math.inf


def _shown_factor(newcomer: WorkerSeen, seat: Seat) -> float | None:
    """By its warm-up, how many times as long its steps take as the straggler's of the same batch: at the batch where
    that is least; None if it has exported no steps, or none that can be.
    """
    line, shown = seat.line(), () if newcomer.metrics is None else newcomer.metrics.warm_up
    if line is None:
        return None
    sound = [(line.at(batch), seconds) for batch, seconds in shown if batch > 0 and 0 < seconds <= ABSURD_SECONDS]
    return min((seconds / own for own, seconds in sound if 0 < own < math.inf), default=None)
