"""When a job is looked at again: often while something is waited for, seldom otherwise, on every backend.

Backends differ in what wakes their loop. A cluster announces what happens to pods and plans, so that only metrics have
to be looked for; local and simulated runs have to look for everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain import contract
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Seen, WorkerMetrics

QUIET_PHASES = frozenset({contract.PHASE_TRAINING, contract.PHASE_PAUSED, contract.PHASE_HOLDING})
"""Phases of a worker that waits for nothing of ours."""

FIRST_STEPS = 10
"""Measured steps of a plan after which nothing about it is urgent any more: the default control interval."""

TELLING_STEPS = 3
"""Measured steps of a plan that show a gross imbalance, of hundreds of workers, too: two mostly do."""

READING_SECONDS = 0.005
"""Between rounds at least, for each worker that is read, so that reading takes a fraction of one CPU at most."""

HASTE = 16
"""A part of that is enough while a plan's first steps tell, which are few."""

FOLLOWING_SECONDS = 30.0
"""So long after a plan was written some worker may be expected to follow it at any moment, and so long after all did
its first steps may be looked for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between the rounds of one kind of backend: while something is waited for, of a job that trains, and of
    one at rest (suspended or over) whose changes wake the loop.
    """

    busy_seconds: float
    quiet_seconds: float
    still_seconds: float = 30.0


POLLED = Pace(busy_seconds=0.2, quiet_seconds=1.0)
"""Of local and simulated runs. While workers start or end, every wait delays all of them; reading metrics of workers
that train costs these CPU time."""

ANNOUNCED = Pace(busy_seconds=0.5, quiet_seconds=2.0)
"""Of a cluster."""


@dataclass(frozen=True, slots=True)
class Following:
    """How the newest plan that this process wrote is followed, in seconds that never leap: when the version was
    written that is not followed by all yet, and when all followed one last.
    """

    version: int = 0
    written_at: float | None = None
    followed_at: float | None = None

    def after(self, seen: Seen, decision: Decision, now: float) -> Following:
        """The same after another round."""
        if decision.plan is not None:
            return Following(decision.plan.version, now, self.followed_at)
        if self.written_at is not None and _all_follow(seen, self.version):
            return Following(followed_at=now)
        return self

    def is_awaited(self, now: float) -> bool:
        """Whether some worker may be expected to follow the plan at any moment."""
        return self.written_at is not None and now - self.written_at < FOLLOWING_SECONDS

    def is_fresh(self, now: float) -> bool:
        """Whether all have begun to follow a plan so lately that its first steps may show something."""
        return self.followed_at is not None and now - self.followed_at < FOLLOWING_SECONDS


def _all_follow(seen: Seen, version: int) -> bool:
    return bool(seen.workers) and all(
        worker.metrics is not None and worker.metrics.plan_version >= version for worker in seen.workers
    )


def seconds_to_next_round(
    pace: Pace,
    seen: Seen,
    decision: Decision,
    *,
    following: Following | None = None,
    now: float = 0.0,
    removal_seconds: float | None = None,
) -> float:
    """How long to wait before the next round, unless something wakes the loop before.

    `following` is given by a backend that announces what happens to its workers, with the moment `now` of the same
    clock; None: everything has to be looked for. `removal_seconds` is after how long a job that is over is to be
    removed, None if it stays.
    """
    if following is None:
        if _nothing_starts_or_ends(seen, decision):
            return _clamped(pace, first_steps_seconds(seen))
        return _clamped(pace, _reading_seconds(seen))
    if decision.phase in (*FINAL_PHASES, "Suspended") and not (decision.delete or decision.force_delete):
        return min(max(math.inf if removal_seconds is None else removal_seconds, pace.busy_seconds), pace.still_seconds)
    if following.is_awaited(now) or _starts_or_restarts(seen, decision):
        return pace.busy_seconds
    return _clamped(pace, first_steps_seconds(seen) if following.is_fresh(now) else math.inf)


def _clamped(pace: Pace, seconds: float) -> float:
    return min(max(pace.busy_seconds, seconds), pace.quiet_seconds)


def _nothing_starts_or_ends(seen: Seen, decision: Decision) -> bool:
    trained = bool(seen.workers) and all(
        worker.exit_code is None and worker.metrics is not None and worker.metrics.phase in QUIET_PHASES
        for worker in seen.workers
    )
    return trained and decision.phase == "Running" and not (decision.create or decision.delete)


def _starts_or_restarts(seen: Seen, decision: Decision) -> bool:
    """Whether the job does not run yet, or again, though workers do: they have to say when they are ready."""
    return decision.phase != "Running" and any(
        worker.phase == "Running" and worker.deleting_since is None for worker in seen.workers
    )


def _reading_seconds(seen: Seen) -> float:
    """Where others train while workers start or end, these are looked for no oftener than reading the others allows."""
    reading = [worker.metrics for worker in seen.workers if worker.metrics is not None]
    return READING_SECONDS * sum(each.protocol > 1 and each.phase == contract.PHASE_TRAINING for each in reading)


def first_steps_seconds(seen: Seen) -> float:
    """Until a job that trains is to be looked at again for what the first steps of its plan may show; without end once
    they are over. About as long as a step takes, for two or three may show that its batches are far off, and after
    these as long as reading many workers takes, if that is longer.
    """
    counters = [worker.metrics for worker in seen.workers if worker.metrics is not None]
    first = [each for each in counters if each.batch_size > 0 and each.steps < FIRST_STEPS]
    if not first:
        return math.inf
    step = max(each.own_seconds / each.steps if each.steps > 0 else 0.0 for each in first)
    reading = READING_SECONDS * len(counters)
    if reading > step and len(first) == sum(each.batch_size > 0 for each in counters):
        return min(reading, max(reading / HASTE, _half_a_telling_step(first)))
    return max(step, reading)


def _half_a_telling_step(first: Sequence[WorkerMetrics]) -> float:
    """Seconds of half a whole step, so that the end of one is seen before the next one ends; without end where somebody
    does not train, or all have taken as many steps as tell.
    """
    fewest = min(each.steps for each in first)
    if not 0 < fewest < TELLING_STEPS or any(each.phase != contract.PHASE_TRAINING for each in first):
        return math.inf
    return max((each.own_seconds + each.wait_seconds) / each.steps for each in first) / 2
