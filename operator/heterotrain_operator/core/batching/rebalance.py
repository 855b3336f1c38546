"""Rebalancing by measurement: close all windows, ask the policy, and hold its proposal to what plans promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.adjustment import Adjustment
from heterotrain_operator.core.batching.asking import ask_policy, seats_of
from heterotrain_operator.core.batching.bounds import bounds_at_once, newly_bounded
from heterotrain_operator.core.batching.early import is_due, with_few_steps
from heterotrain_operator.core.batching.likeness import as_likely
from heterotrain_operator.core.batching.patience import evidence_of, with_patience
from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.batching.quorum import awaited, judged, no_quorum, steps_by_rank, with_late
from heterotrain_operator.core.batching.retries import with_idle
from heterotrain_operator.core.batching.rollback import reviewed
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import groups_on_cpu, listed
from heterotrain_operator.core.memory.promises import Promises
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction import Predictor, predictor_of
from heterotrain_operator.core.prediction.elasticity import after_window
from heterotrain_operator.core.prediction.jumps import is_another_speed, surprise_of
from heterotrain_operator.core.prediction.memory_limit import with_peak
from heterotrain_operator.core.prediction.resource_use import ResourceUse, uncounted, window_closed
from heterotrain_operator.core.prediction.roughness import (
    DRIFT_HISTORY,
    TREND,
    WINDOWS,
    Roughness,
    history_of,
    persistence_after,
    roughness_after,
    trend_after,
)
from heterotrain_operator.core.prediction.step_time import (
    EXPECTED,
    JUMPED,
    MEASURED,
    Estimate,
    StepTime,
    counted,
    window_of,
)
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers.actions import ACTIONS
from heterotrain_operator.core.worker_memory import LEFT_OUT, WorkerMemory

PINNED_WINDOWS = 3
"""Windows of a plan after which what changes is the worker's speed, and not what was learned of the batch's cost."""


def rebalanced(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory) -> Adjustment:
    """What the policy makes of the steps that were measured since its last decision, once there are enough of them, or
    before if they show enough. `metrics` and `memory.workers` are those of the plan's members, by rank; None of those
    that were not read.
    """
    # Those that a decision waits for were measured already, but for the ones that were not read then.
    read = [
        None if memory.batching.gathered and known.step_time.is_measured else counters
        for counters, known in zip(metrics, memory.workers, strict=True)
    ]
    counts = steps_by_rank(plan, read, memory)
    waiting = _too_few_steps(job, plan, counts)
    if waiting:
        if is_due(job, plan, read, memory):
            adjustment = _decided(job, plan, metrics, read, memory, early=True)
            if adjustment.batches is not None:
                return adjustment
        memory, late = with_late(job, plan, counts, memory)
        return Adjustment(None, waiting, memory, events=late)
    return _decided(job, plan, metrics, read, memory, early=False)


def _decided(
    job: Job,
    plan: Plan,
    metrics: Sequence[WorkerMetrics | None],
    read: Sequence[WorkerMetrics | None],
    memory: Memory,
    *,
    early: bool,
) -> Adjustment:
    """What the policy makes of the windows that end here; `read` are the metrics that are taken in."""
    before = memory.workers
    memory, windows, remarks = _measured(job, plan, read, memory, early=early)
    memory, unusable = judged(plan, read, before, memory, windows=windows)
    found = (*unusable, *newly_bounded(job, plan, before, memory.workers))
    unread = awaited(plan, metrics, memory)
    if unread:
        waiting = f"plan {plan.version}: metrics cannot be read of {listed(unread)}, which the next decision waits for"
        memory = replace(memory, batching=replace(memory.batching, gathered=True))
        seats = seats_of(job, plan, memory.workers, windows, metrics)
        return Adjustment(None, waiting, memory, events=found, seats=seats)
    memory = with_idle(plan, metrics, replace(memory, batching=replace(memory.batching, gathered=False)))
    seats = seats_of(job, plan, memory.workers, windows, metrics)
    taking_part = [rank for rank, known in enumerate(memory.workers) if known.left_out < LEFT_OUT]
    if too_few := no_quorum(plan, taking_part):
        reason = "; ".join([f"batches stay: {too_few}", *remarks])
        return Adjustment(None, reason, memory, events=found, seats=seats)
    policy = POLICIES.get(job.policy)
    likely = as_likely(seats) if policy is not None and policy.weighs_noise else seats
    proposal = ask_policy(job, likely, memory.batching.stage)
    if proposal.memories:
        memory = replace(memory, workers=proposal.memories)
    evidence = evidence_of(seats)
    if not early:
        rested_on, urgent = memory.batching.rested_on, _is_urgent(job, seats)
        proposal = with_patience(rested_on, evidence, likely, proposal, urgent=urgent)
    memory, proposal = reviewed(memory, seats, proposal)
    if proposal.batches is not None:
        memory = replace(memory, batching=replace(memory.batching, rested_on=evidence))
    batches = proposal.batches if proposal.batches != plan.batch_sizes else None
    again = batches is None and not job.dry_run and (proposal.at_once or _fit_at_once(job, plan, memory))
    return Adjustment(
        plan.batch_sizes if again else batches,
        "; ".join([proposal.reason, *remarks]),
        memory,
        at_once=proposal.at_once if again else (),
        decided=True,
        stage=proposal.stage,
        promise=proposal.promise,
        # What a worker took before it had no samples may be long past: the next windows show its speed.
        predicted=tuple(
            seat.batch == 0 < batch for seat, batch in zip(seats, batches or plan.batch_sizes, strict=True)
        ),
        events=found,
        seats=seats,
    )


def _is_urgent(job: Job, seats: Sequence[Seat]) -> bool:
    """Whether the job wants something to be done about stragglers, and has one: to rebalance comes first."""
    return ACTIONS[job.stragglers.action].hastens and any(seat.memory.evidence.named for seat in seats)


def _fit_at_once(job: Job, plan: Plan, memory: Memory) -> bool:
    """Whether a member takes several passes for what it could compute at once."""
    if not any(member.micro_batch_size for member in plan.members):
        return False
    bounds = bounds_at_once(job, [member.group for member in plan.members], memory.workers)
    return any(
        member.micro_batch_size and member.batch_size <= most
        for member, (_, most) in zip(plan.members, bounds, strict=True)
    )


def _too_few_steps(job: Job, plan: Plan, counts: Mapping[int, float]) -> str:
    """Whose steps are too few for a decision, in words; empty if enough. `counts` are `steps_by_rank`."""
    steps = min(counts.values(), default=math.inf)
    if steps >= max(job.interval, 1):
        return ""
    name = min(plan.members[rank].name for rank, each in counts.items() if each == steps)
    return f"plan {plan.version}: {name} has {steps:.0f} of {job.interval} measured steps for the next decision"


class _Taken(NamedTuple):
    """A window and the estimate with it, the estimate or expectation `before`, and whether the worker's speed jumped.

    `surprise` is None where there is nothing to compare the window with; `trend` is the worker's own, in hundredths,
    and `drifts` whether it shows that the speed changes under the active plan, whose batch stays. `use` is
    what is remembered of its use of the CPU then, and `why` says why it jumped; empty if nobody can say.
    """

    window: Estimate
    before: Estimate | None
    estimate: Estimate
    jumped: bool
    surprise: float | None
    trend: float
    drifts: bool
    use: ResourceUse
    why: str


def _measured(
    job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory, *, early: bool
) -> tuple[Memory, list[Estimate | None], list[str]]:
    """Close everybody's window: estimates followed, windows by rank, and remarks on what was ignored or
    jumped.
    """
    known, history = memory.workers, history_of(memory.roughness.persistence)
    predictor, on_cpu = predictor_of(job), groups_on_cpu(job)
    found = [
        window_of(worker.step_time, counters) if counters is not None and member.batch_size > 0 else None
        for member, counters, worker in zip(plan.members, metrics, known, strict=True)
    ]
    if early:
        found = with_few_steps(found, known)
    taken = [
        _taken(predictor, worker, counters, window, history=history, on_cpu=member.group in on_cpu)
        if isinstance(window, Estimate) and counters is not None
        else None
        for member, counters, worker, window in zip(plan.members, metrics, known, found, strict=True)
    ]
    memory, rough = _with_surprises(memory, taken)
    workers: list[WorkerMemory] = []
    remarks: list[str] = []
    for rank, (member, counters, worker, each) in enumerate(zip(plan.members, metrics, known, taken, strict=True)):
        if each is not None and counters is not None:
            workers.append(_after_window(predictor, member.batch_size, counters, worker, each, rough=rough.get(rank)))
            if each.jumped and each.before is not None:
                was, now = duration(each.before.mean_seconds), duration(each.window.mean_seconds)
                remarks.append(f"{member.name} went from {was} to {now}{each.why and f': {each.why}'}")
        elif counters is not None:
            workers.append(_without_window(counters, worker))
            if isinstance(fault := found[rank], str):
                remarks.append(f"ignored the window of {member.name}: {fault}")
        else:
            workers.append(worker)
    if any(each is not None and each.jumped for each in taken):
        memory = replace(memory, promises=Promises())
    # Of a window in which the speed jumped, the steps at the new one tell how slow a worker is.
    windows = [each and (each.estimate if each.jumped else each.window) for each in taken]
    return replace(memory, workers=tuple(workers)), windows, remarks


def _taken(
    predictor: Predictor,
    worker: WorkerMemory,
    counters: WorkerMetrics,
    window: Estimate,
    *,
    history: float,
    on_cpu: bool,
) -> _Taken:
    known, before = worker.step_time, worker.step_time.before
    is_measured = before is not None and not known.basis & EXPECTED
    is_at_new_batch = not is_measured and not (before is not None and is_another_speed(known, window))
    surprise, trend, drifts = None, known.trend / 100, False
    if before is not None and is_measured and not known.limit_change:
        surprise = surprise_of(before, window)
        trend = trend_after(trend, surprise / math.sqrt(before.inflation))
        drifts = abs(trend) > TREND
        if drifts:
            history, surprise = DRIFT_HISTORY, None  # what drifts is no noise
    estimate, differs = predictor.follow(before, window, history)
    use, why = window_closed(
        worker.resource_use,
        counters,
        window,
        before=before,
        jumped=differs,
        at_new_batch=is_at_new_batch,
        on_cpu=on_cpu,
    )
    # A plan's first window that differs shows the cost of another batch, unless what it spent shows another speed.
    jumped = differs and (bool(why) or not is_at_new_batch)
    if differs:
        surprise, trend = None, 0.0
    return _Taken(window, before, estimate, jumped, surprise, 100 * trend, drifts, use, why)


def _with_surprises(memory: Memory, taken: Sequence[_Taken | None]) -> tuple[Memory, dict[int, tuple[float, float]]]:
    """What these windows, by rank, say of how rough windows are: the memory with what they have in common, and by rank
    the roughness and the surprise of workers, as their own times have them.
    """
    known: list[StepTime] = []
    surprises: dict[int, float] = {}
    for rank, (worker, each) in enumerate(zip(memory.workers, taken, strict=True)):
        if each is not None and each.surprise is not None:
            known.append(worker.step_time)
            surprises[rank] = each.surprise
    if not surprises:
        return memory, {}
    newest = list(surprises.values())
    windows, before = memory.roughness.windows, [each.surprise / 10 for each in known]
    persistence = persistence_after(memory.roughness.persistence, windows, newest, before)
    rough = roughness_after([each.roughness / 100 for each in known], persistence, windows, newest)
    memory = replace(memory, roughness=Roughness(min(windows + 1, WINDOWS), persistence))
    return memory, {
        rank: (100 * roughness, 10 * surprise)
        for (rank, surprise), roughness in zip(surprises.items(), rough, strict=True)
    }


def _after_window(
    predictor: Predictor,
    batch: int,
    counters: WorkerMetrics,
    worker: WorkerMemory,
    taken: _Taken,
    *,
    rough: tuple[float, float] | None,
) -> WorkerMemory:
    """The worker after a window. `rough` is None of one that had nothing to compare the window with."""
    time, cost, cap = worker.step_time, worker.batch_cost, worker.throughput_cap
    window, estimate, before = taken.window, taken.estimate, taken.before
    pinned = rough is not None and before is not None and before.steps >= PINNED_WINDOWS * window.steps
    if before is not None and (taken.jumped or pinned or taken.drifts):
        cost = cost.scaled(estimate.mean_seconds / before.mean_seconds)
    if taken.jumped:
        cap = cap.unwatched()
    if time.limit_change:
        time = after_window(time, before or predictor.expected(worker.batch_cost, batch, window.steps), window)
    time = counted(time, counters, estimate, rough, JUMPED if taken.jumped else MEASURED, trend=taken.trend)
    return worker.measured(time, cost, with_peak(worker.memory_use, counters), cap, taken.use)


def _without_window(counters: WorkerMetrics, worker: WorkerMemory) -> WorkerMemory:
    """A worker whose steps say nothing of its own time; the next window begins here."""
    return worker._replace(
        step_time=counted(worker.step_time, counters),
        memory_use=with_peak(worker.memory_use, counters),
        resource_use=uncounted(worker.resource_use, counters),
    )
