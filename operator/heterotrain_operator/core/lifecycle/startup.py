"""From no workers to the first plan of a generation: create what is missing, wait until all are ready, publish.

A plan names addresses and identities, so it can only be made when every wanted worker is there. And every script must
have loaded and built what it needs, because the others would wait for it in a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import Member, Plan
from heterotrain_operator.core.batching.bounds import bounds_at_once, bounds_in_passes, with_least_batch
from heterotrain_operator.core.batching.policies import POLICIES, Seat, Split
from heterotrain_operator.core.batching.policies.static import equal_shares, static_shares
from heterotrain_operator.core.batching.policy import multiples_of_seats
from heterotrain_operator.core.facts import (
    SETTLE_SECONDS,
    Facts,
    bounds_of,
    group_of,
    listed,
    missing,
    multiples_of,
    rejected,
    surplus,
)
from heterotrain_operator.core.lifecycle.placement import INSUFFICIENT_CAPACITY, LET_GO, blind, held, let_go, unready
from heterotrain_operator.core.lifecycle.prior import Prior, first_split, inherited
from heterotrain_operator.core.lifecycle.publishing import known_workers, next_version, started_plan
from heterotrain_operator.core.lifecycle.responses import removes_surplus
from heterotrain_operator.core.model import Decision, Event, Job, JobPhase, WorkerKey, WorkerSeen
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, Health, decision, ending
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.remembered.job import Outcome
from heterotrain_operator.core.remembered_worker import NOBODY, RememberedWorker
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import infeasible
from heterotrain_operator.core.split.passes import in_passes, with_passes
from heterotrain_operator.core.state import Remembered


@dataclass(frozen=True, slots=True)
class _Gathering:
    """The workers of the next generation as far as they are there. `keys` are those to create, `awaited` those that are
    to be members, of which nodes have `turned_away` some, and `unwanted` names pods that have to go first. `unready`
    says which workers cannot be members yet, each with the reason, and `infeasible` why no split can be right.
    """

    keys: tuple[WorkerKey, ...]
    awaited: tuple[WorkerSeen, ...]
    turned_away: tuple[WorkerSeen, ...]
    unwanted: tuple[str, ...]
    unready: tuple[str, ...]
    infeasible: str | None

    @property
    def gated(self) -> bool:
        """Whether some worker may not be placed yet, by somebody's decision."""
        return any(worker.gated for worker in self.awaited)

    @property
    def lacks_capacity(self) -> bool:
        """Whether some worker may have found no place."""
        pending = any(worker.phase == "Pending" for worker in self.awaited)
        return bool(self.keys or self.turned_away) or pending

    def holding(self, facts: Facts) -> int:
        """How many workers hold what others may wait for."""
        return 0 if self.gated else held(self.awaited, refused=any(key.name in facts.refused for key in self.keys))


