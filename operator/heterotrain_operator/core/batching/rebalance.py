"""Rebalancing by measurement: close all windows, ask the policy, and hold its proposal to what plans promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.adjustment import Adjustment
from heterotrain_operator.core.batching.asking import ask_policy, seats_of
from heterotrain_operator.core.batching.bounds import bounds_at_once, newly_bounded
from heterotrain_operator.core.batching.early import is_due, with_few_steps
from heterotrain_operator.core.batching.patience import evidence_of, with_patience
from heterotrain_operator.core.batching.quorum import awaited, judged, no_quorum, with_late
from heterotrain_operator.core.batching.retries import with_idle
from heterotrain_operator.core.batching.rollback import reviewed, without_doubt
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import groups_on_cpu, listed
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.elasticity import after_window
from heterotrain_operator.core.prediction.memory_limit import with_peak
from heterotrain_operator.core.prediction.resource_use import uncounted, window_closed
from heterotrain_operator.core.prediction.roughness import (
    SHORTEST_HISTORY,
    TREND,
    WINDOWS,
    history_of,
    persistence_after,
    roughness_after,
    trend_after,
)
from heterotrain_operator.core.prediction.step_time import (
    JUMPED,
    MEASURED,
    Estimate,
    counted,
    steps_since,
    surprise_of,
    window_of,
)
from heterotrain_operator.core.state import Memory
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
        None if memory.gathered and known.step_time.estimate is not None else counters
        for counters, known in zip(metrics, memory.workers, strict=True)
    ]
    waiting = _too_few_steps(job, plan, read, memory)
    if waiting:
        if is_due(job, plan, read, memory):
            adjustment = _decided(job, plan, metrics, read, memory, early=True)
            if adjustment.batches is not None:
                return adjustment
        memory, late = with_late(job, plan, read, memory)
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
        memory = replace(memory, gathered=True)
        return Adjustment(None, waiting, memory, events=found, windows=tuple(windows))
    memory = with_idle(plan, metrics, replace(memory, gathered=False))
    taking_part = [rank for rank, known in enumerate(memory.workers) if known.left_out < LEFT_OUT]
    if too_few := no_quorum(plan, taking_part):
        reason = "; ".join([f"batches stay: {too_few}", *remarks])
        return Adjustment(None, reason, memory, events=found, windows=tuple(windows))
    seats = seats_of(job, plan, memory.workers, windows, metrics)
    proposal = ask_policy(job, seats, memory.stage)
    if proposal.memories:
        memory = replace(memory, workers=proposal.memories)
    if not early:
        proposal = with_patience(memory, seats, proposal)
    memory, proposal = reviewed(memory, seats, proposal)
    if proposal.batches is not None:
        memory = replace(memory, rested_on=evidence_of(seats))
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
        windows=tuple(windows),
    )


def _fit_at_once(job: Job, plan: Plan, memory: Memory) -> bool:
    """Whether a member takes several passes for what it could compute at once."""
    if not any(member.micro_batch_size for member in plan.members):
        return False
    bounds = bounds_at_once(job, [member.group for member in plan.members], memory.workers)
    return any(
        member.micro_batch_size and member.batch_size <= most
        for member, (_, most) in zip(plan.members, bounds, strict=True)
    )


def _too_few_steps(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory) -> str:
    """Whose steps are too few for a decision, in words; empty if enough. Workers without samples need none, and who is
    not read or left out is not waited for here.
    """
    counts = [
        (steps_since(known.step_time, counters), member.name)
        for member, counters, known in zip(plan.members, metrics, memory.workers, strict=True)
        if member.batch_size > 0 and counters is not None and known.left_out < LEFT_OUT
    ]
    if not counts:
        return ""
    steps, name = min(counts)
    if steps >= max(job.interval, 1):
        return ""
    return f"plan {plan.version}: {name} has {steps:.0f} of {job.interval} measured steps for the next decision"


def _measured(
    job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory, *, early: bool
) -> tuple[Memory, list[Estimate | None], list[str]]:
    """Close everybody's window: estimates followed, windows by rank, and remarks on what was ignored or
    jumped.
    """
    workers: list[WorkerMemory] = []
    windows: list[Estimate | None] = []
    remarks: list[str] = []
    surprised: list[tuple[int, float]] = []
    changed = False
    history = history_of(memory.persistence)
    predictor, on_cpu = predictor_of(job), groups_on_cpu(job)
    measured = [
        window_of(known.step_time, counters) if counters is not None and member.batch_size > 0 else None
        for member, counters, known in zip(plan.members, metrics, memory.workers, strict=True)
    ]
    if early:
        measured = with_few_steps(measured, memory.workers)
    for member, counters, remembered, found in zip(plan.members, metrics, memory.workers, measured, strict=True):
        if counters is None:
            workers.append(remembered)
            windows.append(None)
            continue
        known, jumped = remembered.step_time, False
        cost, cap = remembered.batch_cost, remembered.throughput_cap
        use = uncounted(remembered.resource_use, counters)
        estimate = None
        window = found if isinstance(found, Estimate) else None
        if isinstance(found, str):
            remarks.append(f"ignored the window of {member.name}: {found}")
        if window is not None:
            before = known.estimate
            if before is not None and not known.limit_change:
                surprise = surprise_of(before, window)
                trend = trend_after(known.trend / 100, surprise / math.sqrt(before.inflation))
                kept = SHORTEST_HISTORY if abs(trend) > TREND else history
                estimate, differs = predictor.follow(before, window, kept)
                known = known._replace(trend=0.0 if differs else 100 * trend)
                if not differs:
                    surprised.append((len(workers), surprise))
                    if before.steps >= PINNED_WINDOWS * window.steps:
                        cost = cost.scaled(estimate.mean_seconds / before.mean_seconds)
            else:
                estimate, differs = predictor.follow(known.before, window, history)
            if known.limit_change:
                expected = known.before or predictor.expected(cost, member.batch_size, window.steps)
                known = after_window(known, expected, window)
            use, why = window_closed(
                remembered.resource_use,
                counters,
                window,
                before=known.before,
                jumped=differs,
                at_new_batch=before is None,
                on_cpu=member.group in on_cpu,
            )
            # A first window that differs shows another cost of the batch, unless what it spent shows another speed.
            jumped = differs and (before is not None or bool(why))
            if jumped and known.before is not None:
                was, now = duration(known.before.mean_seconds), duration(window.mean_seconds)
                remarks.append(f"{member.name} went from {was} to {now}{why and f': {why}'}")
                cost, cap = cost.scaled(estimate.mean_seconds / known.before.mean_seconds), cap.unwatched()
        changed = changed or jumped
        workers.append(
            remembered.measured(
                counted(known, counters, estimate, JUMPED if jumped else MEASURED),
                cost,
                with_peak(remembered.memory_use, counters),
                cap,
                use,
            )
        )
        windows.append(window)
    if changed:
        memory = without_doubt(memory)
    return _with_surprises(replace(memory, workers=tuple(workers)), surprised), windows, remarks


def _with_surprises(memory: Memory, surprised: Sequence[tuple[int, float]]) -> Memory:
    """What the windows of the workers of these ranks say of how rough windows are."""
    if not surprised:
        return memory
    workers = list(memory.workers)
    known = [workers[rank].step_time for rank, _ in surprised]
    surprises = [surprise for _, surprise in surprised]
    before = [each.surprise / 10 for each in known]
    persistence = persistence_after(memory.persistence, memory.windows, surprises, before)
    rough = roughness_after([each.roughness / 100 for each in known], persistence, memory.windows, surprises)
    for (rank, surprise), roughness, each in zip(surprised, rough, known, strict=True):
        time = each._replace(roughness=100 * roughness, surprise=10 * surprise)
        workers[rank] = workers[rank]._replace(step_time=time)
    windows = min(memory.windows + 1, WINDOWS)
    return replace(memory, workers=tuple(workers), windows=windows, persistence=persistence)
