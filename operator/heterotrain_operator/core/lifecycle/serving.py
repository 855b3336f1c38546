"""The parameter server of an asynchronous job: one pod that nothing else that is decided about workers speaks of.

It is created first, and no plan is published before it is ready. It holds the model of those that train, so that
without it they wait, and nothing is decided about them meanwhile. Another one is created in its place, later each time,
until as many have ended by their own fault as the backoff limit allows. The next plan names it, and the workers go on
with what its script has read from the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from heterotrain.contract import Plan, Server
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, ended, worker_name
from heterotrain_operator.core.lifecycle import progress
from heterotrain_operator.core.lifecycle.ends import described_end, is_external
from heterotrain_operator.core.lifecycle.placement import placed, why_unready
from heterotrain_operator.core.lifecycle.publishing import adjusted, is_predicted, next_version, rebalanced_plan
from heterotrain_operator.core.lifecycle.refill import NOBODYS_FAULT
from heterotrain_operator.core.lifecycle.responses import Incident, delay_seconds
from heterotrain_operator.core.model import SERVER_GROUP, Decision, Event, Job, WorkerKey, WorkerSeen, WorkerState
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, Health, decision, ending
from heterotrain_operator.core.remembered.job import Progress
from heterotrain_operator.core.remembered.serving import Serving
from heterotrain_operator.core.remembered_worker import key_of
from heterotrain_operator.core.state import Remembered

SERVER_LOST = "ServerLost"
"""Why a job that trains is Degraded while it has no parameter server, and the reason of the event about its end."""

CHECKPOINT_NOT_DURABLE = "CheckpointNotDurable"
"""The reason of the event that training begins again, since the model went with its server."""

Decided = tuple[Decision, Remembered]


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look came to: why the server cannot be used now (`away`, empty if it can), the pod to create or delete,
    and why the job fails with it (code and message).
    """

    memory: Remembered
    away: str = ""
    create: tuple[WorkerKey, ...] = ()
    delete: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    failed: tuple[str, str] | None = None


def with_server(
    job: Job,
    facts: Facts,
    memory: Remembered,
    now: float,
    rest: Callable[[Job, Facts, Remembered, float], Decided],
) -> Decided:
    """What is done about a job that is neither over nor about to end: about its parameter server, if it has one, and
    `rest`, which is what is done about its workers. While workers that train lack their server, that waits.
    """
    if job.server is None:
        return rest(job, facts, memory, now)
    look = _looked(job, facts, memory, now)
    memory = look.memory
    if look.failed is not None:
        code, message = look.failed
        return ending(job, facts, memory, now, outcome="Failed", code=code, message=message)
    plan = facts.plan if any(facts.members) else None
    if plan is not None and look.away:
        decided, memory = _awaited(facts, plan, memory, now, job=job, away=look.away)
    elif plan is not None and plan.server != server_of(facts):
        decided, memory = _switched(job, facts, plan, memory, now)
    else:
        decided, memory = rest(job, replace(facts, server_unready=look.away), memory, now)
    if memory.budget.draining or memory.outcome.is_final:
        return decided, memory  # all pods go, the server's among them
    decided = replace(
        decided,
        create=(*look.create, *decided.create),
        delete=tuple(dict.fromkeys((*look.delete, *decided.delete))),
        events=(*look.events, *decided.events),
    )
    return decided, memory


def named(job: Job, facts: Facts, decided: Decision) -> Decision:
    """The decision, the plan of which names the parameter server that is there."""
    server = server_of(facts)
    if job.server is None or decided.plan is None or server is None:
        return decided
    return replace(decided, plan=replace(decided.plan, server=server))


def server_of(facts: Facts) -> Server | None:
    """The parameter server as a plan names it; None if it has not come so far."""
    seen = facts.server
    if seen is None or not seen.address:
        return None
    return Server(seen.name, seen.uid, seen.address)


def _looked(job: Job, facts: Facts, memory: Remembered, now: float) -> _Look:
    server, known, trains = facts.server, memory.serving, any(facts.members)
    if server is None:
        return _created(job, facts, memory, now)
    if ended(server):
        if known.server_ended == key_of(server.uid):
            return _Look(memory, f"{server.name} (ended)", delete=(server.name,))
        if server.fatal:
            return _Look(memory, failed=(Incident.FAILED_FOR_GOOD.value, described_end(server)))
        return _counted(job, memory, now, server, described_end(server), counts=not is_external(server))
    away = _why_away(facts, server)
    is_back = not away and trains
    known = replace(known, server_asked_at=None, server_away_at=None if is_back else known.server_away_at)
    memory = replace(memory, serving=known)
    late = server.created_at is not None and now - server.created_at > job.startup_deadline_seconds
    if not away or server.deleting_since is not None or server.node_lost or not (trains and late and placed(server)):
        # Before there is a plan the job's own deadline judges, and a pod that has found no place has not failed.
        return _Look(memory, away, delete=(server.name,) if server.node_lost else ())
    why = f"{server.name} was not ready within {job.startup_deadline_seconds:g} s: {why_unready(server)}"
    return _counted(job, memory, now, server, why, counts=True)


