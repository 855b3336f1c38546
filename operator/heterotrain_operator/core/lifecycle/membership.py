"""Which members the next generation has, of a group that can lose and gain members while it trains.

A change is one plan: who trains and stays, in the order that they have, and after them who joins. Workers carry it out
by themselves, and go on without those that end before the operator knows. So nothing here waits for all workers that
the job wants. At most one change is under way: until all members report its generation, or for a bounded time, after
which newcomers that did not follow are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.facts import Facts, ended
from heterotrain_operator.core.lifecycle.ends import has_left
from heterotrain_operator.core.lifecycle.following import (
    NOT_FOLLOWED,
    entrants,
    has_trained,
    keys_in,
    leaving_keys,
    outsiders,
    stayers,
    was_carried_out,
)
from heterotrain_operator.core.lifecycle.returning import Returning
from heterotrain_operator.core.model import Job, WorkerSeen, WorkerState
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import key_of


@dataclass(frozen=True, slots=True)
class Change:
    """The members of the next generation by rank, those that are new and those that are not members any more by name,
    and the generation whose training they carry on. `entering` are the keys of members that have not said yet that they
    train, and `leaving` those of workers that are to leave, and live. Those that `returned` train, but the plan before
    does not name them.
    """

    members: tuple[WorkerSeen, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    continues: int
    entering: str = ""
    leaving: str = ""
    returned: tuple[str, ...] = ()


def with_protocol(facts: Facts, memory: Memory) -> Memory:
    """Remember the protocol that all members of the active plan speak. A process speaks one for its whole life, so a
    reading that lacks it changes nothing. Without a memory of these members it is that of all that live, once these are
    read; if they were not then, it is known once all members are.
    """
    if facts.plan is None:
        return memory
    read = [worker.metrics for worker in facts.members if worker is not None and worker.metrics is not None]
    if memory.protocol >= MEMBERS_MAY_END and facts.plan.generation == memory.generation:
        # Over NCCL workers learn only when they have met that they can do less than they said before.
        met = [metrics.protocol for metrics in read if metrics.generation >= facts.plan.generation]
        known = min([memory.protocol, *met])
    else:
        forgotten = memory.generation != facts.plan.generation
        silent = any(
            not forgotten if worker is None or ended(worker) else worker.metrics is None for worker in facts.members
        )
        known = min(each.protocol for each in read) if read and not silent else 1
    return memory if known == memory.protocol else replace(memory, protocol=known)


def can_change(facts: Facts, memory: Memory) -> bool:
    """Whether members can change while others train: all speak the protocol, and somebody is there to carry on."""
    return memory.protocol >= MEMBERS_MAY_END and any(_has_state(each, memory) for each in stayers(facts))


def has_lost_state(facts: Facts) -> bool:
    """Whether all members are read, and none has the state that they are to carry on, so that none ever trains."""
    return (
        facts.plan is not None
        and facts.plan.continues > 0
        and all(worker is not None and worker.metrics is not None for worker in facts.members)
        and not any(has_trained(worker) for worker in facts.members if worker is not None)
    )


def has_finished(facts: Facts, memory: Memory) -> bool:
    """Whether every member that has trained has finished; others may be there that were to join, and are too late, or
    have ended of that, and others left. Where members go on without one that ends, one is left out that is lost once a
    member of lower rank has finished: that one has committed the last step with all that were left, and the final
    checkpoint is saved.
    """
    assert facts.plan is not None
    names, coming = {worker.name for worker in facts.finished}, outsiders(facts, memory)
    goes_on, any_has = memory.protocol >= MEMBERS_MAY_END, memory.following.ending
    for member, worker in zip(facts.plan.members, facts.members, strict=True):
        if worker is not None and worker.name in names:
            any_has = True
        elif worker is not None and has_left(worker):
            continue
        elif member.name in coming:
            if worker is not None and not ended(worker) and has_trained(worker):
                return False
        elif not ((goes_on and any_has and _is_lost(facts, member.name, worker)) or _never_trained(worker)):
            return False
    return any_has


def first_has_finished(facts: Facts, memory: Memory) -> bool:
    """Whether the first member that was left has finished: it has committed the last step with all that were left, and
    those that have yet to finish repeat nothing that is not done.
    """
    if memory.following.ending:
        return True
    names, coming = {worker.name for worker in facts.finished}, outsiders(facts, memory)
    there = (worker for worker in facts.members if worker is None or not (worker.name in coming or has_left(worker)))
    first = next(there, None)
    return first is not None and first.name in names


def _is_lost(facts: Facts, name: str, worker: WorkerSeen | None) -> bool:
    """Whether a member has ended or its node does not answer, and it did not say that no other try may be made."""
    there = worker if worker is not None else facts.departed.get(name)
    fatal = there is not None and ended(there) and there.fatal
    return not fatal and (worker is None or ended(worker) or worker.node_lost)


def _never_trained(worker: WorkerSeen | None) -> bool:
    """Whether a member lives and is read to have followed no plan."""
    return worker is not None and not ended(worker) and worker.metrics is not None and not has_trained(worker)


def newcomers(facts: Facts, memory: Memory) -> list[WorkerSeen]:
    """Live workers that are no members and have not trained, in plan order."""
    members = {worker.name for worker in facts.members if worker is not None}
    if len(members) == len(facts.workers):
        return []
    replaced = {place.key for place in memory.pending} | leaving_keys(memory)
    return [
        worker
        for worker in facts.live
        if worker.name not in members
        and worker.deleting_since is None
        and not worker.node_lost
        and not has_trained(worker)
        and key_of(worker.uid) not in replaced
    ]


def joiners(facts: Facts, memory: Memory) -> list[WorkerSeen]:
    """Newcomers that can become members at once. Those in whose places others never became members join alone, so that
    one which nobody reaches keeps no other out.
    """
    warm = (worker for worker in newcomers(facts, memory) if facts.states[worker.name] is WorkerState.WARM)
    able = [worker for worker in warm if worker.metrics is not None and worker.metrics.protocol >= MEMBERS_MAY_END]
    doubtful = {place.identity for place in memory.pending if place.why.endswith(NOT_FOLLOWED)}
    return [worker for worker in able if (worker.group, worker.index) not in doubtful] or able[:1]


def taken(job: Job, facts: Facts, memory: Memory, leaving: Collection[str] = ()) -> list[WorkerSeen]:
    """Members beyond their group's replicas, of those that are not `leaving` in any case: stragglers first, then the
    greatest indices.
    """
    named = {known.key for known in memory.workers if known.evidence.named}
    replicas = {group.name: group.replicas for group in job.groups}
    there = [worker for worker in stayers(facts) if worker.name not in leaving]
    over = Counter(worker.group for worker in there)
    over.subtract(replicas)
    found = []
    for worker in sorted(there, key=lambda each: (key_of(each.uid) in named, each.index), reverse=True):
        if over[worker.group] > 0:
            over[worker.group] -= 1
            found.append(worker)
    return found


def change(
    facts: Facts,
    memory: Memory,
    without: Collection[str],
    *,
    joins: bool = True,
    back: Sequence[Returning] = (),
) -> Change | None:
    """The members that the next generation has: all that are there and stay but those named in `without`, those that
    are `back`, and all that can join (`joins`). None if these are the members already, or nobody would be there to
    carry on.
    """
    plan = facts.plan
    returned = [each.worker for each in back if each.worker.name not in without]
    stay = [*(worker for worker in stayers(facts) if worker.name not in without), *returned]
    if plan is None or not any(_has_state(worker, memory) for worker in stay):
        return None
    joining = [worker for worker in joiners(facts, memory) if joins and worker.name not in without]
    members = (*stay, *joining)
    names = {worker.name for worker in stay}
    left = tuple(member.name for member in plan.members if member.name not in names)
    if not left and not joining:
        return None
    reported = [worker.metrics.generation for worker in stay if worker.metrics is not None]
    possible = [generation for generation in reported if 1 <= generation <= plan.generation]
    # While nobody is known to have gone over to it, all may train what it carries on, and accept no later generation.
    known = plan.generation if was_carried_out(facts, memory) else plan.continues or plan.generation
    goes_on = max(possible, default=known)
    new = keys_in(memory.following.entering) | {key_of(worker.uid) for worker in joining}
    entering = "".join(key for key in (key_of(worker.uid) for worker in members) if key in new)
    joined = tuple(worker.name for worker in joining)
    again = tuple(worker.name for worker in returned)
    return Change(members, joined, left, goes_on, entering, _leaving(facts, memory, names), again)


def _leaving(facts: Facts, memory: Memory, staying: Collection[str]) -> str:
    """The keys of workers that live, and are members no more; those that were to join are newcomers again."""
    coming, before = entrants(facts, memory), leaving_keys(memory)
    over = {worker.name for worker in facts.members if worker is not None} - coming - set(staying)
    keys = ((worker.name, key_of(worker.uid)) for worker in facts.live)
    return "".join(key for name, key in keys if name in over or (key in before and name not in staying))


def _has_state(worker: WorkerSeen, memory: Memory) -> bool:
    """Whether a member holds the state of the training, as far as is known: one that is not read does, if these workers
    have trained at all.
    """
    return memory.progress.stepped if worker.metrics is None else worker.metrics.generation >= 1
