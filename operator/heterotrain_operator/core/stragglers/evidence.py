"""What is remembered of a worker to tell whether it is slow by fault: how fast it was when healthy, and what speaks
against it since.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from heterotrain_operator.core.columns import Column, cut, maker

HEALTHY_DIGITS = 5
"""Kept of the healthy time: far below any noise, and a row has little room."""


class Evidence(NamedTuple):
    """What is remembered of one worker; zeros mean "nothing yet".

    Healthy, its step took `healthy_seconds` at `healthy_batch` samples, by so many windows of steps. Of its windows'
    logarithms of the time over the expected one, in thousandths: `spread` is their standard deviation while it was
    healthy, `level` their moving average (not below 0), and `evidence` the sum that is above what a healthy worker
    explains; while it is `named` a straggler, the sum of what speaks for its recovery. `since_step` is one more than
    the committed step at which the sum began. After so many intervals in a row what the job wants to be done about
    stragglers was worth it (`advised`). Its CPU limit was found not to bind at `unbound_limit` cores.
    """

    healthy_seconds: Annotated[float, Column(39)] = 0.0
    healthy_batch: Annotated[int, Column(40)] = 0
    healthy_windows: Annotated[int, Column(41)] = 0
    spread: Annotated[int, Column(42)] = 0
    level: Annotated[int, Column(43)] = 0
    evidence: Annotated[int, Column(44)] = 0
    since_step: Annotated[int, Column(45)] = 0
    named: Annotated[int, Column(46)] = 0
    advised: Annotated[int, Column(55)] = 0
    unbound_limit: Annotated[float, Column(52)] = 0.0

    def restarted(self) -> Evidence:
        """Of a worker that starts again at the same place: what is healthy stays known, and nothing speaks against
        it."""
        known = Evidence(self.healthy_seconds, self.healthy_batch, self.healthy_windows, self.spread)
        return known._replace(unbound_limit=self.unbound_limit)

    def rounded(self, before: Evidence | None = None) -> Evidence:
        """With its numbers cut to the digits that are kept; those of the rounded evidence `before` are left alone."""
        seconds, limit = self.healthy_seconds, self.unbound_limit
        if before is not None and limit == before.unbound_limit:
            if seconds == before.healthy_seconds:
                return self
            return made((cut(seconds, HEALTHY_DIGITS), *self[1:]))
        return made((cut(seconds, HEALTHY_DIGITS), *self[1:-1], cut(limit, HEALTHY_DIGITS)))


made = maker(Evidence)
