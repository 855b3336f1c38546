"""How often a worker becomes slow again after it had recovered, and how slow, as beside neighbours that come and go.

A batch follows a change of speed some steps late. Where many workers change, one of them always takes too long for its
batch, and to follow them all costs more than to leave each the samples that it manages when it is slow
(`batching/relapses.py`).
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from heterotrain_operator.core.columns import Column, cut
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictor import Predictor
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, LEAST_SECONDS, Estimate

TURN = 1.4
"""By what factor a step must become longer at a jump. Tried: 1.2 to 1.4; with less, noise that lasts counts, too."""

LASTS = 0.8
"""Part of the slow time that the next window must take at least, or it was a stall: with stalls counted, heavy-tailed
noise of 512 workers made 14 plans in 100 intervals instead of 10."""

REMEMBERED_INTERVALS = 50
"""Control intervals over which turns are counted, those long past by less. Tried: 30, which forgot workers that were
slow every 30 intervals before they were slow again."""

FIRST_INTERVALS = 10
"""Without turns, as which a job begins: the first one says little of how often they come."""

TURN_UNITS = 1000
"""Of remembered turns."""


class Relapses(NamedTuple):
    """What is remembered of a worker's turns to a slow speed; zeros mean "none yet".

    A step took `slow_seconds` at `slow_batch` samples when it last turned slow. Its `turns` (thousandths) are those of
    the last intervals, each shared among the workers that turned slow with it, since what slows many at once comes
    once. The last was at one less than the committed step `at_step`. So many turned slow `together` in the newest
    window, which may still be a stall; 0: none, or the next window has shown that it lasts.
    """

    slow_seconds: Annotated[float, Column(57)] = 0.0
    slow_batch: Annotated[int, Column(58)] = 0
    turns: Annotated[int, Column(59)] = 0
    at_step: Annotated[int, Column(60)] = 0
    together: Annotated[int, Column(61)] = 0

    def rounded(self) -> Relapses:
        """With its numbers cut to the digits that are kept."""
        return self._replace(slow_seconds=cut(self.slow_seconds)) if self.slow_seconds else self

    def turned(self, seconds: float, batch: int, together: int) -> Relapses:
        """After a jump since which steps take so long at this batch: so many workers turned slow `together`."""
        return self._replace(slow_seconds=seconds, slow_batch=batch, together=together)

    def confirmed(self, *, lasts: bool, step: int, interval: int) -> Relapses:
        """After the window that follows a turn, which ends at this committed step, and shows whether it `lasts`.
        `interval` is the control interval in steps.
        """
        if not lasts:
            return self._replace(together=0)
        turns = self.recent(step, interval) + 1 / self.together
        return Relapses(self.slow_seconds, self.slow_batch, round(TURN_UNITS * turns), step + 1)

    def slow_at(self, predictor: Predictor, cost: BatchCost, batch: int, like: Estimate) -> float:
        """Seconds that a step takes at a batch when the worker is slow; 0: not known. They rest on as many steps, and
        vary as much, as an estimate that they are `like`.
        """
        if self.slow_batch <= 0 or batch <= 0 or not LEAST_SECONDS <= self.slow_seconds <= ABSURD_SECONDS:
            return 0.0
        slow = like._replace(mean_seconds=self.slow_seconds)
        expected = predictor.expect(cost, self.slow_batch, slow, batch)
        return 0.0 if expected is None else min(expected.mean_seconds, ABSURD_SECONDS)

    def recent(self, step: int, interval: int) -> float:
        """Turns of the last intervals before this committed step."""
        if not self.turns:
            return 0.0
        passed = max(step + 1 - self.at_step, 0)
        return self.turns / TURN_UNITS * math.exp(-passed / (REMEMBERED_INTERVALS * max(interval, 1)))

    def rate(self, step: int, interval: int) -> float:
        """Turns per control interval, of which a job at this committed step has had few at first."""
        intervals = step / max(interval, 1) + FIRST_INTERVALS
        counted = REMEMBERED_INTERVALS * -math.expm1(-intervals / REMEMBERED_INTERVALS)
        return self.recent(step, interval) / counted
