"""Restarting all workers from the checkpoint: later each time, and not for ever.

All of them, because the trainers re-join only at their start; one plan, one generation, one set of processes.
"""

from __future__ import annotations

from dataclasses import replace

from heterotrain_operator.core.facts import Facts, listed
from heterotrain_operator.core.memory.job import Outcome
from heterotrain_operator.core.model import Decision, Event, Job
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, decision, ending
from heterotrain_operator.core.state import Memory

GREATEST_DELAY_SECONDS = 60.0
"""Longest wait before workers are created again."""

STEADY_SECONDS = 600.0
"""After so long a generation has outlived what interrupted the ones before it, and the next interruption is a new one.
Source: the kubelet's, for containers that crash.
"""


def delay_seconds(restarts: int) -> float:
    """Wait before the workers of the n-th restart are created, whatever its cause: 0, 1, 2, 4 ... 60 s."""
    if restarts <= 1:
        return 0.0
    return min(2.0 ** min(restarts - 2, 10), GREATEST_DELAY_SECONDS)


def restart_all(
    job: Job, facts: Facts, memory: Memory, now: float, *, code: str, message: str, counts: bool
) -> tuple[Decision, Memory]:
    """Delete all workers, which are created again after a delay; beyond `backoff_limit` the job fails instead."""
    message = message[:LONGEST_MESSAGE]
    cause = Event("Warning" if counts else "Normal", code, message)
    if counts and memory.budget.restarts >= job.backoff_limit:
        plural = "" if job.backoff_limit == 1 else "s"
        why = f"{message} (after {memory.budget.restarts} of {job.backoff_limit} restart{plural})"
        final, memory = ending(job, facts, memory, now, outcome="Failed", code="BackoffLimitExceeded", message=why)
        return replace(final, events=(cause, *final.events)), memory
    restarts = memory.budget.restarts + counts
    interruptions = (0 if _was_steady(memory, now) else memory.budget.interruptions) + (not counts)
    delay = delay_seconds(restarts + interruptions)
    number = f"restart {restarts} of {job.backoff_limit}" if counts else "not counted as a restart"
    reason = f"{message}; all workers start again in {delay:g} s ({number})"
    memory = replace(
        memory,
        budget=replace(
            memory.budget,
            restarts=restarts,
            interruptions=interruptions,
            unexplained_at=None,
            generation_at=None,
            draining=True,
            restart_at=now + delay,
        ),
        start=replace(memory.start, starting_at=now + delay, pods_created_at=None),
        outcome=Outcome(reason=code, message=message),
    )
    restarting = Event("Normal", "RestartingWorkers", reason)
    return decision(job, "Restarting", code, reason, delete=facts.names, events=(cause, restarting)), memory


def still_draining(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory] | None:
    """Go on deleting, or wait for the moment to create workers again; None once that has come."""
    # A job that was suspended meanwhile begins to wait when it is resumed.
    moments = (memory.start.starting_at, memory.start.started_at)
    starting_at = max((since for since in moments if since is not None), default=now)
    if facts.names:
        if now - starting_at > job.startup_deadline_seconds:
            why = (
                f"{listed(facts.names)} did not go away within {job.startup_deadline_seconds:g} s of being "
                f"deleted ({memory.outcome.message})"
            )
            return ending(job, facts, memory, now, outcome="Failed", code="StartupDeadlineExceeded", message=why)
        reason = f"{memory.outcome.message}; waiting for {listed(facts.names)} to go away"
        return decision(job, "Restarting", memory.outcome.reason, reason, delete=facts.names), memory
    restart_at = memory.budget.restart_at
    if restart_at is not None and now < restart_at:
        reason = f"{memory.outcome.message}; workers start again in {restart_at - now:.1f} s"
        return decision(job, "Restarting", memory.outcome.reason, reason), memory
    return None


def _was_steady(memory: Memory, now: float) -> bool:
    """Whether the generation that ends has trained for so long that what ended the one before no longer matters."""
    return memory.budget.generation_at is not None and now - memory.budget.generation_at >= STEADY_SECONDS
