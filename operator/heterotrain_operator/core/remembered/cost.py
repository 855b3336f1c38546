"""What a job has cost so far: the time of each pod from its creation to its end, at the price of its group.

Only sums by group are kept, and up to when they count. So a pod costs what it costs whatever becomes of it (it warms
up, it starts again, it is replaced), and an operator that starts again counts on from where the sums end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import is_number, is_text
from heterotrain_operator.core.facts import ended
from heterotrain_operator.core.fields import MEASURED, MOST_GROUPS, Rows
from heterotrain_operator.core.model import Group, WorkerSeen

SECONDS_PER_HOUR = 3600.0

GREATEST = 1e15
"""A cost that is read is no greater, so that it can still grow."""


def _spent_from(row: list[Any]) -> tuple[str, float] | None:
    sound = len(row) >= 2 and is_text(row[0], MAX_NAME_LENGTH) and is_number(row[1]) and 0 <= row[1] <= GREATEST
    return (row[0], float(row[1])) if sound else None


SPENT = Rows(list, _spent_from, MOST_GROUPS, measured=True)


@dataclass(frozen=True, slots=True)
class Cost:
    """`spent` is by group, of those that have a price, in the currency of the prices, and counts until
    `cost_counted_at`. So many pods (`paid_pods`) were paid for then: another number of them is stored at once, so that
    what is stored is of the same pods.
    """

    cost_counted_at: Annotated[float | None, MEASURED] = None
    paid_pods: int = 0
    spent: Annotated[tuple[tuple[str, float], ...], SPENT] = ()

    def counted(self, groups: Iterable[Group], workers: Sequence[WorkerSeen], now: float) -> Cost:
        """With what these workers have cost until now, at the prices of now. A group that has no price has no cost."""
        prices = {group.name: group.price_per_hour for group in groups if group.price_per_hour is not None}
        if not prices and not self.spent:
            return self
        before = dict(self.spent)
        spent = {name: before.get(name, 0.0) for name in prices}
        paid = [worker for worker in workers if worker.group in prices]
        for worker in paid:
            spent[worker.group] += self._seconds(worker, now) * prices[worker.group] / SECONDS_PER_HOUR
        living = sum(not ended(worker) for worker in paid)
        return replace(self, cost_counted_at=now, paid_pods=living, spent=tuple(spent.items()))

    def _seconds(self, worker: WorkerSeen, now: float) -> float:
        """For how long a worker has lived since the sums end."""
        since = now if self.cost_counted_at is None else self.cost_counted_at
        created = worker.created_at
        if created is not None and created <= now:  # else the clock was set back since
            since = created if self.cost_counted_at is None else max(created, since)
        until = now
        if ended(worker):
            until = since if worker.ended_at is None else min(worker.ended_at, now)
        return max(until - since, 0.0)

    def total(self, groups: Iterable[str]) -> float | None:
        """What these groups have cost together, by name; None if one of them has no price."""
        by_group = dict(self.spent)
        costs = [by_group.get(name) for name in groups]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None
