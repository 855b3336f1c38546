"""An observation sorted out: which workers live, finished or failed, and which members of the active plan are there.

Level-triggered: everything is derived again from what is seen now, so no missed event can mislead a decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heterotrain.contract import PHASE_PAUSED, PHASE_PREPARING, PHASE_WARMING, Evaluated, Plan
from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.model import Group, Job, Seen, WorkerKey, WorkerMetrics, WorkerSeen, WorkerState
from heterotrain_operator.core.split.multiples import Bounds, last_multiple, next_multiple

SETTLE_SECONDS = 10.0
"""For so long what was just asked for may still be under way: a plan that is not followed yet, a pod not yet seen."""

GREATEST_CLAIM = MAX_WHOLE // 2
"""Beyond this a worker may only say that it follows the active plan, so that one report cannot use the versions up."""

NAMED = 8
"""Workers that a message names before it only counts them."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One observation, sorted: `workers` of the job's groups in plan order (group, then index), each name
    once.

    `without_group` are pods of groups that the job does not have. `members` are the workers of the active plan
    by rank, None where the very worker (name and UID) is not there. `refused`: by name, why pods could not be created.
    `departed`: by name, members that are not there, as they were seen last, where that is known. `states` are, by name,
    those of all that are there and of members that are not. Of the workers some are `live`, the others `finished` (the
    job's last step was committed) or `failed`; `lost` are those live as far as is known, on nodes that do not answer.
    The parameter `server` of an asynchronous job is none of them; it is `server_unready` for these reasons.
    """

    workers: tuple[WorkerSeen, ...]
    without_group: tuple[str, ...]
    plan: Plan | None
    members: tuple[WorkerSeen | None, ...]
    states: Mapping[str, WorkerState]
    live: tuple[WorkerSeen, ...]
    finished: tuple[WorkerSeen, ...]
    failed: tuple[WorkerSeen, ...]
    lost: tuple[WorkerSeen, ...]
    metrics_problem: str = ""
    metrics_note: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    departed: Mapping[str, WorkerSeen] = field(default_factory=dict)
    server: WorkerSeen | None = None
    server_unready: str = ""

    def is_gone(self, worker: WorkerSeen) -> bool:
        """Whether one of `workers` has ended."""
        return self.states[worker.name] is WorkerState.GONE

    @property
    def everybody(self) -> tuple[WorkerSeen, ...]:
        """The workers, and after them the parameter server, if one is there."""
        return self.workers if self.server is None else (*self.workers, self.server)

    @property
    def names(self) -> tuple[str, ...]:
        """All pods that are there, those without a group of the job last."""
        return (*(worker.name for worker in self.everybody), *self.without_group)


def without_server(job: Job, seen: Seen) -> tuple[WorkerSeen, ...]:
    """The job's pods but for its parameter server's."""
    if job.server is None:
        return seen.workers
    return tuple(worker for worker in seen.workers if worker.group != job.server.name)


def server_in(job: Job, seen: Seen) -> WorkerSeen | None:
    """The job's parameter server, if it has one that is there."""
    return next((each for each in seen.workers if job.server is not None and each.group == job.server.name), None)


def survey(job: Job, seen: Seen) -> Facts:
    """Sort an observation out."""
    order = {group.name: position for position, group in enumerate(job.groups)}
    by_name: dict[str, WorkerSeen] = {}
    newest = max(seen.plan.version if seen.plan is not None else 0, GREATEST_CLAIM)
    for worker in seen.workers:
        by_name.setdefault(worker.name, _with_sound_metrics(worker, newest, whole_cycle=job.balance == "Cycle"))
    workers = sorted(
        (worker for worker in by_name.values() if worker.group in order),
        key=lambda worker: (order[worker.group], worker.index, worker.name),
    )
    members: tuple[WorkerSeen | None, ...] = ()
    if seen.plan is not None and len({member.name for member in seen.plan.members}) == len(seen.plan.members):
        known = {(worker.name, worker.uid, worker.group): worker for worker in workers}
        members = tuple(known.get((m.name, m.uid, m.group)) for m in seen.plan.members)
    server = server_in(job, Seen(tuple(by_name.values())))
    states = _states(by_name.values(), seen.plan, members)
    live = tuple([worker for worker in workers if states[worker.name] is not WorkerState.GONE])
    over = [worker for worker in workers if states[worker.name] is WorkerState.GONE] if len(live) < len(workers) else ()
    return Facts(
        workers=tuple(workers),
        without_group=tuple(
            name for name, worker in by_name.items() if worker.group not in order and worker is not server
        ),
        plan=seen.plan,
        members=members,
        states=states,
        live=live,
        finished=tuple(worker for worker in over if not failed(worker)),
        failed=tuple(worker for worker in over if failed(worker)),
        lost=tuple([worker for worker in live if worker.node_lost]),
        metrics_problem=seen.metrics_problem,
        metrics_note=seen.metrics_note,
        refused=dict(seen.refused),
        departed={worker.name: worker for worker in seen.departed},
        server=server,
    )


def _with_sound_metrics(worker: WorkerSeen, newest: int, *, whole_cycle: bool) -> WorkerSeen:
    """A worker that reports a number which no plan and no memory can hold, or a plan beyond the `newest` that there can
    be, counts as one that reports nothing. With `whole_cycle` what it waits for in each update is its own time, too.
    """
    metrics = worker.metrics
    if metrics is None:
        return worker
    least, most = -MAX_WHOLE, MAX_WHOLE
    sound = (
        least < metrics.plan_version < most
        and metrics.plan_version <= newest
        and least < metrics.generation < most
        and least < metrics.batch_size < most
        and least < metrics.step < most
        and least < metrics.total_steps < most
        and least < metrics.epoch < most
        and least < metrics.memory_batch_size < most
        and least < metrics.least_batch_size < most
        and least < metrics.protocol < most
    )
    if sound and whole_cycle and metrics.own_seconds > 0:
        return replace(worker, metrics=_of_cycles(metrics))
    return worker if sound else replace(worker, metrics=None)


def _of_cycles(metrics: WorkerMetrics) -> WorkerMetrics:
    """Own time that is the whole time between two updates, as variable as what the worker computes."""
    factor = 1 + metrics.wait_seconds / metrics.own_seconds
    average = metrics.own_seconds_ewma
    return replace(
        metrics,
        own_seconds=metrics.own_seconds * factor,
        own_seconds_squared=metrics.own_seconds_squared * factor**2,
        own_seconds_ewma=None if average is None else average * factor,
        wait_seconds=0.0,
    )


def _states(
    workers: Iterable[WorkerSeen], plan: Plan | None, members: Sequence[WorkerSeen | None]
) -> Mapping[str, WorkerState]:
    names = {member.name for member in members if member is not None}
    states = {worker.name: state_of(worker, is_member=worker.name in names) for worker in workers}
    if plan is not None and any(members):  # else it is the plan of an earlier generation
        for member, worker in zip(plan.members, members, strict=True):
            if worker is None:
                states.setdefault(member.name, WorkerState.GONE)
    return states


def state_of(worker: WorkerSeen, *, is_member: bool) -> WorkerState:
    """Where a worker whose pod is there is in its life; `is_member`: the active plan names this very worker."""
    if ended(worker):
        return WorkerState.GONE
    if worker.deleting_since is not None:
        return WorkerState.LEAVING
    if is_member:
        return WorkerState.MEMBER
    if worker.phase != "Running" or worker.metrics is None or not worker.address:
        return WorkerState.CREATED
    if worker.metrics.phase in (PHASE_PREPARING, PHASE_WARMING, PHASE_PAUSED):
        return WorkerState.PREPARING
    return WorkerState.WARM


def ended(worker: WorkerSeen) -> bool:
    """Whether its process is over."""
    return worker.phase in ("Succeeded", "Failed") or worker.exit_code is not None


def failed(worker: WorkerSeen) -> bool:
    """Whether it ended without having finished the job, or with an error; exit code 0 alone says nothing."""
    return ended(worker) and not (worker.finished and worker.phase != "Failed" and worker.exit_code in (None, 0))


def rejected(worker: WorkerSeen) -> bool:
    """Whether its node would not have it: it was over before it ran, and not by its own fault."""
    return worker.phase == "Failed" and worker.exit_code is None and worker.disrupted and not worker.node_lost


def vanished(facts: Facts) -> list[str]:
    """Members of the active plan that are not there, by name; none if it is the plan of an earlier generation,
    of which nobody is left.
    """
    if facts.plan is None or not any(facts.members):
        return []
    return [m.name for m, worker in zip(facts.plan.members, facts.members, strict=True) if worker is None]


def stuck(seen: Seen, now: float) -> tuple[str, ...]:
    """Pods being deleted whose grace is over, on nodes that do not answer: nobody there will say that they
    are gone.
    """
    return tuple(
        worker.name
        for worker in seen.workers
        if worker.node_lost and worker.deleting_since is not None and now >= worker.deleting_since
    )


def worker_name(job: str, group: str, index: int) -> str:
    """The name of a worker, and of its pod, from its identity."""
    return f"{job}-{group}-{index}"


def missing(job: Job, facts: Facts) -> tuple[WorkerKey, ...]:
    """Workers to create so that every group has its replicas: the smallest indices with no pod."""
    keys = []
    names = set(facts.names)
    there = Counter(worker.group for worker in facts.workers)
    for group in job.groups:
        lacking, index = group.replicas - there[group.name], 0
        while lacking > 0:
            name = worker_name(job.name, group.name, index)
            if name not in names:
                keys.append(WorkerKey(group.name, index, name))
                lacking -= 1
            index += 1
    return tuple(keys)


def surplus(job: Job, facts: Facts) -> tuple[WorkerSeen, ...]:
    """Live workers beyond their group's replicas: the greatest indices."""
    over: list[WorkerSeen] = []
    for group in job.groups:
        mine = [worker for worker in facts.workers if worker.group == group.name]
        living = [worker for worker in mine if not ended(worker)]
        over += living[max(len(living) - max(len(mine) - group.replicas, 0), 0) :]
    return tuple(over)


def resized(job: Job, facts: Facts) -> str | None:
    """How the active plan differs from the replicas wanted, in words; None if it does not."""
    counts = Counter(worker.group for worker in facts.members if worker is not None)
    changes = [
        f"group {group.name} wants {group.replicas} workers and has {counts[group.name]}"
        for group in job.groups
        if counts[group.name] != group.replicas
    ]
    return ", ".join(changes) or None


def group_of(job: Job, name: str) -> Group:
    """The group of that name; it must be one of the job's."""
    return next(group for group in job.groups if group.name == name)


def groups_on_cpu(job: Job) -> set[str]:
    """Groups whose workers' own time is that of the host's CPU."""
    return {group.name for group in job.groups if group.device == "cpu"}


def bounds_of(job: Job, group: Group) -> Bounds:
    """Batch bounds of a worker of the group, as its multiple allows; without an upper one, the global batch is it."""
    high = job.global_batch if group.batch_max is None else group.batch_max
    return next_multiple(group.batch_min, group.multiple_of), last_multiple(high, group.multiple_of)


def multiples_of(groups: Sequence[Group]) -> tuple[int, ...]:
    """The multiples that batches of these workers' groups are; none where all are of single samples."""
    multiples = [group.multiple_of for group in groups]
    return tuple(multiples) if multiples and max(multiples) > 1 else ()


def listed(names: Sequence[str]) -> str:
    """Names in words, of many only the first."""
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def newest_evaluation(workers: Iterable[WorkerSeen]) -> Evaluated | None:
    """The evaluation of the most steps, from metrics or last words; None before the first.

    Workers that live count before those that ended: after a restart training is where they are.
    """
    seen = list(workers)
    living = [worker.metrics.evaluated for worker in seen if worker.metrics is not None]
    ended = [worker.evaluated for worker in seen if worker.finished or not any(living)]
    return max(filter(None, (*living, *ended)), key=lambda each: each.step, default=None)
