"""The loop: observe, decide, act, store. Local runs and the operator share it; clock and backend are given to it.

What is remembered are moments of the wall clock, which other processes can go on from; but how long nothing has
happened is what a clock says that never leaps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from heterotrain_operator.clusters.port import Cluster, PlanConflictError
from heterotrain_operator.core.batching.looking_ahead import inherited
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Job, Seen
from heterotrain_operator.core.pacing import POLLED, seconds_to_next_round
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.learned import Learned
from heterotrain_operator.core.state import Remembered

LEAST_SECONDS = 5.0
"""A smaller step is none: time servers turn clocks by little and little, and no patience here is shorter."""


class Leaps:
    """By how much the wall clock has leapt that is not made up for yet."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never leap."""
        self._clock, self._monotonic = clock, monotonic
        self._leapt, self._last = 0.0, clock() - monotonic()

    def seconds(self) -> float:
        """To be added to moments that are remembered; below zero if the clock was set back."""
        offset = self._clock() - self._monotonic()
        if abs(offset - self._last) >= LEAST_SECONDS:
            self._leapt += offset - self._last
        self._last = offset
        return self._leapt

    def made_up(self, seconds: float) -> None:
        """So much of it is made up for."""
        self._leapt -= seconds


logger = logging.getLogger(__name__)

News = TypeVar("News")


@dataclass(frozen=True, slots=True)
class Round:
    """One round that was completed: what was observed, what was decided and acted on, and the memory that was kept."""

    seen: Seen
    decision: Decision
    memory: Remembered


class Loop(Generic[News]):
    """The rounds of one job on one backend, and what lasts from one round to the next: the leaps of the clock."""

    def __init__(
        self,
        cluster: Cluster[News],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        learned: Callable[[], Iterable[Learned]] = tuple,
    ) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never leap, and `learned` what predictors know of a
        former job of this name, which a new one begins with.
        """
        self._cluster, self._clock, self._learned = cluster, clock, learned
        self._leaps = Leaps(clock, monotonic)
        self._corrected: tuple[float | None, float] | None = None

    def round(self, job: Job, news: News, *, title: str = "") -> Round | None:
        """Observe, decide, act and store once; None if somebody else wrote the plan meanwhile, so that another round
        is due soon. `title` names the job in the log. Raises what the backend raises, except PlanConflictError.
        """
        title = title or job.name
        seen, memory = self._cluster.observe(news)
        if memory is None:
            memory = replace(Remembered.initial(), learned=inherited(predictor_of(job), self._learned()))
        memory, leapt = self._corrected_for_leaps(memory, title)
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

    def _corrected_for_leaps(self, memory: Remembered, title: str) -> tuple[Remembered, float]:
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
    learned: Callable[[], Iterable[Learned]] = tuple,
    on_memory: Callable[[Remembered], None] | None = None,
) -> Decision:
    """Run a job to its end, or until `until` is true, and return the last decision, which was acted on.

    `wanted` gives the job as it is wanted by now, where that may change. `now` gives Unix seconds, `monotonic` seconds
    that never leap; `pause` waits for at most so many seconds, less where the backend has news. `on_round` is called
    after every round, and `on_memory` before it with what is remembered. `learned` is as for `Loop`.
    """
    loop = Loop(cluster, clock=now, monotonic=monotonic, learned=learned)
    while True:
        done = loop.round(job if wanted is None else wanted(), None)
        if done is None:
            pause(POLLED.busy_seconds)
            continue
        seen, decision = done.seen, done.decision
        if on_memory is not None:
            on_memory(done.memory)
        on_round(seen, decision)
        if decision.phase in FINAL_PHASES or (until is not None and until(seen, decision)):
            return decision
        pause(seconds_to_next_round(POLLED, seen, decision))
