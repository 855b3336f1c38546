"""Decisions in full: the phase, its seven conditions and its events, built in one place so that they always
agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.facts import Facts, ended
from heterotrain_operator.core.model import Condition, Decision, Event, Job, JobPhase, WorkerKey
from heterotrain_operator.core.remembered.job import Outcome
from heterotrain_operator.core.state import Remembered

LONGEST_MESSAGE = 600
"""Characters of a final message that are remembered."""


@dataclass(frozen=True, slots=True)
class Health:
    """What the conditions Balanced and Degraded say: `balanced` and `imbalance` (the slowest own time above the mean,
    as a part of it) None if not measured; `degraded` empty if well.
    """

    balanced: bool | None = None
    balance: str = "not measured yet"
    imbalance: float | None = None
    degraded: str = ""
    degraded_code: str = "WorkersImpaired"


def decision(
    job: Job,
    phase: JobPhase,
    code: str,
    reason: str,
    *,
    health: Health | None = None,
    plan: Plan | None = None,
    create: tuple[WorkerKey, ...] = (),
    delete: tuple[str, ...] = (),
    events: tuple[Event, ...] = (),
) -> Decision:
    """A decision with its conditions; `code` is the CamelCase reason of the phase's own condition."""
    health = health or Health()
    phases: tuple[Literal["Running", "Suspended", "Succeeded", "Failed"], ...] = (
        "Running",
        "Suspended",
        "Succeeded",
        "Failed",
    )
    conditions = (
        Condition("Created", True, "JobCreated", f"job {job.name} is known"),
        *(
            Condition(name, True, code, reason)
            if name == phase
            else Condition(name, False, f"Not{name}", f"the job is {phase}")
            for name in phases
        ),
        Condition(
            "Balanced",
            health.balanced,
            {None: "NotMeasured", True: "WithinTolerance", False: "Unbalanced"}[health.balanced],
            health.balance,
        ),
        Condition(
            "Degraded",
            bool(health.degraded),
            health.degraded_code if health.degraded else "Healthy",
            health.degraded or "nothing is wrong",
        ),
    )
    return Decision(phase, reason, plan, create, delete, conditions, events, imbalance=health.imbalance)


def with_remark(decided: Decision, remark: str, *, degraded: str, code: str) -> Decision:
    """A decision that says this besides, in its reason and its phase's condition; and, unless that is empty, why the
    job is Degraded besides, with the condition's reason where nothing else is wrong.
    """
    if not remark:
        return decided
    reason = f"{decided.reason}; {remark}"

    def remarked(each: Condition) -> Condition:
        if each.type == decided.phase:
            return replace(each, message=reason)
        if each.type != "Degraded" or not degraded:
            return each
        if each.status:
            return replace(each, message=f"{each.message}; {degraded}")
        return replace(each, status=True, reason=code, message=degraded)

    return replace(decided, reason=reason, conditions=tuple(map(remarked, decided.conditions)))


def ending(
    job: Job,
    facts: Facts,
    memory: Remembered,
    now: float,
    *,
    outcome: Literal["Succeeded", "Failed"],
    code: str,
    message: str,
) -> tuple[Decision, Remembered]:
    """The job is over, for good."""
    message = message[:LONGEST_MESSAGE]
    memory = replace(
        memory,
        outcome=Outcome(outcome, now, code, message),
        budget=replace(memory.budget, draining=False),
    )
    kind: Literal["Normal", "Warning"] = "Normal" if outcome == "Succeeded" else "Warning"
    final, memory = over(job, facts, memory, now)
    return replace(final, events=(Event(kind, code, message),)), memory


def over(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """The job ended before: pods remain as its clean-up policy says, and it itself until its time is over."""
    known = memory.outcome
    phase: JobPhase = "Succeeded" if known.outcome == "Succeeded" else "Failed"
    leftovers = {
        "All": facts.names,
        "Running": (
            *(worker.name for worker in facts.everybody if worker.lingering or not ended(worker)),
            *facts.without_group,
        ),
        "None": (),
    }[job.clean_pod_policy]
    health = Health() if facts.plan is None else Health(*balance(facts.plan, memory))
    final = decision(job, phase, known.reason or phase, known.message, health=health, delete=leftovers)
    since = now - (known.ended_at if known.ended_at is not None else now)
    return replace(final, remove_job=job.ttl_seconds is not None and since >= job.ttl_seconds), memory
