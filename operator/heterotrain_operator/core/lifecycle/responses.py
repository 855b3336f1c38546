"""What a job does about an incident: one table of responses, by policy and incident.

A new response is a member of `Response` with its action in `_ACTIONS`. Who gets it is an entry of a policy. Source: the
failure policy of kubernetes-sigs/jobset, which has the same table (`actionFunctionMap` in `failure_policy.go`).

Which policy a job has rests on what its workers can do: `RestartAll` is that of workers that meet only at their start,
and `Elastic` that of workers whose group can lose and gain members while it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from heterotrain_operator.core.facts import Facts, listed
from heterotrain_operator.core.model import Decision, Event, Job, JobPhase
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, decision, ending
from heterotrain_operator.core.remembered.job import Finish, Outcome
from heterotrain_operator.core.state import Remembered

WITNESS_SECONDS = 10.0
"""So long the others may take to end as the first one did: images and machines are not equally fast."""

EVIDENCE_SECONDS = 90.0
"""So long it may take until it shows that an end is nobody's fault: who asked a worker to stop, or that one which
answers nobody is lost with its node. A node that shuts down is `NotReady` only after
`node-monitor-grace-period`, 50 s, and the operator sees that some time later.
"""


class Incident(StrEnum):
    """What happens to a job's workers or its plan; the value is the reason in events and conditions.

    The first three concern one worker that is no member of a plan, and `startup.py` carries the response out together
    with whatever else it creates and deletes. All others are answered for the whole job.
    """

    WORKER_REJECTED = "WorkerRejected"  # its node turned it away before it ran
    WORKER_DELETED = "WorkerDeleted"  # it ended while somebody deleted it, and was no member yet
    WORKER_SURPLUS = "WorkerSurplus"  # neither the job nor the active plan names it
    WORKER_FAILED = "WorkerFailed"
    WORKER_DISRUPTED = "WorkerDisrupted"  # somebody else shows that its end is not its fault
    WORKER_VANISHED = "WorkerVanished"
    PLAN_NOT_FOLLOWED = "PlanNotFollowed"  # it was to join, and nobody went over to the plan that names it
    WORKER_HUNG = "WorkerHung"
    WORKERS_RESIZED = "WorkersResized"
    STATE_LOST = "StateLost"  # nobody is left who could carry the training on
    PLAN_LOST = "PlanLost"  # and cannot be restored
    ASKED_TO_STOP = "AskedToStop"  # it says so, and nobody shows who asked
    PERHAPS_ALIKE = "PerhapsAlike"  # it failed before there was a plan, and the others may fail alike
    FAILED_FOR_GOOD = "WorkerFailedForGood"  # it reported that no other try may be made
    NEVER_JOINED = "NeverJoined"
    SCRIPT_FAILED = "ScriptFailed"
    DEVICE_MISSING = "DeviceMissing"
    FAILED_ALIKE = "WorkersFailedAlike"


ENDS = frozenset(
    {
        Incident.WORKER_FAILED,
        Incident.WORKER_DISRUPTED,
        Incident.WORKER_VANISHED,
        Incident.ASKED_TO_STOP,
        Incident.PLAN_NOT_FOLLOWED,
    }
)
"""Incidents of one worker, of a group that can do without it."""

LASTING = frozenset(
    {
        Incident.WORKER_DISRUPTED,
        Incident.WORKER_VANISHED,
        Incident.PLAN_LOST,
        Incident.WORKERS_RESIZED,
        Incident.STATE_LOST,
    }
)
"""Incidents after which the active plan is of no more use, so that a job can neither ignore them nor wait."""


class Response(StrEnum):
    """What is done about an incident."""

    IGNORE = "Ignore"  # go on as if nothing had happened
    WAIT = "Wait"  # decide nothing until the patience since the first such incident is over, then go on
    REMOVE = "Remove"  # delete that worker
    REPLACE = "Replace"  # delete that worker and create it again, while the others stay
    REFILL = "Refill"  # go on without that worker, and create another one in its place (`refill.py`)
    CHANGE = "Change"  # the workers that are wanted go on as members, and no others (`membership.py`)
    RESTART_ALL = "RestartAll"  # delete all workers and create them again; beyond the backoff limit the job fails
    FAIL_JOB = "FailJob"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the table. `counts`: a restart counts towards the backoff limit, or the end of a worker towards that
    of its place, once `patience_seconds` are over. These are those of a wait, too, and `code` is its reason where that
    is not the incident's own.
    """

    response: Response
    counts: bool = False
    patience_seconds: float = 0.0
    code: str = ""


