"""A job at its present size: the rest of a decision is given a job with other replicas, and knows of no scaling.

A group's size holds until its `replicas` are edited, until scaling is turned off, or until all workers start again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, group_of, worker_name
from heterotrain_operator.core.lifecycle.membership import newcomers
from heterotrain_operator.core.lifecycle.placement import unready
from heterotrain_operator.core.model import Event, Group, Job
from heterotrain_operator.core.remembered.sizes import LONGEST_WHY, MOST_TRIES, Refusal, Resize, Sizes
from heterotrain_operator.core.state import Remembered

LEFT_ALONE_SECONDS = 600.0
"""A group that did not get its workers is left alone for so long, and then twice as long each time."""

MOST_DOUBLINGS = 10
"""After which the time does not grow any more; it is a week then."""


def bounds_of_size(group: Group) -> tuple[int, int]:
    """Fewest and most workers that scaling may give a group, as the job's spec has it."""
    least = min(1, group.replicas) if group.min_replicas is None else group.min_replicas
    most = group.replicas if group.max_replicas is None else group.max_replicas
    return min(least, group.replicas), max(most, group.replicas)


def scales(job: Job) -> bool:
    """Whether the number of workers is to be found."""
    return job.scaling.condition != "None"


def sized(job: Job, memory: Remembered) -> Job:
    """The job with its present replicas: without stragglers that were removed, and with what scaling has found. The
    memory is that of `still_resized`.
    """
    return _resized(job, memory.sizes, 1)


def as_in_spec(job: Job, sizes: Sizes) -> Job:
    """The job at its present size as its spec has it: what `sized` was given."""
    return _resized(job, sizes, -1)


def differences(sizes: Sizes) -> Counter[str]:
    """By how many workers each group is larger than in the spec."""
    deltas: Counter[str] = Counter()
    for each in (*sizes.removed, *sizes.resized):
        deltas[each.group] += each.delta
    return deltas


def _resized(job: Job, sizes: Sizes, sign: int) -> Job:
    if not sizes.removed and not sizes.resized:
        return job
    deltas = differences(sizes)
    groups = (replace(group, replicas=max(group.replicas + sign * deltas[group.name], 0)) for group in job.groups)
    return replace(job, groups=tuple(groups))


def still_resized(job: Job, memory: Remembered) -> Remembered:
    """Without sizes of groups that were edited since, within the bounds, and without any where nobody wants them any
    more; what was measured begins again then.
    """
    sizes = memory.sizes
    if not scales(job):
        return memory if sizes == Sizes(removed=sizes.removed) else replace(memory, sizes=Sizes(removed=sizes.removed))
    groups = {group.name: group for group in job.groups}
    kept = tuple(
        replace(each, delta=min(max(each.delta, least - each.replicas), most - each.replicas))
        for each in sizes.resized
        if each.group in groups and groups[each.group].replicas == each.replicas
        for least, most in (bounds_of_size(groups[each.group]),)
    )
    if kept == sizes.resized:
        return memory
    if len(kept) == len(sizes.resized):
        return replace(memory, sizes=replace(sizes, resized=kept))
    return replace(memory, sizes=replace(sizes.searched_again(), resized=kept, refusals=()))


def with_replicas(job: Job, sizes: Sizes, group: str, replicas: int) -> Sizes:
    """The sizes in which the group of the job, which is at its present size, has so many workers."""
    present = group_of(job, group).replicas
    before = next((each.delta for each in sizes.resized if each.group == group), 0)
    delta = before + replicas - present
    others = tuple(each for each in sizes.resized if each.group != group)
    spec = group_of(as_in_spec(job, sizes), group).replicas
    return replace(sizes, resized=(*others, Resize(group, spec, delta)) if delta else others)


def taken_back(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Job, Remembered, tuple[Event, ...]]:
    """The job at its size without workers on their way that are not to be had: that the backend refused, or that have
    not joined within the time in which workers may start. Their group is left alone for a while.
    """
    sizes = memory.sizes
    if sizes.resized_at is None or facts.plan is None or not any(facts.members):
        return job, memory, ()
    late = now - sizes.resized_at > job.startup_deadline_seconds + SETTLE_SECONDS
    asked = memory.start.pods_created_at is not None and memory.start.pods_created_at >= sizes.resized_at
    present = Counter(member.group for member in facts.plan.members)
    coming = newcomers(facts, memory)
    events: list[Event] = []
    for group in job.groups:
        absent = group.replicas - present[group.name]
        refused = _refused(job, facts, group.name) if asked else []  # else they are of an earlier try
        if absent <= 0 or not (late or refused):
            continue
        gone = absent if late else min(len(refused), absent)
        waiting = unready([each for each in coming if each.group == group.name], facts.states)
        why = next(iter(refused), "") or next(iter(waiting), "not there")
        replicas = group.replicas - gone
        sizes = with_replicas(job, sizes, group.name, replicas)
        sizes = replace(sizes, refusals=_with_refusal(sizes, group.name, now, why))
        pause = _pause(next(each.tries for each in sizes.refusals if each.group == group.name))
        message = f"{group.name} {group.replicas} -> {replicas}: {gone} of the workers that were to join are given up"
        message = f"{message} ({why}); no more are asked for within {pause / 60:.0f} minutes"
        events.append(Event("Warning", "ScalingGivenUp", message))
        groups = (replace(each, replicas=replicas) if each.name == group.name else each for each in job.groups)
        job = replace(job, groups=tuple(groups))
        sizes = replace(sizes, said=message[:LONGEST_WHY])
    return job, memory if sizes == memory.sizes else replace(memory, sizes=sizes), tuple(events)


def _refused(job: Job, facts: Facts, group: str) -> list[str]:
    """Why workers of the group were refused, of each that was."""
    prefix = worker_name(job.name, group, 0).removesuffix("0")
    return [why for name, why in facts.refused.items() if name.removeprefix(prefix).isdecimal()]


def _with_refusal(sizes: Sizes, group: str, now: float, why: str) -> tuple[Refusal, ...]:
    before = next((each for each in sizes.refusals if each.group == group), Refusal(group, 0, 0.0))
    if before.until > now:  # of the same workers others were given up before
        return sizes.refusals
    others = (each for each in sizes.refusals if each.group != group)
    tries = min(before.tries + 1, MOST_TRIES)
    return (*others, Refusal(group, tries, now + _pause(tries), why[:LONGEST_WHY]))


def _pause(tries: int) -> float:
    return LEFT_ALONE_SECONDS * 2.0 ** min(tries - 1, MOST_DOUBLINGS)
