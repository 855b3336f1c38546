"""Stragglers that are removed since the others are faster without them: whose turn it is, and which places are gone.

Source: LB-BSP, algorithm 2, which asks that a straggler be removed once its batch cannot be lowered any further. Here
it leaves when the predicted step without it is shorter, by the same global batch, and its group has more workers than
`minReplicas` (one, if absent). The place comes back when the group's `replicas` are changed, when stragglers are no
longer to be removed, or when all workers start again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import Facts, group_of
from heterotrain_operator.core.fields import MOST_GROUPS
from heterotrain_operator.core.lifecycle.following import stayers
from heterotrain_operator.core.model import Event, Group, Job
from heterotrain_operator.core.remembered.sizes import Resize
from heterotrain_operator.core.remembered_worker import key_of
from heterotrain_operator.core.state import Remembered, members_memory
from heterotrain_operator.core.stragglers.remedies import ENOUGH_INTERVALS, is_worth
from heterotrain_operator.core.stragglers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Removing:
    """After a look: the job without the places that are gone, the memory, the straggler that leaves by the next plan
    (empty: nobody), and why.
    """

    job: Job
    memory: Remembered
    leaving: str = ""
    event: Event | None = None


def still_removed(job: Job, memory: Remembered) -> Remembered:
    """Without removals from groups that were edited since, or that keep too few workers by now, or that nobody wants
    any more.
    """
    if not memory.sizes.removed:
        return memory
    groups = {group.name: group for group in job.groups}
    wanted = job.stragglers.action == "Remove"
    more = {each.group: each.delta for each in memory.sizes.resized}
    kept = tuple(
        each
        for each in memory.sizes.removed
        if wanted and _still_holds(each, groups.get(each.group), more.get(each.group, 0))
    )
    return memory if kept == memory.sizes.removed else _with_removed(memory, kept)


def planned_removal(job: Job, facts: Facts, memory: Remembered, standing: Sequence[Verdict]) -> Removing:
    """Whom the next plan leaves out: one straggler at a time, the slowest first, so that the gain of each is predicted
    without those before it. `job` wants what it does without those that were removed before.
    """
    if job.stragglers.action != "Remove" or job.dry_run or facts.plan is None or not standing:
        return Removing(job, memory)
    there = {worker.name: worker for worker in stayers(facts)}
    in_group = Counter(worker.group for worker in there.values())
    advised = {known.key: known.evidence.advised for known in members_memory(memory, facts.plan)}
    for verdict in sorted(standing, key=lambda each: each.slowdown, reverse=True):
        worker = there.get(verdict.worker)
        if worker is None or not is_worth("Remove", verdict) or verdict.outlooks is None:
            continue
        group = group_of(job, worker.group)
        few = (
            in_group[group.name] <= (1 if group.min_replicas is None else group.min_replicas)
            or in_group[group.name] != group.replicas
        )
        if few or advised.get(key_of(worker.uid), 0) < ENOUGH_INTERVALS:
            continue
        removed = _with_removal(memory, group)
        if len(removed) > MOST_GROUPS:
            continue
        ahead = verdict.outlooks
        why = (
            f"{worker.name} is removed, since it takes {verdict.slowdown:.2g} times as long as expected: a step takes "
            f"{duration(ahead.rebalanced)} with its batch balanced, and {duration(ahead.removed or 0.0)} without it"
        )
        groups = tuple(
            replace(each, replicas=each.replicas - 1) if each.name == group.name else each for each in job.groups
        )
        event = Event("Warning", "WorkerRemoved", why)
        return Removing(replace(job, groups=groups), _with_removed(memory, removed), worker.name, event)
    return Removing(job, memory)


def _with_removed(memory: Remembered, removed: tuple[Resize, ...]) -> Remembered:
    return replace(memory, sizes=replace(memory.sizes, removed=removed))


def _still_holds(removal: Resize, group: Group | None, more: int) -> bool:
    """`more`: workers of the group that scaling has added."""
    if group is None or group.replicas != removal.replicas:
        return False
    return removal.replicas + removal.delta + more >= (group.min_replicas or 0)


def _with_removal(memory: Remembered, group: Group) -> tuple[Resize, ...]:
    """The removals with one more from the group, of which this is the present size."""
    removed = memory.sizes.removed
    before = next((each.delta for each in removed if each.group == group.name), 0)
    spec = group.replicas - sum(each.delta for each in (*removed, *memory.sizes.resized) if each.group == group.name)
    return (*(each for each in removed if each.group != group.name), Resize(group.name, spec, before - 1))
