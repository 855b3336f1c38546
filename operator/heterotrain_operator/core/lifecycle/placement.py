"""Whether workers can be members yet, and have places: all or nothing.

Two jobs that each hold half of what both need would otherwise wait for each other until both fail. So a job of which
only a part finds places lets them go again, and tries later. Patience and pauses differ from job to job and from try to
try, so that one of them gets what the other lets go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from heterotrain.contract import PHASE_WARMING
from heterotrain_operator.core.facts import Facts, listed
from heterotrain_operator.core.model import Decision, Event, Job, JobPhase, WorkerSeen, WorkerState
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, Health, decision
from heterotrain_operator.core.remembered.job import Outcome, Placing
from heterotrain_operator.core.state import Remembered


def unready(workers: Sequence[WorkerSeen], states: Mapping[str, WorkerState]) -> list[str]:
    """Workers that cannot be members yet, each with the reason."""
    return [f"{each.name} ({why_unready(each)})" for each in workers if states[each.name] is not WorkerState.WARM]


def why_unready(worker: WorkerSeen) -> str:
    """Why a worker cannot be a member yet."""
    if worker.deleting_since is not None:
        return "being deleted"
    if worker.phase != "Running":
        return ": ".join(filter(None, [worker.phase, worker.message.strip()]))
    if worker.exit_code is not None:
        return "ended"
    if worker.metrics is None:
        return "Running, but its metrics do not answer"
    if not worker.address:
        return "Running, but without an address"
    if worker.metrics.phase == PHASE_WARMING:
        return "Running, and warming up"
    return "Running, but its script is not at its loop yet"


def blind(facts: Facts) -> str:
    """What is wrong with the source of the metrics, which may be to blame, and not the workers."""
    source = facts.metrics_problem or facts.metrics_note
    return f"; {source}" if source else ""


PATIENCE_SHARE = 0.25
"""Of the startup deadline: so long at least, and at most twice as long, a part holds its places and waits for the
rest."""

LEAST_PATIENCE_SECONDS = 60.0
"""The same where the deadline is short: schedulers and their quotas take their time."""

PAUSE_SECONDS = 10.0
GREATEST_PAUSE_SECONDS = 60.0
"""Before the next try, doubling, and up to twice as long by chance: time for another job to be placed."""

LET_GO = "GangReleased"

INSUFFICIENT_CAPACITY = "InsufficientCapacity"
"""Why a job that has trained is Degraded, when its workers have found no place for as long as they may take to start.
"""


def held(workers: Sequence[WorkerSeen], *, refused: bool) -> int:
    """How many of the workers hold what others may wait for. Where pods are `refused`, a pod without a place does
    too."""
    return sum(worker.deleting_since is None and (refused or placed(worker)) for worker in workers)


def placed(worker: WorkerSeen) -> bool:
    """Whether a worker has found its node."""
    return bool(worker.node) or worker.phase != "Pending"


def patience_seconds(job: Job, placements: int) -> float:
    """How long a part holds its places after so many tries that were given up."""
    least = max(LEAST_PATIENCE_SECONDS, PATIENCE_SHARE * job.startup_deadline_seconds)
    return least * (1 + fraction(job.seed, 2 * placements))


def let_go(
    job: Job, facts: Facts, memory: Remembered, now: float, *, phase: JobPhase, health: Health, unready: Sequence[str]
) -> tuple[Decision, Remembered] | None:
    """Delete all workers, to be created again after a pause; None while the patience lasts."""
    tries, since = memory.placing.placements, memory.placing.half_placed_at
    if since is None or now - since < patience_seconds(job, tries):
        return None
    pause = min(PAUSE_SECONDS * 2.0 ** min(tries, 10), GREATEST_PAUSE_SECONDS)
    pause *= 1 + fraction(job.seed, 2 * tries + 1)
    message = f"after {now - since:.0f} s only {memory.placing.most_placed} workers had places: {listed(list(unready))}"
    message = message[:LONGEST_MESSAGE]
    reason = f"{message}; all let theirs go, and try again in {pause:.0f} s"
    lacking = memory.outcome.reason == INSUFFICIENT_CAPACITY
    memory = replace(
        memory,
        placing=Placing(tries + 1),
        budget=replace(memory.budget, restart_at=now + pause),
        start=replace(memory.start, pods_created_at=None),
        outcome=memory.outcome if lacking else Outcome(reason=LET_GO, message=message),
    )
    event = Event("Warning", LET_GO, reason)
    return decision(job, phase, LET_GO, reason, health=health, delete=facts.names, events=(event,)), memory


def fraction(seed: str, number: int) -> float:
    """The n-th number of a seed, evenly spread over [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{number}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:6]) / 2**48
