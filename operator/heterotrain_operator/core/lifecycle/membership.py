"""Which members the next generation has, of a group that can lose and gain members while it trains.

A change is one plan: who trains and stays, in the order that they have, and after them who joins. Workers carry it out
by themselves, and go on without those that end before the operator knows. So nothing here waits for all workers that
the job wants. At most one change is under way: until all members report its generation, or for a bounded time, after
which newcomers that did not follow are left out.

A straggler may be left out without effect: its newcomer failed before anybody went over to the plan. Until then all
train as before, the straggler too. So it returns: it is a member of the next plan, with what was known of it, and
another newcomer may be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import MAX_EVICTED, MEMBERS_MAY_END
from heterotrain_operator.core.facts import Facts, ended, worker_name
from heterotrain_operator.core.lifecycle.ends import described_end
from heterotrain_operator.core.lifecycle.following import (
    NOT_FOLLOWED,
    entrants,
    has_trained,
    is_carried_out,
    keys_in,
    leaving_keys,
    left_behind,
    stayers,
    was_carried_out,
)
from heterotrain_operator.core.model import Job, WorkerSeen, WorkerState
from heterotrain_operator.core.remembered.replacements import Replacement
from heterotrain_operator.core.remembered_worker import key_of
from heterotrain_operator.core.state import Remembered


@dataclass(frozen=True, slots=True)
class Returning:
    """A straggler that stays after all, the replacement that has failed, and what became of its newcomer."""

    worker: WorkerSeen
    entry: Replacement
    newcomer: str
    why: str


def returning(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Returning, ...]:
    """The stragglers that are to be members again, as far as is known."""
    plan = facts.plan
    if not memory.remedies.replacing or plan is None or not any(facts.members) or is_carried_out(facts):
        return ()
    planned = {member.name: worker for member, worker in zip(plan.members, facts.members, strict=True)}
    behind = {worker.name for worker in left_behind(job, facts, memory, now)}
    training = {
        key_of(worker.uid): worker
        for worker in facts.live
        if worker.name not in planned and worker.deleting_since is None and not worker.node_lost
    }
    found = []
    for entry in memory.remedies.replacing:
        name, worker = worker_name(job.name, entry.group, entry.index), training.get(entry.key)
        if name not in planned or worker is None or not (worker.metrics is None or has_trained(worker)):
            continue
        why = f"{name} {NOT_FOLLOWED}" if name in behind else _lost(name, planned[name])
        if why:
            found.append(Returning(worker, entry, name, why))
    return tuple(found)


def _lost(name: str, newcomer: WorkerSeen | None) -> str:
    """What became of a newcomer that the plan names, in words; empty if it lives and may stay."""
    if newcomer is None:
        return f"{name} vanished"
    if ended(newcomer):
        return described_end(newcomer)
    return f"{name} is being taken away" if newcomer.deleting_since is not None or newcomer.node_lost else ""


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


def with_protocol(facts: Facts, memory: Remembered) -> Remembered:
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


def can_change(facts: Facts, memory: Remembered) -> bool:
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


def newcomers(facts: Facts, memory: Remembered) -> list[WorkerSeen]:
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


def joiners(facts: Facts, memory: Remembered) -> list[WorkerSeen]:
    """Newcomers that can become members at once. Those in whose places others never became members join alone, so that
    one which nobody reaches keeps no other out.
    """
    warm = (worker for worker in newcomers(facts, memory) if facts.states[worker.name] is WorkerState.WARM)
    able = [worker for worker in warm if worker.metrics is not None and worker.metrics.protocol >= MEMBERS_MAY_END]
    doubtful = {place.identity for place in memory.pending if place.why.endswith(NOT_FOLLOWED)}
    return [worker for worker in able if (worker.group, worker.index) not in doubtful] or able[:1]


def taken(job: Job, facts: Facts, memory: Remembered, leaving: Collection[str] = ()) -> list[WorkerSeen]:
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
    memory: Remembered,
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


def _leaving(facts: Facts, memory: Remembered, staying: Collection[str]) -> str:
    """The keys of workers that live, and are members no more; those that were to join are newcomers again."""
    coming, before = entrants(facts, memory), leaving_keys(memory)
    over = {worker.name for worker in facts.members if worker is not None} - coming - set(staying)
    keys = ((worker.name, key_of(worker.uid)) for worker in facts.live)
    return "".join(key for name, key in keys if name in over or (key in before and name not in staying))


def _has_state(worker: WorkerSeen, memory: Remembered) -> bool:
    """Whether a member holds the state of the training, as far as is known: one that is not read does, if these workers
    have trained at all.
    """
    return memory.progress.stepped if worker.metrics is None else worker.metrics.generation >= 1


def evicted(facts: Facts, memory: Remembered, staying: Collection[str]) -> tuple[str, ...]:
    """UIDs of the workers without which those that are `staying`, by UID, go on by the next plan's word, without a
    quorum; none if that would not be safe.

    Those that are left go on by themselves where they are a majority, or can prove that the others have ended. A worker
    that ends after it was silent for long proves nothing to the others: it may have gone on without them before. Then
    they wait for the operator's word, which would split the job if it were wrong. So it is given only

    * of workers whose exit code was seen, which their own machine reports. Nobody on a node that does not answer is
      seen to end, and a pod that was deleted by force, or that is only not there any more, may still run.
    * if nobody else could train beside the members of the next plan: everybody whom the active plan names is one of
      them, or was seen to end. The active plan speaks for all before it if a member has gone over to it, since every
      later attempt needs a majority of that one; or if it gives the word itself, so that this was so by then.

    Of this only that is remembered, beside the plan itself: that a member was seen to have gone over to it. Nobody goes
    back, and in the look that shows who has ended those that are left may not be read. Where the operator has missed
    something, it says nothing, and the workers start again from their checkpoint once they have waited for long enough.
    """
    plan = facts.plan
    if plan is None or len(facts.members) != len(plan.members):
        return ()
    is_followed = was_carried_out(facts, memory)
    before = () if is_followed else plan.evicted
    if not before and not is_followed:
        return ()
    missing = [
        (member, worker if worker is not None else facts.departed.get(member.name))
        for member, worker in zip(plan.members, facts.members, strict=True)
        if member.uid not in staying
    ]
    if any(seen is None or seen.uid != member.uid or seen.exit_code is None for member, seen in missing):
        return ()
    uids = (*before, *(member.uid for member, _ in missing))
    return uids if len(uids) <= MAX_EVICTED and not set(uids) & set(staying) else ()
