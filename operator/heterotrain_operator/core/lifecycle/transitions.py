"""Changes of the members: who joined and left, each told once and why, and for how long the workers stood still.

A change is counted once all members report that they have gone over. Steps that were committed meanwhile are no
standstill, so what is left of the time beside them is; the estimate is as coarse as a step and the looks are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterotrain.foreign import as_text
from heterotrain_operator.core.facts import NAMED, Facts, ended, listed, worker_name
from heterotrain_operator.core.lifecycle.ends import described_departure, described_end, has_left
from heterotrain_operator.core.lifecycle.following import keys_in, outsiders, stayers
from heterotrain_operator.core.lifecycle.membership import Change
from heterotrain_operator.core.model import Event, Job, WorkerMetrics
from heterotrain_operator.core.remembered.members import (
    LONGEST_WHY,
    Passage,
    Passages,
    Slot,
    TransitionRecord,
    with_newest,
)
from heterotrain_operator.core.remembered.replacements import Replacement
from heterotrain_operator.core.remembered_worker import key_of
from heterotrain_operator.core.state import Remembered


def step_of(facts: Facts, memory: Remembered) -> int:
    """The steps that are committed, as far as is known: by workers that are read, the last words of others, and what
    was seen before, since workers that end together can all not be read any more.
    """
    read = [worker.metrics.step for worker in facts.everybody if worker.metrics is not None]
    return max([0, *read, *(worker.step for worker in facts.everybody), memory.progress.progress_step])


def joined(
    job: Job, facts: Facts, stored: Remembered, memory: Remembered, now: float
) -> tuple[Remembered, tuple[Event, ...]]:
    """Who has said since the look before, which `stored` this memory, that it trains with others that did before."""
    plan = facts.plan
    if plan is None or not stored.following.entering or stored.generation != memory.generation:
        return memory, ()
    inside = keys_in(stored.following.entering) - keys_in(memory.following.entering)
    names = [member.name for member in plan.members if key_of(member.uid) in inside]
    if not names:
        return memory, ()
    reasons = _places(job, memory)
    step = step_of(facts, memory)
    new = [Passage(name, step, now, *reasons.get(name, ("more workers are wanted", ""))) for name in names]
    took = {each.other: each.name for each in new if each.other}
    departures = tuple(
        replace(each, other=took[each.name]) if each.name in took and not each.other else each
        for each in memory.passages.departures
    )
    passages = Passages(with_newest(memory.passages.arrivals, new), departures)
    return replace(memory, passages=passages), _told("WorkerJoined", "trains since step", new)


def left(
    job: Job, facts: Facts, memory: Remembered, now: float, change: Change
) -> tuple[Remembered, tuple[Event, ...]]:
    """Who is no member any more by a change; `memory` is the one before it. Newcomers that never trained with the
    others have not left them, nor have those that have finished the job.
    """
    coming, step = outsiders(facts, memory), step_of(facts, memory)
    finished = {worker.name for worker in facts.finished}
    names = [name for name in change.left if name not in coming | finished]
    new = [Passage(name, step, now, *_why_left(job, facts, memory, change, name)) for name in names]
    departures = tuple(each for each in memory.passages.departures if each.name not in change.returned)
    passages = replace(memory.passages, departures=with_newest(departures, new))
    return replace(memory, passages=passages), _told("WorkerLeft", "left at step", new)


def _places(job: Job, memory: Remembered) -> dict[str, tuple[str, str]]:
    """Why newcomers are there, and in whose place, by name."""
    waiting: tuple[Slot | Replacement, ...] = (*memory.pending, *memory.remedies.replacing)
    return {
        worker_name(job.name, each.group, each.index): (
            as_text(f"in place of {each.replaces}: {each.why}", LONGEST_WHY),
            each.replaces,
        )
        for each in waiting
        if each.replaces
    }


def _why_left(job: Job, facts: Facts, memory: Remembered, change: Change, name: str) -> tuple[str, str]:
    """Why a member leaves, and who takes its place by the same change."""
    assert facts.plan is not None
    by_name = {member.name: worker for member, worker in zip(facts.plan.members, facts.members, strict=True)}
    worker = by_name[name]
    if worker is None:
        gone = facts.departed.get(name)
        return as_text(described_departure(gone) if gone is not None else "its pod is gone", LONGEST_WHY), ""
    if has_left(worker):
        return "it was asked to stop, and left in order", ""
    if ended(worker) or worker.node_lost or worker.deleting_since is not None:
        return as_text(described_end(worker), LONGEST_WHY), ""
    for entry in memory.remedies.replacing:
        newcomer = worker_name(job.name, entry.group, entry.index)
        if entry.replaces == name and newcomer in change.joined:
            return as_text(f"{newcomer} takes its place: {entry.why}", LONGEST_WHY), newcomer
    given_up = next((place.why for place in memory.pending if place.key == key_of(worker.uid)), "")
    if given_up:
        return given_up, ""
    named = {known.key for known in memory.workers if known.evidence.named}
    if job.stragglers.action == "Remove" and key_of(worker.uid) in named:
        return "it is a straggler, and the others are faster without it", ""
    return "fewer workers are wanted", ""


def _told(reason: str, what: str, passages: Sequence[Passage]) -> tuple[Event, ...]:
    """An event for each of the first few, and one for the others."""
    each = [f"{passage.name} {what} {passage.step}: {passage.why}" for passage in passages[:NAMED]]
    rest = [passage.name for passage in passages[NAMED:]]
    if rest:
        each.append(f"{listed(rest)} {what} {passages[0].step}, too")
    return tuple(Event("Normal", reason, message) for message in each)


LEAST_SECONDS = 0.05
"""A shorter standstill is within what the estimate errs by."""

GREATEST_SECONDS = 600.0
"""A change that took longer waited for something else, and says little about the next one."""

NEWEST_WEIGHT = 0.5
"""Of the newest change in the moving average."""


def begun(facts: Facts, memory: Remembered, change: Change, now: float) -> Remembered:
    """The memory once a plan with other members was published."""
    kind = "swap" if change.joined and change.left else "join" if change.joined else "leave"
    if change.returned and not change.joined and len(change.left) == len(change.returned):
        kind = ""  # those that train are the same as before
    read = [worker.metrics for worker in stayers(facts) if worker.metrics is not None]
    transitions = replace(
        memory.transitions,
        switching=kind,
        switching_at=now,
        switching_step=max((metrics.step for metrics in read), default=-1),
        switching_seconds=_step_seconds(read) or memory.progress.slow_step_seconds,
    )
    return replace(memory, transitions=transitions)


def carried_out(facts: Facts, memory: Remembered, now: float) -> Remembered:
    """The memory after a look: a change that all have carried out is counted, and its standstill remembered."""
    if not memory.transitions.switching or facts.plan is None:
        return memory
    members = [worker.metrics for worker in facts.members if worker is not None and worker.metrics is not None]
    generations = [metrics.generation for metrics in members]
    if len(members) < len(facts.members) or min(generations) < facts.plan.generation:
        return memory
    step = max(metrics.step for metrics in members)
    return replace(memory, transitions=_counted(memory.transitions, step, now))


def _counted(before: TransitionRecord, step: int, now: float) -> TransitionRecord:
    """With the change that was under way, which ended by now, when so many steps (`step`) were committed."""
    steps = step - before.switching_step
    begun_at = before.switching_at if before.switching_at is not None else now
    after = before.counted()
    if before.switching_step < 0 or before.switching_seconds <= 0 or steps < 0:
        return after
    still = max(now - begun_at - steps * before.switching_seconds, LEAST_SECONDS)
    if still > GREATEST_SECONDS:
        return after
    known = before.transition_seconds or still
    mean = known + NEWEST_WEIGHT * (still - known)
    return replace(after, transition_seconds=mean, idle_seconds=before.idle_seconds + still)


def _step_seconds(read: Sequence[WorkerMetrics]) -> float:
    """A whole step under the plan before, as the members say; 0 if nobody's counters show it."""
    whole = [(each.own_seconds + each.wait_seconds) / each.steps for each in read if 1 <= each.steps < math.inf]
    sound = [seconds for seconds in whole if 0 < seconds < math.inf]
    return max(sound, default=0.0)