FailurePolicy = Mapping[Incident, Rule]

RESTART_ALL: FailurePolicy = {
    Incident.WORKER_REJECTED: Rule(Response.REPLACE),
    Incident.WORKER_DELETED: Rule(Response.REPLACE),
    Incident.WORKER_SURPLUS: Rule(Response.REMOVE),
    Incident.WORKER_FAILED: Rule(Response.RESTART_ALL, counts=True),
    Incident.WORKER_DISRUPTED: Rule(Response.RESTART_ALL),
    Incident.WORKER_VANISHED: Rule(Response.RESTART_ALL),  # workers do not remove themselves, so it does not count
    Incident.PLAN_NOT_FOLLOWED: Rule(Response.IGNORE),  # nobody joins
    Incident.WORKER_HUNG: Rule(Response.RESTART_ALL, counts=True),
    Incident.WORKERS_RESIZED: Rule(Response.RESTART_ALL),
    Incident.STATE_LOST: Rule(Response.RESTART_ALL),
    Incident.PLAN_LOST: Rule(Response.RESTART_ALL),
    Incident.ASKED_TO_STOP: Rule(Response.WAIT, patience_seconds=EVIDENCE_SECONDS),
    Incident.PERHAPS_ALIKE: Rule(Response.WAIT, patience_seconds=WITNESS_SECONDS, code=Incident.WORKER_FAILED),
    Incident.FAILED_FOR_GOOD: Rule(Response.FAIL_JOB),
    Incident.NEVER_JOINED: Rule(Response.FAIL_JOB),
    Incident.SCRIPT_FAILED: Rule(Response.FAIL_JOB),
    Incident.DEVICE_MISSING: Rule(Response.FAIL_JOB),
    Incident.FAILED_ALIKE: Rule(Response.FAIL_JOB),
}

ELASTIC: FailurePolicy = {
    **RESTART_ALL,
    Incident.WORKER_FAILED: Rule(Response.REFILL, counts=True),
    Incident.WORKER_DISRUPTED: Rule(Response.REFILL),
    Incident.WORKER_VANISHED: Rule(Response.REFILL),
    Incident.PLAN_NOT_FOLLOWED: Rule(Response.REFILL, counts=True),
    Incident.ASKED_TO_STOP: Rule(Response.REFILL, counts=True, patience_seconds=EVIDENCE_SECONDS),
    Incident.WORKERS_RESIZED: Rule(Response.CHANGE),
}

FAILURE_POLICIES: dict[str, FailurePolicy] = {"RestartAll": RESTART_ALL, "Elastic": ELASTIC}


def rule_of(job: Job, incident: Incident) -> Rule:
    """How the job's policy answers an incident."""
    return FAILURE_POLICIES[job.failure_policy][incident]


def is_elastic(job: Job) -> bool:
    """Whether the job's members change while they train."""
    return rule_of(job, Incident.WORKERS_RESIZED).response is Response.CHANGE


def removes_surplus(job: Job) -> bool:
    """Whether pods that the job does not want, or that the active plan does not name, are deleted."""
    return rule_of(job, Incident.WORKER_SURPLUS).response is Response.REMOVE


def respond(
    job: Job, facts: Facts, memory: Remembered, now: float, *, incident: Incident, message: str
) -> tuple[Decision, Remembered] | None:
    """What is done about an incident of the whole job, which `message` describes; None if nothing is, or no more."""
    case = _Case(incident, message, rule_of(job, incident))
    return _ACTIONS[case.rule.response](job, facts, memory, now, case)


