"""Whether workers follow the plan that names others than before, and how long that may take.

All members go over to it between the same two steps. So it is carried out once one of them reports its generation, and
until then those that are to join are no members in any sense but that the plan names them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from heterotrain.contract import (
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_FINISHED,
    PHASE_PAUSED,
    PHASE_REFORMING,
    PHASE_STARTING,
    PHASE_TRAINING,
    Plan,
)
from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, ended
from heterotrain_operator.core.model import Job, WorkerMetrics, WorkerSeen, WorkerState
from heterotrain_operator.core.remembered_worker import KEY_LENGTH, key_of
from heterotrain_operator.core.state import Remembered, members_memory

SWITCH_STEPS = 5
"""Slow steps that a change may take at least: groups are made ahead, and all switch between two steps."""

DELIVERY_SECONDS = 90.0
"""So long a worker's volume may take to show a plan: the kubelet looks once a minute, at what may be half as old."""

NOT_FOLLOWED = "did not follow the plan that names it"
"""What is said of a newcomer that was named without effect; of several at once nobody knows whose fault that is."""

CUT_OFF = "does not answer, and the others train without it"
"""What is said of a member that was left behind since it was silent."""

LONG_WORK = frozenset({PHASE_STARTING, PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_PAUSED, PHASE_REFORMING})
"""Phases of a member in which no change can be carried out; they do not count against it."""

STEPPING_PHASES = frozenset({PHASE_TRAINING, PHASE_FINISHED, ""})
"""Phases in which steps are due. All others are declared pauses, bounded by the startup deadline."""

ENTERING = frozenset({PHASE_STARTING, PHASE_REFORMING})
"""Phases of a worker that takes over the state of the others, or meets them."""


def stayers(facts: Facts) -> list[WorkerSeen]:
    """Members of the active plan, by rank, that live and are not being taken away."""
    return [worker for worker in facts.members if worker is not None and _stays(facts, worker)]


def has_trained(worker: WorkerSeen) -> bool:
    """Whether a worker reports that it trains, or did, as a member of whatever plan."""
    return worker.metrics is not None and worker.metrics.generation >= 1


def is_carried_out(facts: Facts) -> bool:
    """Whether a member is read that follows the active plan's generation, so that all do."""
    return facts.plan is not None and any(each.generation >= facts.plan.generation for each in _read(facts))


def was_carried_out(facts: Facts, memory: Remembered) -> bool:
    """Whether members follow the active plan's generation, or were seen to at an earlier look, whoever is read now; of
    the memory that `noticed` has given.
    """
    seen = facts.plan is not None and memory.generation == facts.plan.generation and not memory.following.changing
    return seen or is_carried_out(facts)


def entrants(facts: Facts, memory: Remembered) -> frozenset[str]:
    """Members of the active plan, by name, that are to join by a change which nobody is known to have carried out; of
    the memory that `noticed` has given.
    """
    plan, joining = facts.plan, memory.following.joining
    if plan is None or joining <= 0 or memory.generation > plan.generation or is_carried_out(facts):
        return frozenset()
    return frozenset(member.name for member in plan.members[-joining:])


def outsiders(facts: Facts, memory: Remembered) -> frozenset[str]:
    """Members of the active plan, by name, that were to join and have not said yet that they train: the entrants, and
    those that take the state over from others, which have gone over already.
    """
    if facts.plan is None or not memory.following.entering:
        return entrants(facts, memory)
    keys = keys_in(memory.following.entering)
    named = frozenset(member.name for member in facts.plan.members if key_of(member.uid) in keys)
    return named | entrants(facts, memory)


def keys_in(keys: str) -> set[str]:
    """The workers' keys that stand one after the other."""
    return {keys[start : start + KEY_LENGTH] for start in range(0, len(keys), KEY_LENGTH)}


def leaving_keys(memory: Remembered) -> set[str]:
    """The keys of workers that were members of an earlier plan, and are to leave."""
    return keys_in(memory.following.leaving)


