"""A global batch that grows with the workers: who joins brings what it finishes in the time that a step takes now.

Source: Elasticity, section 2.2: the local batch stays until the global batch is the greatest allowed, then that stays.
Here workers may be unlike, so what stays is the time of a step. Batches of a balanced plan are finished in the same
time, so they say what one more worker of a group brings, and no prediction is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from heterotrain.contract import Plan
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.model import Growth, Job
from heterotrain_operator.core.remembered.growth import Grown
from heterotrain_operator.core.state import Remembered


def grown(growth: Growth, counts: Mapping[str, int], shares: Mapping[str, float], unit: int = 1) -> int:
    """The global batch of so many workers by group, in samples: the job's own one times what these finish over what
    those finish that it is meant for (`growth.base`), within the job's own batch and the greatest.

    `shares` are samples that a worker of each group finishes in one time; a group without one counts as the mean. Below
    the greatest batch the steps are of `unit` samples.
    """
    own, known = growth.own_batch, [share for share in shares.values() if share > 0]
    usual = fmean(known) if known else 1.0

    def finished(workers: Mapping[str, int]) -> float:
        return sum(count * (shares.get(name, 0.0) or usual) for name, count in workers.items())

    before = finished(dict(growth.base))
    if before <= 0:
        return own
    more = round(own * (finished(counts) / before - 1) / unit)
    if growth.most_batch is not None:
        more = min(more, (growth.most_batch - own) // unit)
    return own + max(more, 0) * unit


def at_size(job: Job, counts: Mapping[str, int], plan: Plan | None) -> Job:
    """The job with the global batch that it has with so many workers by group. `plan` is the active one, or the last
    that there was; with as many workers its batch stays, within bounds.
    """
    growth = job.growth
    if growth is None:
        return job
    if plan is not None and Counter(member.group for member in plan.members) == Counter(counts):
        most = plan.global_batch_size if growth.most_batch is None else growth.most_batch
        return replace(job, global_batch=max(min(plan.global_batch_size, most), growth.own_batch))
    shares = _in_plan(plan)
    units = [group.multiple_of for group in job.groups if counts.get(group.name)]
    return replace(job, global_batch=grown(growth, counts, shares, min(units, default=1)))


def at_present(job: Job, facts: Facts, memory: Remembered) -> tuple[Job, Remembered]:
    """The job with the global batch of those who train, or of those who are to start; and the memory, which keeps what
    workers the job's own batch is meant for: the first that have trained with it.
    """
    if job.growth is None:
        return job, memory if not memory.grown.grown_from else replace(memory, grown=Grown())
    trains = facts.plan is not None and any(facts.members)
    counts = _counts(facts.plan) if trains and facts.plan is not None else _wanted(job)
    if trains and not memory.grown.grown_from:
        memory = replace(memory, grown=Grown(tuple(sorted(counts.items()))))
    job = replace(job, growth=replace(job.growth, base=memory.grown.grown_from))
    return at_size(job, counts, facts.plan), memory


def _counts(plan: Plan) -> Counter[str]:
    return Counter(member.group for member in plan.members)


def _wanted(job: Job) -> Counter[str]:
    return Counter({group.name: group.replicas for group in job.groups if group.replicas})


def _in_plan(plan: Plan | None) -> dict[str, float]:
    """The mean batch of each group's members that have samples."""
    batches: dict[str, list[int]] = {}
    for member in plan.members if plan is not None else ():
        if member.batch_size > 0:
            batches.setdefault(member.group, []).append(member.batch_size)
    return {group: fmean(sizes) for group, sizes in batches.items()}
