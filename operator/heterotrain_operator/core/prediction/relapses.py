"""How often a worker becomes slow again after it had recovered, and how slow, as beside neighbours that come and go.

A batch follows a change of speed some steps late. Where many workers change, one of them always takes too long for its
batch, and to follow them all costs more than to leave each the samples that it manages when it is slow
(`batching/likeness.py`).
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.columns import COARSE_DIGITS, Column, cut
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictor import Predictor
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, LEAST_SECONDS, Estimate

TURN = 1.4
"""By what factor a step must become longer at a jump. Tried: 1.2 to 1.4; with less, noise that lasts counts, too."""

LASTS = 0.8
"""Part of the slow time that the next window must take at least, or it was a stall: with stalls counted, heavy-tailed
noise of 512 workers made 14 plans in 100 intervals instead of 10. A turn to less than this part of the slow time that
is known is none: steps that only seemed short were seen to be longer."""

REMEMBERED_INTERVALS = 50
"""Control intervals over which turns are counted, those long past by less. Tried: 30, which forgot workers that were
slow every 30 intervals before they were slow again."""

FIRST_INTERVALS = 10
"""Without turns, as which a job begins: the first one says little of how often they come."""

TURN_UNITS = 1000
"""Of remembered turns."""

MOST_TURNS = 1000.0
"""That are remembered of a worker, far beyond one in each interval."""

LEAST_TURNS = 0.005
"""Turns of the last intervals below which a worker counts as one that never turned slow."""


class Relapses(NamedTuple):
    """What is remembered of a worker's turns to a slow speed; zeros mean "none yet".

    A step took `slow_seconds` at `slow_batch` samples when it last turned slow. Its `turns` (thousandths) are those of
    the last intervals, each shared among the workers that turned slow with it, since what slows many at once comes
    once. The last was at one less than the committed step `at_step`. So many turned slow `together` in the newest
    window, which may still be a stall; 0: none, or the next window has shown what it was.
    """

    slow_seconds: Annotated[float, Column(57)] = 0.0
    slow_batch: Annotated[int, Column(58)] = 0
    turns: Annotated[int, Column(59)] = 0
    at_step: Annotated[int, Column(60)] = 0
    together: Annotated[int, Column(61)] = 0

    def rounded(self) -> Relapses:
        """With its numbers cut to the digits that are kept."""
        return self._replace(slow_seconds=cut(self.slow_seconds, COARSE_DIGITS)) if self.slow_seconds else self

    def lasted(self, slow: Estimate, batch: int, known_seconds: float, *, step: int, interval: int) -> Relapses:
        """After the window that follows a turn, and has shown that it lasts: steps take so long now at this batch, for
        which the worker was known to take `known_seconds` when slow (0: not known). The window ends at this committed
        step; `interval` is the control interval in steps.
        """
        recent = self.recent(step, interval)
        if recent >= LEAST_TURNS and slow.mean_seconds < LASTS * known_seconds:
            return self._replace(together=0)
        turns = round(TURN_UNITS * min(recent + 1 / self.together, MOST_TURNS))
        return Relapses(slow.mean_seconds, batch, turns, min(step + 1, MAX_WHOLE))

    def slow_at(self, predictor: Predictor, cost: BatchCost, batch: int, now: Estimate) -> float:
        """Seconds that a step takes at a batch when the worker is slow, where it takes so long `now`; 0: not known."""
        if self.slow_batch <= 0 or batch <= 0 or not LEAST_SECONDS <= self.slow_seconds <= ABSURD_SECONDS:
            return 0.0
        # By the line of its present speed: a slow step would be taken for what another batch costs.
        at_slow_batch = predictor.expect(cost, batch, now, self.slow_batch)
        if at_slow_batch is None or at_slow_batch.mean_seconds <= 0:
            return 0.0
        return min(now.mean_seconds * self.slow_seconds / at_slow_batch.mean_seconds, ABSURD_SECONDS)

    def recent(self, step: int, interval: int) -> float:
        """Turns of the last intervals before this committed step."""
        if not self.turns:
            return 0.0
        passed = max(step + 1 - self.at_step, 0)
        return self.turns / TURN_UNITS * math.exp(-passed / (REMEMBERED_INTERVALS * max(interval, 1)))


def intervals_counted(step: int, interval: int) -> float:
    """The control intervals that the turns of the last intervals are of: a job at this committed step has had few at
    first.
    """
    intervals = max(step, 0) / max(interval, 1) + FIRST_INTERVALS
    return REMEMBERED_INTERVALS * -math.expm1(-intervals / REMEMBERED_INTERVALS)
