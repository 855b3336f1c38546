"""The loop: observe, decide, act, again; the same in every world, with clock and waiting given to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from heterotrain import contract
from heterotrain_operator.clusters.port import Cluster, PlanConflictError
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Job, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.leaps import Leaps

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
"""Between rounds of a job that trains: reading metrics costs the workers CPU time."""

QUIET_PHASES = frozenset({contract.PHASE_TRAINING, contract.PHASE_PAUSED})
"""Phases of a worker that waits for nothing of ours."""

BUSY_PERIOD_SECONDS = 0.2
"""Between rounds while workers start or end: then every wait delays all of them."""


def steer(
    job: Job,
    cluster: Cluster,
    *,
    now: Callable[[], float],
    pause: Callable[[float], None],
    on_round: Callable[[Seen, Decision], None],
    until: Callable[[Seen, Decision], bool] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Decision:
    """Steer a job to its end, or until `until` is true, and return the last decision, which was acted on.

    `now` gives Unix seconds, `monotonic` seconds that never leap; `pause` waits for at most so many seconds, less where
    the world has news. `on_round` is called after every round.
    """
    leaps = Leaps(now, monotonic)
    while True:
        seen, memory = cluster.observe()
        leapt = leaps.seconds()
        decision, memory = decide(job, seen, (memory or Memory.initial()).moved(leapt), now())
        try:
            cluster.act(decision, memory)
        except PlanConflictError as error:
            logger.warning("job %s: %s; observing again", job.name, error)
            pause(BUSY_PERIOD_SECONDS)
            continue
        if leapt:
            leaps.settle()
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
    quiet = training and decision.phase == "Running" and not (decision.create or decision.delete)
    return PERIOD_SECONDS if quiet else BUSY_PERIOD_SECONDS
