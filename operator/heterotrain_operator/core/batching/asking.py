"""What the job's policy is asked, and what it answers: the members of a plan as seats, and its proposal."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.bounds import safe_bounds
from heterotrain_operator.core.batching.policies import POLICIES, Proposal, Seat
from heterotrain_operator.core.facts import group_of, listed
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.state import Memory, WorkerMemory


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
        estimate = known.step_time.estimate if member.batch_size > 0 else None
        seats.append(Seat(member.name, group, member.batch_size, pair, estimate, window, known))
    return seats
