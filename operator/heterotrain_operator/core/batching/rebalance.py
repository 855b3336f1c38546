"""Rebalancing by measurement: close all windows, ask the policy, and hold its proposal to what plans promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.adjustment import Adjustment
from heterotrain_operator.core.batching.asking import ask_policy, seats_of
from heterotrain_operator.core.batching.bounds import newly_bounded
from heterotrain_operator.core.batching.rollback import reviewed, without_doubt
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.memory_limit import with_peak
from heterotrain_operator.core.prediction.step_time import Estimate, counted, steps_since, window_of
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory


def rebalanced(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics], memory: Memory) -> Adjustment:
    """What the policy makes of the steps that were measured since its last decision, once there are enough of them.
    `metrics` and `memory.workers` are those of the plan's members, by rank.
    """
    waiting = _too_few_steps(job, plan, metrics, memory)
    if waiting:
        return Adjustment(None, waiting, memory)
    before = memory.workers
    memory, windows, remarks = _measured(job, plan, metrics, memory)
    found = tuple(newly_bounded(job, plan, before, memory.workers))
    seats = seats_of(job, plan, memory.workers, windows)
    proposal = ask_policy(job, seats, memory.stage)
    if proposal.memories:
        memory = replace(memory, workers=proposal.memories)
    memory, proposal = reviewed(memory, seats, proposal)
    return Adjustment(
        proposal.batches if proposal.batches != plan.batch_sizes else None,
        "; ".join([proposal.reason, *remarks]),
        memory,
        decided=True,
        stage=proposal.stage,
        promise=proposal.promise,
        events=found,
    )


def _too_few_steps(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics], memory: Memory) -> str:
    """Whose steps are too few for a decision, in words; empty if enough. Workers without samples need none."""
    counts = [
        (steps_since(known.step_time, counters), member.name)
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
    predictor = predictor_of(job)
    for member, counters, remembered in zip(plan.members, metrics, memory.workers, strict=True):
        known, jumped = remembered.step_time, False
        cost, cap = remembered.batch_cost, remembered.throughput_cap
        estimate = None
        window = window_of(known, counters) if member.batch_size > 0 else None
        if isinstance(window, str):
            remarks.append(f"ignored the window of {member.name}: {window}")
            window = None
        if window is not None:
            before = known.estimate
            estimate, jumped = predictor.follow(before, window, job.smoothing)
            if jumped and before is not None:
                was, now = duration(before.mean_seconds), duration(window.mean_seconds)
                remarks.append(f"{member.name} went from {was} to {now}")
                cost, cap = cost.scaled(estimate.mean_seconds / before.mean_seconds), cap.unwatched()
        changed = changed or jumped
        workers.append(
            remembered.measured(
                counted(known, counters, estimate), cost, with_peak(remembered.memory_use, counters), cap
            )
        )
        windows.append(window)
    if changed:
        memory = without_doubt(memory)
    return replace(memory, workers=tuple(workers)), windows, remarks
