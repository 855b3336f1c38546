"""What the job's policy is asked, and what it answers: the members of a plan as seats, and its proposal."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.bounds import bounds_in_passes
from heterotrain_operator.core.batching.likeness import as_alike, shrunk_to_group_mean, with_relapse_caution
from heterotrain_operator.core.batching.looking_ahead import foreseen
from heterotrain_operator.core.batching.policies import POLICIES, Proposal, Seat
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.learned import LOOKS_BACK
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import LEFT_OUT, RememberedWorker
from heterotrain_operator.core.state import Remembered


def ask_policy(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """What the job's policy makes of what is known of the plan's members; why not, where it cannot be asked."""
    policy = POLICIES.get(job.policy)
    if policy is None:
        return Proposal(None, f"policy {job.policy!r} is not known; known are {', '.join(POLICIES)}")
    unmeasured = [
        seat.name for seat in seats if seat.batch > 0 and seat.estimate is None and (policy.internal or not seat.held)
    ]
    if unmeasured:
        return Proposal(None, f"batches stay: no usable own time of {listed(unmeasured)}")
    try:
        return policy.propose(job, seats, batching)
    except ValueError as error:
        return Proposal(None, f"batches stay: {error}")


def likely_seats(job: Job, seats: Sequence[Seat], memory: Remembered) -> tuple[Sequence[Seat], str]:
    """The seats with what their workers' own times likely are next, by a predictor that looks ahead and for a policy
    that weighs noise; and who of them is taken
    to be slow, in words.
    """
    seats = foreseen(predictor_of(job), seats, memory.learned)
    if not weighs_noise(job):
        return seats, ""
    likely, names = with_relapse_caution(shrunk_to_group_mean(seats), memory.progress.progress_step, job.interval)
    return as_alike(likely), f"{listed(names)} counted as slow as they often become" if names else ""


def windows_kept(job: Job) -> int:
    """How many of each worker's last windows the job's policy or its predictor reads."""
    policy = POLICIES.get(job.policy)
    read = 0 if policy is None else policy.looks_back(job)
    return read if predictor_of(job).ahead is None else max(read, LOOKS_BACK)


def weighs_noise(job: Job) -> bool:
    """Whether the job's policy weighs how much the workers' steps vary."""
    policy = POLICIES.get(job.policy)
    return policy is not None and policy.weighs_noise


def seats_of(
    job: Job,
    plan: Plan,
    workers: Sequence[RememberedWorker],
    windows: Sequence[Estimate | None],
    metrics: Sequence[WorkerMetrics | None] = (),
) -> list[Seat]:
    """The members of a plan as policies see them. A worker without samples has no estimate: it runs no user
    code; one that is left out keeps its batch. `windows` are the newest intervals by rank, None where there is none,
    and `metrics` what is read of the workers now, if that is known.
    """
    groups = {group.name: group for group in job.groups}
    predictor = predictor_of(job)
    bounds = bounds_in_passes(job, [member.group for member in plan.members], workers)
    return [
        Seat(
            member.name,
            groups[member.group],
            member.batch_size,
            (member.batch_size, member.batch_size) if held else pair,
            known.step_time.estimate if member.batch_size > 0 and not held else None,
            window,
            known,
            predictor,
            held,
            None if counters is None else counters.own_seconds_ewma,
            0 if counters is None else counters.epoch,
            counters.smaller_steps if counters is not None and counters.plan_version == plan.version else (),
        )
        for member, known, window, pair, counters in zip(
            plan.members, workers, windows, bounds, metrics or (None,) * len(workers), strict=True
        )
        for held in (known.left_out >= LEFT_OUT,)
    ]
