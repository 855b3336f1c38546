"""A plan that was deleted or damaged: rebuilt from what the workers say they follow, so that none of them stops.

Workers ignore a plan of other members or of an older version. One with their members under a new version is
followed at once, whoever destroyed the old one. Where members can change it carries on the generation before, whatever
the lost one did: all that train under it are past its beginning, and one that followed the others, and has never seen
the lost plan, would take a plan that carries nothing on for a new beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, PHASE_HOLDING, PHASE_TRAINING, PHASE_WAITING, Member, Plan
from heterotrain_operator.core.batching.bounds import bounds_at_once, repaired
from heterotrain_operator.core.facts import Facts, listed
from heterotrain_operator.core.lifecycle.holding import too_few
from heterotrain_operator.core.lifecycle.publishing import MOST_COUNTED, next_version, recovered_plan
from heterotrain_operator.core.lifecycle.responses import Incident, respond_to_lasting
from heterotrain_operator.core.model import Decision, Event, Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, decision
from heterotrain_operator.core.remembered_worker import key_of
from heterotrain_operator.core.split.multiples import Bounds
from heterotrain_operator.core.split.passes import with_passes
from heterotrain_operator.core.state import Remembered


def recovered(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered] | None:
    """What to do while workers train under a plan that is not there any more; None if that is not so."""
    if facts.plan is not None or not any(_follows(worker) for worker in facts.live):
        return None
    wanted = sum(group.replicas for group in job.groups)
    newcomers = [worker.name for worker in facts.live if worker.metrics is not None and not _follows(worker)]
    # The plan was there at these moments, and may have been for days.
    there_at = filter(None, (memory.published_at, memory.progress.progress_at))
    since = now - max(there_at, default=now)
    if len(facts.workers) != wanted or newcomers or since > job.startup_deadline_seconds:
        message = f"the plan was lost, and {listed(newcomers) or 'not all of its workers'} cannot join without one"
        if not newcomers and len(facts.workers) != wanted:
            message = f"the plan was lost, and {len(facts.workers)} of {wanted} workers are there"
        return respond_to_lasting(job, facts, memory, now, incident=Incident.PLAN_LOST, message=message)
    trained = [worker.metrics for worker in facts.workers if worker.metrics is not None]
    if facts.finished or len(trained) != wanted or not _agree(trained):
        reason = "the plan was lost; it is restored once all workers train"
        return decision(job, "Running", "PlanLost", reason), memory
    if any(max(each.plan_version, each.generation) >= MOST_COUNTED for each in trained):
        message = "the plan was lost, and workers follow one of a number that leaves no room for another"
        return respond_to_lasting(job, facts, memory, now, incident=Incident.PLAN_LOST, message=message)
    pairs = _by_rank(facts.workers, trained, memory)
    plan = Plan(
        version=next_version(facts, memory),
        generation=trained[0].generation,
        apply_at=job.apply_at,
        # Plans list workers in this order from the first on, and the first leads.
        members=tuple(
            Member(worker.name, worker.uid, worker.address, worker.group, metrics.batch_size)
            for worker, metrics in pairs
        ),
        continues=trained[0].generation - 1 if any(each.protocol >= MEMBERS_MAY_END for each in trained) else 0,
        holds=bool(too_few(job, facts, memory, [worker.group for worker, _ in pairs])),
    )
    memory = recovered_plan(memory, plan, now)
    # What workers say is no better than a plan: the job may have been edited since, and one of them may be wrong.
    batches, why = repaired(job, plan, memory.workers) or (None, "")
    if batches is not None:
        members = zip(plan.members, batches, strict=True)
        plan = replace(plan, members=tuple(replace(member, batch_size=batch) for member, batch in members))
    bounds = bounds_at_once(job, [member.group for member in plan.members], memory.workers)
    trained = [metrics for _, metrics in pairs]
    plan = with_passes(plan, [_as_now(pair, metrics) for pair, metrics in zip(bounds, trained, strict=True)])
    reason = f"plan {plan.version} restores what {len(trained)} workers follow, since the plan was lost"
    if why:
        reason = f"{reason}; {why}"
    event = Event("Warning", "PlanRestored", reason[:LONGEST_MESSAGE])
    return decision(job, "Running", "PlanRestored", reason, plan=plan, events=(event,)), memory


def _by_rank(
    workers: Sequence[WorkerSeen], trained: Sequence[WorkerMetrics], memory: Remembered
) -> list[tuple[WorkerSeen, WorkerMetrics]]:
    """The workers with their metrics, in the order of the plan that was lost, since members that have joined others are
    behind them: by their memory, where that is theirs, else by the ranks that they report, and else by group and index,
    as in a first plan.
    """
    pairs = list(zip(workers, trained, strict=True))
    remembered = {known.key: rank for rank, known in enumerate(memory.workers)}
    if "" not in remembered and remembered.keys() == {key_of(worker.uid) for worker in workers}:
        return sorted(pairs, key=lambda pair: remembered[key_of(pair[0].uid)])
    ranks = {worker.name: metrics.rank for worker, metrics in pairs if metrics.rank is not None}
    if len(set(ranks.values())) < len(pairs):
        return pairs
    return sorted(pairs, key=lambda pair: ranks[pair[0].name])


def _as_now(bounds: Bounds, metrics: WorkerMetrics) -> Bounds:
    """A worker that does its part in several passes goes on so: why it must may be forgotten with the memory."""
    low, high = bounds
    now = metrics.memory_batch_size
    return (low, min(high, now)) if 0 < now < metrics.batch_size else bounds


def _follows(worker: WorkerSeen) -> bool:
    metrics = worker.metrics
    return metrics is not None and metrics.generation >= 1 and metrics.phase not in ("", PHASE_WAITING)


def _agree(metrics: list[WorkerMetrics]) -> bool:
    """Whether these workers train together, or hold, with samples, in one generation."""
    return (
        all(worker.phase in (PHASE_TRAINING, PHASE_HOLDING) for worker in metrics)
        and len({worker.generation for worker in metrics}) == 1
        and any(worker.batch_size > 0 for worker in metrics)
    )
