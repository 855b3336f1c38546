"""Repair of an active plan: batches beyond the job's bounds, a wrong sum, or a version that workers would ignore."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.bounds import bounds_at_once
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.facts import bounds_of, group_of, listed, multiples_of
from heterotrain_operator.core.model import Job, WorkerSeen
from heterotrain_operator.core.prediction.least_batch import why_no_fewer
from heterotrain_operator.core.prediction.memory_limit import why_no_more
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import infeasible, last_multiple
from heterotrain_operator.core.split.passes import at_once, in_passes
from heterotrain_operator.core.worker_memory import WorkerMemory


def repaired(job: Job, plan: Plan, known: Sequence[WorkerMemory]) -> tuple[tuple[int, ...] | None, str] | None:
    """Batches that repair what the plan violates since the job was edited, and why; no batches if none are
    feasible. None if it violates nothing."""
    groups = [member.group for member in plan.members]
    together = bounds_at_once(job, groups, known)
    bounds = in_passes(job.global_batch, together)
    policy = POLICIES.get(job.policy)
    total = plan.global_batch_size
    if job.fixed_global_batch and (policy is None or policy.keeps_global_batch):
        total = job.global_batch
    broken = []
    for member, (low, high), worker in zip(plan.members, bounds, known, strict=True):
        if not low <= member.batch_size <= high:
            users_low, users_high = bounds_of(job, group_of(job, member.group))
            why = why_no_fewer(worker.least_batch, users_low, low) if member.batch_size < low else ""
            why = why_no_more(worker.memory_use) if member.batch_size > high < users_high else why
            why = f" ({why})" if why else ""
            broken.append(f"{member.name} has {member.batch_size} samples, bounds are [{low}, {high}]{why}")
    for member, (_, most) in zip(plan.members, together, strict=True):
        if at_once(member) > max(most, 1):
            broken.append(f"{member.name} computes {at_once(member)} samples at once, of which {most} fit")
    multiples = multiples_of([group_of(job, name) for name in groups]) if _takes_multiples(job) else ()
    for member, multiple in zip(plan.members, multiples, strict=False):
        if member.batch_size % multiple:
            broken.append(f"{member.name} has {member.batch_size} samples, which is no multiple of {multiple}")
    if total != plan.global_batch_size:
        broken.append(f"the batches add up to {plan.global_batch_size}, not to {total}")
    if not broken:
        return None
    if total != job.global_batch:
        total = min(max(total, sum(low for low, _ in bounds)), max(sum(high for _, high in bounds), 1))
        if multiples:
            total = max(last_multiple(total, min(multiples)), min(multiples))
    why_not = infeasible(total, bounds, multiples, [member.name for member in plan.members])
    if why_not is not None:
        return None, f"plan {plan.version} stays active, although {listed(broken)}: {why_not}"
    return split_proportionally(plan.batch_sizes, total, bounds, multiples), listed(broken)


def _takes_multiples(job: Job) -> bool:
    return any(group.multiple_of > 1 for group in job.groups)


def beyond_followed(plan: Plan, members: Sequence[WorkerSeen]) -> tuple[tuple[int, ...], str] | None:
    """The plan's own batches, and why, where a member follows a newer version than the plan has; None otherwise.

    Workers ignore older plans, so a plan that was lost and written again must be numbered beyond what they follow.
    """
    followed = [(w.metrics.plan_version, w.name) for w in members if w.metrics is not None]
    newest, name = max(followed, default=(0, ""))
    if newest <= plan.version:
        return None
    return plan.batch_sizes, f"{name} follows plan {newest}, newer than the active plan {plan.version}"