def leavers(facts: Facts, memory: Remembered, plan: Plan | None) -> set[str]:
    """Live workers, by name, that `plan`, which carries on what the members train, names no more; it is the active one,
    or the next.
    """
    if plan is None or not any(facts.members):
        return set()
    staying = {member.uid for member in plan.members}
    before = {worker.uid for worker in facts.members if worker is not None}
    keys = leaving_keys(memory)
    return {
        worker.name
        for worker in facts.live
        if worker.uid not in staying and (worker.uid in before or has_trained(worker) or key_of(worker.uid) in keys)
    }


def may_train_along(facts: Facts, memory: Remembered, worker: WorkerSeen) -> bool:
    """Whether a live worker that is no member any more may still train with those that are: nobody has gone over to the
    plan that lets it go, as far as is known.
    """
    was_member = has_trained(worker) or key_of(worker.uid) in leaving_keys(memory)
    return was_member and not is_carried_out(facts) and bool(stayers(facts))


def noticed(facts: Facts, memory: Remembered, now: float) -> Remembered:
    """Remember when a change is seen to be carried out: the next one counts from then on. Those that joined by it are
    members as soon as they say themselves that they train. Without a memory of the active plan those are to join that
    say that they have not trained, while others have.
    """
    plan = facts.plan
    if plan is None or memory.generation > plan.generation:
        return memory  # a newer one is not visible yet
    if memory.generation == plan.generation:
        memory = _entered(facts, memory)
        if not memory.following.changing or not is_carried_out(facts):
            return memory
        return replace(memory, following=replace(memory.following, changing=False, joining=0, changed_at=now))
    entering = _untrained_last(facts) if plan.continues else 0
    keys = "".join(key_of(member.uid) for member in plan.members[len(plan.members) - entering :])
    changing = not is_carried_out(facts)
    new = entering if changing else 0
    return replace(memory, following=replace(memory.following, changing=changing, joining=new, entering=keys))


def _entered(facts: Facts, memory: Remembered) -> Remembered:
    """The memory without those that were to join and say now that they train."""
    before = memory.following.entering
    if not before:
        return memory
    inside = {key_of(worker.uid) for worker in facts.members if worker is not None and has_trained(worker)}
    keys = (before[start : start + KEY_LENGTH] for start in range(0, len(before), KEY_LENGTH))
    entering = "".join(key for key in keys if key not in inside)
    return memory if entering == before else replace(memory, following=replace(memory.following, entering=entering))


def _untrained_last(facts: Facts) -> int:
    """How many of the last members have not trained, while some have."""
    if not any(worker is not None and has_trained(worker) for worker in facts.members):
        return 0
    untrained = (
        worker is not None and worker.metrics is not None and not has_trained(worker)
        for worker in reversed(facts.members)
    )
    return sum(1 for _ in takewhile(bool, untrained))


def timed(job: Job, facts: Facts, memory: Remembered, now: float) -> Remembered:
    """The memory in which a pause that members have declared counts against no change, for as long as workers may take
    to start.
    """
    if memory.following.changed_at is None and memory.published_at is None:
        return memory
    if memory.following.changed_at is None:
        return replace(memory, following=replace(memory.following, changed_at=memory.published_at))
    since = now - (memory.published_at if memory.published_at is not None else now)
    pausing = any(
        worker.metrics is not None and worker.metrics.phase in LONG_WORK and has_trained(worker)
        for worker in stayers(facts)
    )
    if not pausing or since > job.startup_deadline_seconds or not _behind(facts):
        return memory
    return replace(memory, following=replace(memory.following, changed_at=now))


def awaited(job: Job, facts: Facts, memory: Remembered, now: float) -> list[WorkerSeen]:
    """Members that do not report the active plan's generation yet, while that is waited for; nobody where a member has
    ended, or one that was to join is taken away, since that change cannot be carried out any more.
    """
    behind, coming = _behind(facts), entrants(facts, memory)
    if not behind or any(worker is None or ended(worker) for worker in facts.members):
        return []
    if any(worker is not None and worker.name in coming and not _stays(facts, worker) for worker in facts.members):
        return []
    waits = not _is_overdue(job, facts, memory, now)
    return behind if waits or any(_is_entering(job, facts, each, memory, now) for each in behind) else []


