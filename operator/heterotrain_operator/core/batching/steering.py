"""One look at a training job whose plan is in force: measure, ask the policy, and say what should change.

A plan is not superseded before its members follow it: two switches under way at once would leave nobody
knowing what was measured under which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.balance import balance
from heterotrain_operator.core.batching.policies import POLICIES, Promise, Proposal, Seat
from heterotrain_operator.core.batching.rollback import reviewed, trusted_anew
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import bounds_of, group_of, listed
from heterotrain_operator.core.model import Event, Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.outcomes import Health
from heterotrain_operator.core.prediction.batch_cost import expected_of
from heterotrain_operator.core.prediction.least_batch import why_no_fewer, with_least_batch
from heterotrain_operator.core.prediction.memory_limit import (
    bounded_anew,
    bounds_at_once,
    safe_bounds,
    why_no_more,
    with_peak,
)
from heterotrain_operator.core.prediction.step_time import (
    Estimate,
    counted,
    estimate_of,
    feed_forward,
    follow,
    steps_since,
    window_of,
    with_estimate,
)
from heterotrain_operator.core.prediction.throughput_cap import forgotten
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.levels import feasibility
from heterotrain_operator.core.split.passes import at_once
from heterotrain_operator.core.state import Memory, WorkerMemory

SETTLE_SECONDS = 10.0
"""For so long a plan not yet followed is left in force, and what was just asked for may still be under way.
"""


@dataclass(frozen=True, slots=True)
class Steered:
    """What one look says: batches to publish (None: leave the plan), why, how healthy it is, what to
    remember.

    `decided`: a policy was asked, so an observe-only job has something new to tell. `promise` is what the batches are
    to be held to, and `foretold` (by rank; empty: nobody) says whose own time they rest on is expected of a new CPU
    limit, not measured. `events` are worth telling whatever becomes of the batches.
    """

    batches: tuple[int, ...] | None
    reason: str
    memory: Memory
    health: Health
    decided: bool = False
    stage: int | None = None
    promise: Promise | None = None
    foretold: tuple[bool, ...] = ()
    events: tuple[Event, ...] = ()


def aligned(memory: Memory, plan: Plan, now: float) -> Memory:
    """The memory of exactly the plan in force: of another version the measurements do not hold, of another
    membership nothing does.
    """
    if memory.plan_version == plan.version and len(memory.workers) == len(plan.members):
        return memory
    if memory.generation == plan.generation and len(memory.workers) == len(plan.members):
        workers = tuple(worker.unmeasured() for worker in memory.workers)
    else:
        workers = (WorkerMemory(),) * len(plan.members)
    return replace(memory, plan_version=plan.version, generation=plan.generation, published_at=now, workers=workers)


def steer(job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Memory, now: float) -> Steered:
    """Look once. `members` and `memory.workers` are those of `plan`, by rank."""
    memory = _with_least_batches(memory, members)
    unsettled = _unfollowed(plan, members)
    repair: tuple[tuple[int, ...] | None, str] | None = _stranded(plan, members)
    if repair is None and (not unsettled or _settled(memory, now)):
        repair = mended(job, plan, memory.workers)
    if repair is not None:
        batches, why = repair
        health = Health(*balance(plan, memory), degraded="" if batches else why)
        return Steered(batches, why, memory, health)
    if unsettled:
        return Steered(None, unsettled, memory, Health(*balance(plan, memory)))
    metrics = [worker.metrics for worker in members if worker.metrics is not None]
    workers = tuple(
        _fed_forward(job, known, worker, counters)
        for known, worker, counters in zip(memory.workers, members, metrics, strict=True)
    )
    resized = any(fed.cpu_limit != known.cpu_limit > 0 for fed, known in zip(workers, memory.workers, strict=True))
    remembered, memory = memory.workers, replace(memory, workers=workers)
    if resized:
        memory = trusted_anew(memory)
        foretold = _foretold(job, plan, metrics, memory, remembered)
        if foretold is not None:
            return foretold
    waiting = _too_few_steps(job, plan, metrics, memory)
    if waiting:
        return Steered(None, waiting, memory, Health(*balance(plan, memory)))
    before = memory.workers
    memory, windows, remarks = _measured(job, plan, metrics, memory)
    found = tuple(bounded_anew(job, plan, before, memory.workers))
    proposal = ask_policy(job, plan, memory, windows)
    if proposal.memories:
        memory = replace(memory, workers=proposal.memories)
    memory, proposal = reviewed(memory, seats_of(job, plan, memory.workers, windows), proposal)
    moved = proposal.batches if proposal.batches != plan.batch_sizes else None
    reason = "; ".join([proposal.reason, *remarks])
    health = Health(*balance(plan, memory))
    return Steered(
        moved,
        reason,
        memory,
        health,
        decided=True,
        stage=proposal.stage,
        promise=proposal.promise,
        events=found,
    )


def _with_least_batches(memory: Memory, members: Sequence[WorkerSeen]) -> Memory:
    """Before anything is decided: bounds rest on them, also while a plan is not followed yet."""
    workers = (with_least_batch(known, seen.metrics) for known, seen in zip(memory.workers, members, strict=True))
    return replace(memory, workers=tuple(workers))


def _unfollowed(plan: Plan, members: Sequence[WorkerSeen]) -> str:
    """Who does not follow the plan in force yet, in words; empty if all do."""
    unreadable = [worker.name for worker in members if worker.metrics is None]
    if unreadable:
        return f"plan {plan.version} is in force; metrics cannot be read of {listed(unreadable)}"
    behind = [
        f"{worker.name} ({worker.metrics.phase or 'phase unknown'}, plan {worker.metrics.plan_version})"
        for worker in members
        if worker.metrics is not None and worker.metrics.plan_version != plan.version
    ]
    return f"plan {plan.version} is not followed yet by {listed(behind)}" if behind else ""


def _settled(memory: Memory, now: float) -> bool:
    return memory.published_at is not None and now - memory.published_at >= SETTLE_SECONDS


def _stranded(plan: Plan, members: Sequence[WorkerSeen]) -> tuple[tuple[int, ...], str] | None:
    """Workers ignore older plans: one that was lost and written anew must be numbered beyond what they
    follow.
    """
    followed = [(w.metrics.plan_version, w.name) for w in members if w.metrics is not None]
    newest, name = max(followed, default=(0, ""))
    if newest <= plan.version:
        return None
    return plan.batch_sizes, f"{name} follows plan {newest}, newer than plan {plan.version} in force"


def mended(job: Job, plan: Plan, known: Sequence[WorkerMemory]) -> tuple[tuple[int, ...] | None, str] | None:
    """Batches that mend what the plan violates since the job was edited, and why; no batches if nothing can."""
    groups = [member.group for member in plan.members]
    bounds = safe_bounds(job, groups, known)
    policy = POLICIES.get(job.policy)
    total = plan.global_batch_size
    if job.fixed_global_batch and (policy is None or policy.keeps_global_batch):
        total = job.global_batch
    broken = []
    for member, (low, high), worker in zip(plan.members, bounds, known, strict=True):
        if not low <= member.batch_size <= high:
            users_low, users_high = bounds_of(job, group_of(job, member.group))
            why = why_no_fewer(worker, users_low, low) if member.batch_size < low else ""
            why = why_no_more(worker) if member.batch_size > high < users_high else why
            why = f" ({why})" if why else ""
            broken.append(f"{member.name} has {member.batch_size} samples, bounds are [{low}, {high}]{why}")
    for member, (_, most) in zip(plan.members, bounds_at_once(job, groups, known), strict=True):
        if at_once(member) > max(most, 1):
            broken.append(f"{member.name} computes {at_once(member)} samples at once, of which {most} fit")
    if total != plan.global_batch_size:
        broken.append(f"the batches add up to {plan.global_batch_size}, not to {total}")
    if not broken:
        return None
    if total != job.global_batch:
        total = min(max(total, sum(low for low, _ in bounds)), max(sum(high for _, high in bounds), 1))
    why_not = feasibility(total, bounds, [member.name for member in plan.members])
    if why_not is not None:
        return None, f"plan {plan.version} stays in force, although {listed(broken)}: {why_not}"
    return split_proportionally(plan.batch_sizes, total, bounds), listed(broken)


def _foretold(
    job: Job, plan: Plan, metrics: Sequence[WorkerMetrics], memory: Memory, remembered: Sequence[WorkerMemory]
) -> Steered | None:
    """What the policy makes of the speeds that are expected of new CPU limits; None where it keeps the batches, or must
    measure first.

    An interval of steps at limits that are known is not waited for: the windows that follow correct what was expected.
    It is as sure here as what was `remembered` of the old limits, for noise does not feign a limit. The batches promise
    nothing, since none of this was measured.
    """
    policy = POLICIES.get(job.policy)
    if policy is None or policy.internal:
        return None
    workers = [with_peak(fed, counters) for fed, counters in zip(memory.workers, metrics, strict=True)]
    expected = []
    for member, fed, known in zip(plan.members, workers, remembered, strict=True):
        estimate = estimate_of(replace(fed, estimate_steps=known.estimate_steps))
        if estimate is None:  # limits may change one by one, each soon after the plan that followed the one before
            estimate = expected_of(fed, member.batch_size, max(job.interval, 1))
        if estimate is None and member.batch_size > 0:
            return None
        expected.append(fed if estimate is None else with_estimate(fed, estimate))
    proposal = ask_policy(job, plan, replace(memory, workers=tuple(expected)), (None,) * len(plan.members))
    if proposal.batches is None or proposal.batches == plan.batch_sizes:
        return None
    found = tuple(bounded_anew(job, plan, remembered, workers))
    memory = replace(memory, workers=tuple(workers))
    return Steered(
        proposal.batches,
        f"by the CPU limits that changed, {proposal.reason}",
        memory,
        Health(*balance(plan, memory)),
        decided=True,
        foretold=tuple(fed.cpu_limit != known.cpu_limit for fed, known in zip(workers, remembered, strict=True)),
        events=found,
    )


def _fed_forward(job: Job, known: WorkerMemory, worker: WorkerSeen, metrics: WorkerMetrics) -> WorkerMemory:
    if group_of(job, worker.group).device != "cpu":
        return known  # a GPU's time is not that of the cores beside it
    limit = worker.cpu_limit if worker.cpu_limit is not None else metrics.cpu_limit
    fed = feed_forward(known, limit, metrics, job.interval)
    # A speed that changes with the limit says nothing about the batch.
    return forgotten(fed) if known.cpu_limit > 0 and fed.cpu_limit != known.cpu_limit else fed


def _too_few_steps(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics], memory: Memory) -> str:
    """Whose steps are too few for a decision, in words; empty if enough. Workers without samples need none."""
    counts = [
        (steps_since(known, counters), member.name)
        for member, counters, known in zip(plan.members, metrics, memory.workers, strict=True)
        if member.batch_size > 0
    ]
    steps, name = min(counts, default=(0.0, ""))
    if steps >= max(job.interval, 1):
        return ""
    return f"plan {plan.version}: {name} has {steps:.0f} of {job.interval} measured steps for the next decision"


def _measured(
    job: Job, plan: Plan, metrics: Sequence[WorkerMetrics], memory: Memory
) -> tuple[Memory, list[Estimate | None], list[str]]:
    """Close everybody's window: estimates followed, windows by rank, and remarks on what was ignored or
    jumped.
    """
    workers: list[WorkerMemory] = []
    windows: list[Estimate | None] = []
    remarks: list[str] = []
    changed = False
    for member, counters, remembered in zip(plan.members, metrics, memory.workers, strict=True):
        known = with_peak(remembered, counters)
        window = window_of(known, counters) if member.batch_size > 0 else None
        if isinstance(window, str):
            remarks.append(f"ignored the window of {member.name}: {window}")
        if not isinstance(window, Estimate):
            workers.append(counted(known, counters))
            windows.append(None)
            continue
        followed, jumped = follow(known, window, job.smoothing)
        if jumped:
            remarks.append(f"{member.name} went from {duration(known.mean_seconds)} to {duration(window.mean_seconds)}")
            followed = forgotten(followed)
            changed = True
        workers.append(counted(followed, counters))
        windows.append(window)
    if changed:
        memory = trusted_anew(memory)
    return replace(memory, workers=tuple(workers)), windows, remarks


def ask_policy(job: Job, plan: Plan, memory: Memory, windows: Sequence[Estimate | None]) -> Proposal:
    """What the job's policy makes of what is remembered of the plan's members; why not, where it cannot be asked.

    `windows` are the newest intervals by rank, None where there is none.
    """
    policy = POLICIES.get(job.policy)
    if policy is None:
        return Proposal(None, f"policy {job.policy!r} is not known; known are {', '.join(POLICIES)}")
    seats = seats_of(job, plan, memory.workers, windows)
    unmeasured = [seat.name for seat in seats if seat.batch > 0 and seat.estimate is None]
    if unmeasured:
        return Proposal(None, f"batches stay: no usable own time of {listed(unmeasured)}")
    try:
        return policy.propose(job, seats, memory.stage)
    except ValueError as error:
        return Proposal(None, f"batches stay: {error}")


def seats_of(job: Job, plan: Plan, workers: Sequence[WorkerMemory], windows: Sequence[Estimate | None]) -> list[Seat]:
    """The members of a plan as policies see them. A worker without samples has no estimate: it runs no user
    code.
    """
    seats = []
    bounds = safe_bounds(job, [member.group for member in plan.members], workers)
    for member, known, window, pair in zip(plan.members, workers, windows, bounds, strict=True):
        group = group_of(job, member.group)
        estimate = estimate_of(known) if member.batch_size > 0 else None
        seats.append(Seat(member.name, group, member.batch_size, pair, estimate, window, known))
    return seats
