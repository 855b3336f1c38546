"""Rebalancing by measurement: close all windows, ask the policy, and hold its proposal to what plans promised.

Small gains that noise might explain are taken, too, but only each time that the evidence has grown by a half. What
noise explains shrinks with the steps that are averaged, and while it is large a split that was chosen on few steps
would stay although a better one is likely. A move at each such growth is worth its cost even if it is by chance, and
there can only be a few of them, for averages are over a limited number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.asking import ask_policy, likely_seats, seats_of, weighs_noise
from heterotrain_operator.core.batching.bounds import bounds_at_once, newly_bounded
from heterotrain_operator.core.batching.measuring import measured
from heterotrain_operator.core.batching.policy import Promise, Proposal, Seat
from heterotrain_operator.core.batching.quorum import awaited, is_due, judged, no_quorum, steps_by_rank, with_late
from heterotrain_operator.core.batching.retries import with_idle
from heterotrain_operator.core.batching.rollback import apply_trial, reviewed
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Event, Job, WorkerMetrics
from heterotrain_operator.core.prediction.whole_steps import observed
from heterotrain_operator.core.remembered_worker import LEFT_OUT
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.verdict import ACTIONS

DEVIATIONS = 1.0
"""Standard errors of the slowest that a small gain must exceed. Tried: 0.7 to 1.5, on independent, autoregressive and
recorded noise; with less, plans were more and steps the same."""

USUAL_WORKERS = 8
"""Of more workers the slowest seems slow by chance ever more, so that a small gain must exceed more."""

GROWTH = 1.5
"""Times the evidence that the present split rests on. Tried: 1.3 to 2; with 2, steps under recorded noise took 2 %
longer, and with 1.4 autoregressive noise of 32 workers was followed by more than 3 plans in 100 intervals."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Batches to publish (None: leave the plan), why, and what to remember. `degraded` says why a plan that violates
    the job's bounds cannot be repaired.

    `decided`: a policy was asked, so an observe-only job has something new to report. `promise` is what the batches are
    to be held to, and `predicted` (by rank; empty: nobody) says whose own time they rest on is predicted for a new CPU
    limit, not measured. `at_once` (by rank; empty: nobody) are samples to compute at once, where these are fewer than
    memory holds. `events` are worth reporting whatever becomes of the batches. `seats` are the members with the
    windows of the interval that has ended, by rank; empty: none has.
    """

    batches: tuple[int, ...] | None
    reason: str
    memory: Remembered
    degraded: str = ""
    decided: bool = False
    stage: int | None = None
    promise: Promise | None = None
    predicted: tuple[bool, ...] = ()
    at_once: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    seats: Sequence[Seat] = ()


def evidence_of(seats: Sequence[Seat]) -> float:
    """The steps behind the estimate of whom least is known, counted as independent ones."""
    known = [seat.estimate.steps / seat.estimate.inflation for seat in seats if seat.estimate is not None]
    return min(known, default=0.0)


def with_patience(
    rested_on: float, evidence: float, seats: Sequence[Seat], proposal: Proposal, *, urgent: bool = False
) -> Proposal:
    """The proposal, or in place of one that keeps the batches, which `rested_on` so many steps where there is now this
    `evidence`, the split that is likely to be better. Where that is `urgent`, evidence that a jump has cut down is
    enough: once, since the split rests on it then.
    """
    likely = proposal.likely
    if likely is None or proposal.batches is not None:
        return proposal
    afresh = urgent and 0 < evidence < rested_on
    if rested_on <= 0 or (evidence < GROWTH * rested_on and not afresh):
        return proposal  # batches that no estimates chose, such as equal ones, only leave for what is sure
    estimates = [seat.estimate for seat in seats if seat.estimate is not None]
    worst = max(estimates, key=lambda estimate: estimate.mean_seconds)
    by_chance = greatest_of(len(estimates)) / greatest_of(USUAL_WORKERS)
    if likely.saving <= DEVIATIONS * max(1.0, by_chance) * worst.relative_error:
        return proposal
    return likely


def greatest_of(workers: int) -> float:
    """The expected greatest of so many independent errors, in standard deviations. Blom's approximation: Statistical
    Estimates and Transformed Beta-Variables, 1958."""
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def rebalanced(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered) -> Adjustment:
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
    memory: Remembered,
    *,
    early: bool,
) -> Adjustment:
    """What the policy makes of the windows that end here; `read` are the metrics that are taken in."""
    before = memory.workers
    if weighs_noise(job):
        memory = replace(memory, whole_steps=observed(memory.whole_steps, plan.version, metrics))
    memory, windows, remarks, told = measured(job, plan, read, memory, early=early)
    memory, unusable = judged(plan, read, before, memory, windows=windows)
    found = (*told, *unusable, *newly_bounded(job, plan, before, memory.workers))
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
    likely, as_slow = likely_seats(job, seats, memory)
    proposal = ask_policy(job, likely, memory.batching)
    if proposal.memories:
        memory = replace(memory, workers=proposal.memories)
    evidence = evidence_of(seats)
    if not early:
        rested_on, urgent = memory.batching.rested_on, _is_urgent(job, seats)
        proposal = with_patience(rested_on, evidence, likely, proposal, urgent=urgent)
    memory, proposal = reviewed(memory, seats, proposal)
    if weighs_noise(job):
        memory, proposal = apply_trial(memory, seats, proposal)
    if proposal.batches is not None:
        memory = replace(memory, batching=replace(memory.batching, rested_on=evidence))
    if as_slow:
        remarks.append(as_slow)
    batches = proposal.batches if proposal.batches != plan.batch_sizes else None
    again = batches is None and not job.dry_run and (proposal.at_once or _fit_at_once(job, plan, memory))
    return Adjustment(
        plan.batch_sizes if again else batches,
        "; ".join([proposal.reason, *remarks]),
        memory,
        at_once=proposal.at_once if again else (),
        decided=True,
        stage=proposal.stage,
        promise=_kept(proposal.promise) if as_slow else proposal.promise,
        # What a worker took before it had no samples may be long past: the next windows show its speed.
        predicted=tuple(
            seat.batch == 0 < batch for seat, batch in zip(seats, batches or plan.batch_sizes, strict=True)
        ),
        events=found,
        seats=seats,
    )


def _kept(promise: Promise | None) -> Promise | None:
    """What a split promises in which workers count as slow that are fast now: nothing, for its step is longer than the
    one before as long as nobody turns slow. A way back to the batches before is no such split.
    """
    return promise if promise is not None and promise.goes_back else None


def _is_urgent(job: Job, seats: Sequence[Seat]) -> bool:
    """Whether the job wants something to be done about stragglers, and has one: to rebalance comes first."""
    return ACTIONS[job.stragglers.action].hastens and any(seat.memory.evidence.named for seat in seats)


def _fit_at_once(job: Job, plan: Plan, memory: Remembered) -> bool:
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
