"""The loop: observe, decide, act, store. Local runs and the operator share it; clock and backend are given to it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from heterotrain import contract
from heterotrain_operator.clusters.port import Cluster, PlanConflictError
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Job, Seen, WorkerMetrics
from heterotrain_operator.core.state import Memory
from heterotrain_operator.leaps import Leaps

logger = logging.getLogger(__name__)

News = TypeVar("News")

PERIOD_SECONDS = 1.0
"""Between rounds of a job that trains: reading metrics costs the workers CPU time."""

QUIET_PHASES = frozenset({contract.PHASE_TRAINING, contract.PHASE_PAUSED, contract.PHASE_HOLDING})
"""Phases of a worker that waits for nothing of ours."""

BUSY_PERIOD_SECONDS = 0.2
"""Between rounds while workers start or end: then every wait delays all of them."""

FIRST_STEPS = 10
"""Measured steps of a plan after which nothing about it is urgent any more: the default control interval."""

TELLING_STEPS = 3
"""Measured steps of a plan that show a gross imbalance, of hundreds of workers, too: two mostly do."""

READING_SECONDS = 0.005
"""Between rounds at least, for each worker that is read, so that reading takes a fraction of one CPU at most."""

HASTE = 16
"""A part of that is enough while a plan's first steps tell, which are few."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round that was completed: what was observed, what was decided and acted on, and the memory that was kept."""

    seen: Seen
    decision: Decision
    memory: Memory


class Loop(Generic[News]):
    """The rounds of one job on one backend, and what lasts from one round to the next: the leaps of the clock."""

    def __init__(
        self,
        cluster: Cluster[News],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never leap."""
        self._cluster, self._clock = cluster, clock
        self._leaps = Leaps(clock, monotonic)
        self._corrected: tuple[float | None, float] | None = None

    def round(self, job: Job, news: News, *, title: str = "") -> Round | None:
        """Observe, decide, act and store once; None if somebody else wrote the plan meanwhile, so that another round
        is due soon. `title` names the job in the log. Raises what the backend raises, except PlanConflictError.
        """
        title = title or job.name
        seen, memory = self._cluster.observe(news)
        memory, leapt = self._corrected_for_leaps(memory or Memory.initial(), title)
        decision, memory = decide(job, seen, memory, self._clock())
        self._corrected = (memory.start.created_at, leapt) if leapt else None
        try:
            self._cluster.act(decision, memory)
        except PlanConflictError as error:
            logger.warning("job %s: %s; observing again", title, error)
            return None
        if leapt:
            self._leaps.made_up(leapt)
            self._corrected = None
        return Round(seen, decision, memory)

    def _corrected_for_leaps(self, memory: Memory, title: str) -> tuple[Memory, float]:
        """The memory with its moments moved by what the clock has leapt, and by how many seconds that is.

        A round that failed may have stored its corrected memory all the same. The moment at which the job was first
        seen shows it, because that was moved with the others.
        """
        if self._corrected is not None and self._corrected[0] == memory.start.created_at:
            self._leaps.made_up(self._corrected[1])
            self._corrected = None
        leapt = self._leaps.seconds()
        if not leapt:
            return memory, leapt
        logger.warning("job %s: the clock has leapt by %.0f s", title, leapt)
        return memory.moved(leapt), leapt


def run_job(
    job: Job,
    cluster: Cluster[None],
    *,
    now: Callable[[], float],
    pause: Callable[[float], None],
    on_round: Callable[[Seen, Decision], None],
    until: Callable[[Seen, Decision], bool] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    wanted: Callable[[], Job] | None = None,
) -> Decision:
    """Run a job to its end, or until `until` is true, and return the last decision, which was acted on.

    `wanted` gives the job as it is wanted by now, where that may change. `now` gives Unix seconds, `monotonic` seconds
    that never leap; `pause` waits for at most so many seconds, less where the backend has news. `on_round` is called
    after every round.
    """
    loop = Loop(cluster, clock=now, monotonic=monotonic)
    while True:
        done = loop.round(job if wanted is None else wanted(), None)
        if done is None:
            pause(BUSY_PERIOD_SECONDS)
            continue
        seen, decision = done.seen, done.decision
        on_round(seen, decision)
        if decision.phase in FINAL_PHASES or (until is not None and until(seen, decision)):
            return decision
        pause(period_seconds(seen, decision))


def period_seconds(seen: Seen, decision: Decision) -> float:
    """How long to wait before the next round."""
    training = bool(seen.workers) and all(
        worker.exit_code is None and worker.metrics is not None and worker.metrics.phase in QUIET_PHASES
        for worker in seen.workers
    )
    if training and decision.phase == "Running" and not (decision.create or decision.delete):
        return min(max(BUSY_PERIOD_SECONDS, first_steps_seconds(seen)), PERIOD_SECONDS)
    return _busy_seconds(seen)


def _busy_seconds(seen: Seen) -> float:
    """Between rounds while workers start or end. Where others train meanwhile, no oftener than reading these allows."""
    reading = [worker.metrics for worker in seen.workers if worker.metrics is not None]
    training = sum(
        each.protocol >= contract.MEMBERS_MAY_END and each.phase == contract.PHASE_TRAINING for each in reading
    )
    return min(max(BUSY_PERIOD_SECONDS, READING_SECONDS * training), PERIOD_SECONDS)


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