def respond_to_lasting(
    job: Job, facts: Facts, memory: Remembered, now: float, *, incident: Incident, message: str
) -> tuple[Decision, Remembered]:
    """The same for an incident after which the active plan is of no more use, so that no policy may ignore it."""
    response = respond(job, facts, memory, now, incident=incident, message=message)
    assert response is not None, f"policy {job.failure_policy} ignores {incident}"
    return response


def check_policy(policy: FailurePolicy) -> None:
    """Raises ValueError if the policy leaves out an incident, or answers one as it cannot be answered."""
    for incident in Incident:
        response = policy[incident].response if incident in policy else None
        if response not in _possible(incident):
            possible = ", ".join(each.value for each in _possible(incident))
            raise ValueError(f"{incident} is answered with {response}; it may be with {possible}")


def _possible(incident: Incident) -> tuple[Response, ...]:
    if incident is Incident.WORKER_SURPLUS:
        return Response.IGNORE, Response.REMOVE
    if incident in (Incident.WORKER_REJECTED, Incident.WORKER_DELETED):
        return Response.REPLACE, Response.RESTART_ALL
    refilled = (Response.REFILL,) if incident in ENDS else ()
    if incident is Incident.WORKERS_RESIZED:
        return Response.RESTART_ALL, Response.CHANGE, Response.FAIL_JOB
    if incident in LASTING:
        return Response.RESTART_ALL, *refilled, Response.FAIL_JOB
    return (*_ACTIONS, *refilled)


@dataclass(frozen=True, slots=True)
class _Case:
    incident: Incident
    message: str
    rule: Rule


_Action = Callable[[Job, Facts, Remembered, float, _Case], tuple[Decision, Remembered] | None]


def _ignore(*_: object) -> None:
    return None


def _wait(job: Job, facts: Facts, memory: Remembered, now: float, case: _Case) -> tuple[Decision, Remembered] | None:
    since = now if memory.budget.unexplained_at is None else memory.budget.unexplained_at
    if now - since >= case.rule.patience_seconds:
        return None
    phase: JobPhase = "Running" if any(facts.members) else "Restarting" if memory.generation > 0 else "Created"
    code = case.rule.code or case.incident.value
    memory = replace(memory, budget=replace(memory.budget, unexplained_at=since))
    return decision(job, phase, code, case.message), memory


def _restart_all(job: Job, facts: Facts, memory: Remembered, now: float, case: _Case) -> tuple[Decision, Remembered]:
    code, counts = case.incident.value, case.rule.counts
    return restart_all(job, facts, memory, now, code=code, message=case.message, counts=counts)


def _fail_job(job: Job, facts: Facts, memory: Remembered, now: float, case: _Case) -> tuple[Decision, Remembered]:
    return ending(job, facts, memory, now, outcome="Failed", code=case.incident.value, message=case.message)


_ACTIONS: dict[Response, _Action] = {
    Response.IGNORE: _ignore,
    Response.WAIT: _wait,
    Response.RESTART_ALL: _restart_all,
    Response.FAIL_JOB: _fail_job,
}


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
    job: Job, facts: Facts, memory: Remembered, now: float, *, code: str, message: str, counts: bool
) -> tuple[Decision, Remembered]:
    """Delete all workers, which are created again after a delay; beyond `backoff_limit` the job fails instead.

    All of them, because trainers that meet only at their start join no other ones: one plan, one generation, one set of
    processes.
    """
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
        finish=Finish(),
        outcome=Outcome(reason=code, message=message),
    )
    restarting = Event("Normal", "RestartingWorkers", reason)
    return decision(job, "Restarting", code, reason, delete=facts.names, events=(cause, restarting)), memory


def still_draining(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered] | None:
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


def _was_steady(memory: Remembered, now: float) -> bool:
    """Whether the generation that ends has trained for so long that what ended the one before no longer matters."""
    return memory.budget.generation_at is not None and now - memory.budget.generation_at >= STEADY_SECONDS