def start(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """Bring the job from whatever is there to the first plan of its next generation."""
    workers = _gathered(job, facts)
    if workers.gated or memory.start.starting_at is None:
        # Who has closed a gate, as a queue does, decides how long: the deadline begins when all are open.
        memory = replace(memory, start=replace(memory.start, starting_at=None if workers.gated else now))
    if not workers.infeasible and not workers.unready and not workers.unwanted:
        return _publish(job, facts, memory, now)
    wanted = sum(group.replicas for group in job.groups)
    memory = replace(memory, placing=memory.placing.watched(workers.holding(facts), wanted, now))
    warnings = tuple(_rejection(worker) for worker in workers.turned_away if worker.deleting_since is None)
    if now - (memory.start.starting_at if memory.start.starting_at is not None else now) > job.startup_deadline_seconds:
        message = _deadline_passed(job, facts, workers, memory)
        lacking = workers.lacks_capacity
        may_wait = memory.generation > 0 and (lacking or memory.outcome.reason == INSUFFICIENT_CAPACITY)
        if workers.infeasible or not may_wait:
            return ending(job, facts, memory, now, outcome="Failed", code="StartupDeadlineExceeded", message=message)
        memory = _waiting_on(memory, now, message if lacking else "")
        warnings = (*warnings, Event("Warning", INSUFFICIENT_CAPACITY, message)) if lacking else warnings
    phase, health = _phase(memory), _health(facts, memory)
    if workers.infeasible:
        why, health = workers.infeasible, Health(degraded=workers.infeasible)
        return decision(job, phase, "Infeasible", why, health=health, delete=workers.unwanted), memory
    alone = let_go(job, facts, memory, now, phase=phase, health=health, unready=workers.unready)
    if alone is not None:
        return alone
    decided, memory = _created(job, facts, workers, memory, now)
    return replace(decided, events=(*warnings, *decided.events)), memory


def _gathered(job: Job, facts: Facts) -> _Gathering:
    keys = missing(job, facts)
    excess = (*(worker.name for worker in surplus(job, facts)), *facts.without_group) if removes_surplus(job) else ()
    leaving = frozenset(excess)  # of a job that shrinks, thousands may be
    awaited = tuple(worker for worker in facts.workers if worker.name not in leaving)
    turned_away = tuple(worker for worker in awaited if rejected(worker))
    absent = (f"{key.name} ({facts.refused.get(key.name, 'not there')})" for key in keys)
    return _Gathering(
        keys=keys,
        awaited=awaited,
        turned_away=turned_away,
        unwanted=(*excess, *(worker.name for worker in turned_away)),
        unready=(*filter(None, [facts.server_unready]), *absent, *unready(awaited, facts.states)),
        infeasible=_infeasible(job),
    )


def _created(
    job: Job, facts: Facts, workers: _Gathering, memory: Remembered, now: float
) -> tuple[Decision, Remembered]:
    """Create what is missing, or wait for a pause to end, for pods to go, or for workers to be ready."""
    phase, health, keys = _phase(memory), _health(facts, memory), workers.keys
    restart_at = memory.budget.restart_at
    if keys and restart_at is not None and now < restart_at:
        reason = f"{memory.outcome.message}; all are created again in {restart_at - now:.0f} s"
        return decision(job, phase, LET_GO, reason, health=health, delete=workers.unwanted), memory
    if workers.turned_away:
        # Their node is given time before it is asked again.
        memory = replace(memory, start=replace(memory.start, pods_created_at=now))
    unready = listed(workers.unready)
    created_at = memory.start.pods_created_at
    if not keys or (created_at is not None and now - created_at < SETTLE_SECONDS):
        reason = f"waiting for {unready}{blind(facts)}" if unready else f"{listed(workers.unwanted)} must go first"
        return decision(job, phase, "WaitingForWorkers", reason, health=health, delete=workers.unwanted), memory
    memory = replace(memory, start=replace(memory.start, pods_created_at=now))
    fresh = [key.name for key in keys if key.name not in facts.refused]
    reason = f"creating {listed(fresh)}" if fresh else f"waiting for {unready}"
    code = "CreatingWorkers" if fresh else "WaitingForWorkers"
    events = (Event("Normal", "SuccessfulCreatePod", reason),) if fresh else ()
    unwanted = workers.unwanted
    return decision(job, phase, code, reason, health=health, create=keys, delete=unwanted, events=events), memory


def _phase(memory: Remembered) -> JobPhase:
    return "Restarting" if memory.generation > 0 or memory.budget.restarts > 0 else "Created"


def _health(facts: Facts, memory: Remembered) -> Health:
    if memory.outcome.reason == INSUFFICIENT_CAPACITY:
        return Health(degraded=memory.outcome.message, degraded_code=INSUFFICIENT_CAPACITY)
    return Health(degraded=facts.metrics_problem, degraded_code="MetricsUnavailable")


def _deadline_passed(job: Job, facts: Facts, workers: _Gathering, memory: Remembered) -> str:
    """Why the job did not start in time, in words."""
    before = f"; {memory.outcome.message}" if memory.outcome.reason == LET_GO else ""
    unready = listed(workers.unready or workers.unwanted)
    what = workers.infeasible or f"not ready: {unready}{before}{blind(facts)}"
    return f"the job did not start within {job.startup_deadline_seconds:g} s; {what}"[:LONGEST_MESSAGE]


def _rejection(worker: WorkerSeen) -> Event:
    return Event("Warning", "WorkerRejected", f"{worker.name} was turned away by its node: {worker.message.strip()}")


def _waiting_on(memory: Remembered, now: float, message: str) -> Remembered:
    """A job that has trained waits for as long as capacity is lacking, which `message` describes, and once it is not
    (no message), its workers have as long to start as any.
    """
    return replace(
        memory,
        start=replace(memory.start, starting_at=now),
        outcome=Outcome(reason=INSUFFICIENT_CAPACITY if message else "", message=message),
    )


def _infeasible(job: Job) -> str | None:
    groups = [group for group in job.groups for _ in range(group.replicas)]
    if not groups:
        return "the groups want no workers"
    names = [f"group {group.name}" for group in groups]
    bounds = in_passes(job.global_batch, [bounds_of(job, each) for each in groups])
    return infeasible(job.global_batch, bounds, multiples_of(groups), names)


def _publish(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    workers = facts.workers
    prior = Prior(facts.plan, _known_before(job, facts, memory), memory.progress.progress_step, memory.batching)
    knowledge = [with_least_batch(inherited(worker, prior), worker.metrics) for worker in workers]
    groups = [worker.group for worker in workers]
    bounds = bounds_in_passes(job, groups, knowledge)
    seats = [
        Seat(worker.name, group_of(job, worker.group), 0, pair, predictor=predictor_of(job))
        for worker, pair in zip(workers, bounds, strict=True)
    ]
    split = _first_split(job, facts.plan, seats)
    seats = [seat._replace(batch=batch) for seat, batch in zip(seats, split.batches, strict=True)]
    split = first_split(job, facts.plan, workers, prior, seats) or split
    generations = [memory.generation, *(w.metrics.generation for w in workers if w.metrics is not None)]
    if facts.plan is not None:
        generations.append(facts.plan.generation)
    plan = Plan(
        version=next_version(facts, memory),
        generation=max(generations) + 1,
        apply_at=job.apply_at,
        members=tuple(
            Member(worker.name, worker.uid, worker.address, worker.group, batch)
            for worker, batch in zip(workers, split.batches, strict=True)
        ),
    )
    plan = with_passes(plan, bounds_at_once(job, groups, knowledge))
    plural = "" if len(workers) == 1 else "s"
    reason = f"plan {plan.version} starts generation {plan.generation} of {len(workers)} worker{plural}: {split.reason}"
    event = Event("Normal", "PlanPublished", reason)
    protocol = min(worker.metrics.protocol for worker in workers if worker.metrics is not None)
    memory = started_plan(memory, plan, now, knowledge, protocol=protocol)
    return decision(job, "Running", "PlanPublished", reason, plan=plan, events=(event,)), memory


def _known_before(job: Job, facts: Facts, memory: Remembered) -> dict[str, RememberedWorker]:
    """What is known of the workers before, by the names of those that come after them: members may have had other
    indices, and places may have waited for a member when all had to start again.
    """
    known = dict(known_workers(job, memory, facts.plan))
    waiting = {place.replaces: place for place in memory.pending if place.known != NOBODY}
    known |= {name: place.known for name, place in waiting.items() if name not in known}
    groups = {name: place.group for name, place in waiting.items()}
    groups |= {member.name: member.group for member in (facts.plan.members if facts.plan is not None else ())}
    names = {worker.name for worker in facts.workers}
    left = [name for name in known if name not in names]
    for worker in facts.workers:
        before = next((name for name in left if groups.get(name) == worker.group), None)
        if worker.name not in known and before is not None:
            known[worker.name] = known[before]
            left.remove(before)
    return known


def _first_split(job: Job, before: Plan | None, seats: Sequence[Seat]) -> Split:
    """After a restart of the same workers their last batches, if they still fit; else what policy or job
    start with.
    """
    policy = POLICIES.get(job.policy)
    if before is not None and [member.name for member in before.members] == [seat.name for seat in seats]:
        fits = all(
            seat.bounds[0] <= batch <= seat.bounds[1] and batch % seat.group.multiple_of == 0
            for seat, batch in zip(seats, before.batch_sizes, strict=True)
        )
        free = not job.fixed_global_batch or (policy is not None and not policy.keeps_sum(job))
        if fits and before.global_batch_size >= 1 and (free or before.global_batch_size == job.global_batch):
            return Split(before.batch_sizes, f"the batches of plan {before.version}")
        if before.global_batch_size == job.global_batch and job.fixed_global_batch:
            bounds = [seat.bounds for seat in seats]
            batches = split_proportionally(before.batch_sizes, job.global_batch, bounds, multiples_of_seats(seats))
            return Split(batches, f"the batches of plan {before.version}, as far as bounds allow")
    if policy is not None and policy.first is not None:
        return policy.first(job, seats)
    return static_shares(job, seats) if job.initial == "Static" else equal_shares(job, seats)
