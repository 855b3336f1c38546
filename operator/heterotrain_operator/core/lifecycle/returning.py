"""Stragglers that a plan leaves out without effect: their newcomers failed before anybody went over to it.

Until then all train as before, the straggler too. So it is a member of the next plan, with what was known of it, and
another newcomer may be tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain_operator.core.facts import Facts, ended, worker_name
from heterotrain_operator.core.lifecycle.ends import described_end
from heterotrain_operator.core.lifecycle.following import NOT_FOLLOWED, has_trained, is_carried_out, left_behind
from heterotrain_operator.core.memory.replacements import Replacement
from heterotrain_operator.core.model import Job, WorkerSeen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import key_of


@dataclass(frozen=True, slots=True)
class Returning:
    """A straggler that stays after all, the replacement that has failed, and what became of its newcomer."""

    worker: WorkerSeen
    entry: Replacement
    newcomer: str
    why: str


def returning(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Returning, ...]:
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