def _why_away(facts: Facts, server: WorkerSeen) -> str:
    """Why a server that lives cannot be used now, in words; empty if it can."""
    if server.deleting_since is None and not server.node_lost:
        own, plan = server_of(facts), facts.plan
        serves = own is not None and plan is not None and plan.server == own
        if serves or facts.states[server.name] is WorkerState.WARM:
            return ""
    why = "on a node that does not answer" if server.node_lost else why_unready(server)
    return f"{server.name} ({why})"


def _counted(job: Job, memory: Remembered, now: float, server: WorkerSeen, why: str, *, counts: bool) -> _Look:
    """After a server that is of no more use; one that has ended by its own fault `counts`."""
    ends = memory.serving.server_ends + counts
    if ends > job.backoff_limit:
        plural = "" if ends == 1 else "s"
        message = f"{why} ({ends} parameter server{plural} ended, backoffLimit is {job.backoff_limit})"
        return _Look(memory, failed=("BackoffLimitExceeded", message))
    after = Serving(
        server_ends=ends,
        server_ended=key_of(server.uid),
        server_due_at=now + delay_seconds(ends) if counts else now,
        server_away_at=memory.serving.server_away_at,
    )
    events = _lost(job, Incident.WORKER_FAILED if counts else Incident.WORKER_DISRUPTED, why)
    return _Look(replace(memory, serving=after), f"{server.name} (ended)", delete=(server.name,), events=events)


def _lost(job: Job, incident: Incident, why: str) -> tuple[Event, ...]:
    event = Event("Normal" if incident in NOBODYS_FAULT else "Warning", SERVER_LOST, why[:LONGEST_MESSAGE])
    if job.resumable:
        return (event,)
    begins = "training begins again at step 0: spec.checkpoint.path is not set, so the model went with its server"
    return event, Event("Warning", CHECKPOINT_NOT_DURABLE, begins)


def _created(job: Job, facts: Facts, memory: Remembered, now: float) -> _Look:
    """There is no server: create one, unless one was just asked for, or it is too early."""
    known, key = memory.serving, WorkerKey(SERVER_GROUP, 0, worker_name(job.name, SERVER_GROUP, 0))
    refused = facts.refused.get(key.name)
    events: tuple[Event, ...] = ()
    if any(facts.members) and known.server_away_at is None:
        events = _lost(job, Incident.WORKER_VANISHED, f"{key.name} vanished")
    away = f"{key.name} ({refused or 'not there'})"
    due_at = max((each for each in (known.server_due_at, memory.budget.restart_at) if each is not None), default=now)
    if now < due_at or (known.server_asked_at is not None and now - known.server_asked_at < SETTLE_SECONDS):
        return _Look(memory, away, events=events)
    memory = replace(memory, serving=replace(known, server_asked_at=now))
    if not refused:
        events = (*events, Event("Normal", "SuccessfulCreatePod", f"creating {key.name}"))
    return _Look(memory, away, create=(key,), events=events)


def _awaited(facts: Facts, plan: Plan, memory: Remembered, now: float, *, job: Job, away: str) -> Decided:
    """Workers that train have no server, and wait: that time counts against none of them."""
    memory = aligned(memory, plan, now)
    members = [worker for worker in facts.members if worker is not None]
    if len(members) == len(facts.members):
        memory = progress.held(members, facts.states, memory, now)
    if memory.serving.server_away_at is None:
        memory = replace(memory, serving=replace(memory.serving, server_away_at=now))
    reason = f"training waits for the parameter server: {away}"
    health = Health(degraded=reason, degraded_code=SERVER_LOST)
    return decision(job, "Running", SERVER_LOST, reason, health=health), memory


def _switched(job: Job, facts: Facts, plan: Plan, memory: Remembered, now: float) -> Decided:
    """The same members go on with the server that is there now, at the step that it has read from a checkpoint."""
    memory, version = aligned(memory, plan, now), next_version(facts, memory)
    after = rebalanced_plan(memory, plan, version, "step", plan.batch_sizes)
    memory = adjusted(job, memory, plan, after, now, stage=None, predicted=[*map(is_predicted, memory.workers)])
    begun = Progress(progress_at=now, advanced_at=now, slow_step_seconds=memory.progress.slow_step_seconds)
    memory = replace(memory, progress=begun)
    reason = f"plan {version} goes on with the parameter server that is there now"
    event = Event("Normal", "PlanPublished", reason)
    return decision(job, "Running", "PlanPublished", reason, plan=after, events=(event,)), memory
