"""One look at a training job whose plan is active: repair it, feed changed CPU limits forward, or rebalance.

A plan is not superseded before its members follow it: two switches under way at once would leave nobody
knowing what was measured under which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain_operator.core.batching.adjustment import Adjustment
from heterotrain_operator.core.batching.bounds import with_least_batch
from heterotrain_operator.core.batching.feed_forward import at_new_limits
from heterotrain_operator.core.batching.quorum import no_quorum, with_silent
from heterotrain_operator.core.batching.rebalance import rebalanced
from heterotrain_operator.core.batching.repair import beyond_followed, repaired
from heterotrain_operator.core.facts import SETTLE_SECONDS, listed
from heterotrain_operator.core.model import Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Memory, is_of, members_memory


def adjust(job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Memory, now: float) -> Adjustment:
    """Look once. `members` and `memory.workers` are those of `plan`, by rank."""
    memory = _with_least_batches(memory, members)
    memory, news = with_silent(job, plan, members, memory, now)
    adjustment = _adjusted(job, plan, members, memory, now)
    return replace(adjustment, events=(*news, *adjustment.events)) if news else adjustment


def _adjusted(job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Memory, now: float) -> Adjustment:
    unfollowed = _unfollowed(plan, members)
    repair: tuple[tuple[int, ...] | None, str] | None = beyond_followed(plan, members)
    if repair is None and (not unfollowed or _settled(memory, now)):
        repair = repaired(job, plan, memory.workers)
    if repair is not None:
        batches, why = repair
        return Adjustment(batches, why, memory, degraded="" if batches else why)
    if unfollowed:
        return Adjustment(None, unfollowed, memory)
    metrics = [worker.metrics for worker in members]
    memory, adjustment = at_new_limits(job, plan, members, metrics, memory)
    return adjustment or rebalanced(job, plan, metrics, memory)


def aligned(memory: Memory, plan: Plan, now: float) -> Memory:
    """The memory of exactly the active plan's members: under another version the measurements do not hold, and of
    another worker nothing does.
    """
    if is_of(memory, plan):
        return memory
    workers = tuple(worker.unmeasured() for worker in members_memory(memory, plan))
    return replace(memory, plan_version=plan.version, generation=plan.generation, published_at=now, workers=workers)


def _with_least_batches(memory: Memory, members: Sequence[WorkerSeen]) -> Memory:
    """Before anything is decided: bounds rest on them, also while a plan is not followed yet."""
    workers = [with_least_batch(known, seen.metrics) for known, seen in zip(memory.workers, members, strict=True)]
    return replace(memory, workers=tuple(workers))


def _unfollowed(plan: Plan, members: Sequence[WorkerSeen]) -> str:
    """Who does not follow the active plan, in words; empty if all do that are read.

    All ranks switch at the same step, so whoever is not read has switched with the others. Members that went on without
    one that ended share its batch under the same version: what they count is no measure of this plan, and the next one
    names them alone.
    """
    unreadable = [worker.name for worker in members if worker.metrics is None]
    too_few = unreadable and no_quorum(plan, [rank for rank, each in enumerate(members) if each.metrics is not None])
    if too_few:
        return f"plan {plan.version} is active; metrics cannot be read of {listed(unreadable)}: {too_few}"
    behind = [
        f"{worker.name} ({worker.metrics.phase or 'phase unknown'}, plan {worker.metrics.plan_version})"
        for worker in members
        if worker.metrics is not None and worker.metrics.plan_version != plan.version
    ]
    if behind:
        return f"plan {plan.version} is not followed yet by {listed(behind)}"
    shared = [
        f"{member.name} ({worker.metrics.phase or 'phase unknown'}, with {worker.metrics.batch_size} samples "
        f"instead of {member.batch_size})"
        for member, worker in zip(plan.members, members, strict=True)
        if worker.metrics is not None and _has_another_batch(worker.metrics, member.batch_size)
    ]
    return f"plan {plan.version} is followed with other batches by {listed(shared)}" if shared else ""


def _has_another_batch(metrics: WorkerMetrics, batch: int) -> bool:
    """Whether a worker whose members can change says that it trains with another batch than the plan's; 0 may be no
    figure at all.
    """
    return metrics.protocol >= MEMBERS_MAY_END and metrics.batch_size not in (0, batch)


def _settled(memory: Memory, now: float) -> bool:
    return memory.published_at is not None and now - memory.published_at >= SETTLE_SECONDS