def left_behind(job: Job, facts: Facts, memory: Remembered, now: float) -> list[WorkerSeen]:
    """Newcomers that are members of the active plan, and have not followed it in time."""
    if not _is_overdue(job, facts, memory, now):
        return []
    return [
        worker
        for worker in _behind(facts)
        if not has_trained(worker) and not _is_entering(job, facts, worker, memory, now)
    ]


def cut_off(job: Job, facts: Facts, memory: Remembered, now: float) -> list[WorkerSeen]:
    """Members that have not answered for the heartbeat's timeout, and without which the others say that they train:
    they are stopped, or nobody reaches them. One that only the operator cannot read trains with the others, which say
    so.
    """
    plan = facts.plan
    silent = [rank for rank, worker in enumerate(facts.members) if worker is not None and _is_silent(facts, worker)]
    if plan is None or not silent or facts.metrics_problem:
        return []
    together = max((each.members for each in _read(facts) if each.generation == plan.generation), default=0)
    gone = sum(worker is None or not _stays(facts, worker) for worker in facts.members)
    if not together or len(plan.members) - together < gone + len(silent):
        return []  # of several silent ones some may train with the others
    latest, known = now - job.heartbeat_timeout_seconds, members_memory(memory, plan)
    late = (facts.members[rank] for rank in silent if 0 < known[rank].silent_since <= latest)
    return [worker for worker in late if worker is not None]


def replaced_in_silence(facts: Facts, memory: Remembered) -> set[str]:
    """Live workers, by name, that are replaced since they were cut off, and do not answer now, either."""
    keys = {place.key for place in memory.pending if place.why.endswith(CUT_OFF)}
    return {each.name for each in facts.live if each.metrics is None and key_of(each.uid) in keys} if keys else set()


def _is_silent(facts: Facts, worker: WorkerSeen) -> bool:
    return worker.metrics is None and _stays(facts, worker)


def _stays(facts: Facts, worker: WorkerSeen) -> bool:
    return facts.states[worker.name] is WorkerState.MEMBER and not worker.node_lost


def _read(facts: Facts) -> list[WorkerMetrics]:
    return [worker.metrics for worker in facts.members if worker is not None and worker.metrics is not None]


def _behind(facts: Facts) -> list[WorkerSeen]:
    """Members that are read and report an earlier generation than the active plan's."""
    assert facts.plan is not None
    generation = facts.plan.generation
    return [each for each in stayers(facts) if each.metrics is not None and each.metrics.generation < generation]


def _waited(memory: Remembered, now: float) -> float:
    changed_at = memory.following.changed_at
    return now - (changed_at if changed_at is not None else now)


def _is_entering(job: Job, facts: Facts, worker: WorkerSeen, memory: Remembered, now: float) -> bool:
    """Whether a worker is on its way in, as the others have gone over already: the state that it takes over may be
    large, and it has as long for it as workers may take to start.
    """
    entering = worker.metrics is not None and worker.metrics.phase in ENTERING
    return entering and is_carried_out(facts) and _waited(memory, now) <= job.startup_deadline_seconds


def _is_overdue(job: Job, facts: Facts, memory: Remembered, now: float) -> bool:
    """Whether the time for the active plan's change is over.

    As long as nobody has switched, volumes may not show the plan. Once somebody has, all have that train on, for they
    switch together; what others report is then likely old, as where a server scrapes workers twice a minute, and those
    that were to join and are not there will not come. While members that should take steps stand still, nobody can go
    over, and whoever is to join has nothing to follow.
    """
    steps = [each.phase in STEPPING_PHASES for each in _read(facts) if each.generation >= 1]
    advanced_at = memory.progress.advanced_at
    until = min(now, advanced_at) if steps and all(steps) and advanced_at is not None else now
    slow = min(SWITCH_STEPS * memory.progress.slow_step_seconds, job.startup_deadline_seconds)
    usual = job.progress_timeout_seconds if is_carried_out(facts) else DELIVERY_SECONDS
    return _waited(memory, until) >= max(SETTLE_SECONDS, slow, usual)
