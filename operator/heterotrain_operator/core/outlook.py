"""What a job's policy would do now, and the best there is to reach, for people who ask why; it changes nothing.

The memory that is stored holds measurements only as of its last write, so own times reported elsewhere stand in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.batching.asking import ask_policy, likely_seats, seats_of
from heterotrain_operator.core.batching.bounds import repaired
from heterotrain_operator.core.batching.policies import Proposal, Seat
from heterotrain_operator.core.batching.policy import multiples_of_seats
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.step_time import ASSUMED_VARIATION, Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from heterotrain_operator.core.split.multiples import infeasible
from heterotrain_operator.core.state import Remembered


@dataclass(frozen=True, slots=True)
class WorkerOutlook:
    """One member of the plan: its seat, its fitted own time over the batch (None: nothing is known), the batch that
    would be proposed now, and the one of the best split (None without a ceiling). `reported`: its estimate is a
    reported one of assumed noise, since the memory has none.
    """

    seat: Seat
    reported: bool
    line: Line | None
    proposed: int
    best: int | None

    @property
    def samples_per_second(self) -> float | None:
        """Speed at its own time, without waiting; None if it was not measured."""
        estimate = self.seat.estimate
        return None if estimate is None else self.seat.batch / estimate.mean_seconds


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Own seconds of the slowest worker, by the fitted times: with the present batches, and with the best split."""

    present_seconds: float
    best_seconds: float

    @property
    def share(self) -> float:
        """How much of the best speed is reached, all-reduce left out."""
        return self.best_seconds / self.present_seconds


@dataclass(frozen=True, slots=True)
class Outlook:
    """The workers by rank, what would be proposed and why, and the ceiling, or why there is none."""

    workers: tuple[WorkerOutlook, ...]
    proposal: Proposal
    ceiling: Ceiling | None
    no_ceiling: str = ""


def outlook(job: Job, plan: Plan, memory: Remembered, reported: Mapping[str, float], now: float) -> Outlook:
    """Look ahead from an active plan and what is remembered.

    `reported` holds own seconds per step by worker, of this very plan; they count where the memory has no estimate,
    as one interval of usual noise. `now` in Unix seconds. Raises ValueError if the plan names groups that the job
    does not have.
    """
    groups = {group.name for group in job.groups}
    unknown = sorted({member.group for member in plan.members} - groups)
    if unknown:
        raise ValueError(f"plan {plan.version} has workers of {listed(unknown)}, which the job does not have")
    if job.growth is not None:
        job = replace(job, global_batch=plan.global_batch_size)
    memory = aligned(memory, plan, now)
    remembered = memory.workers
    workers = tuple(
        _with_report(job, known, reported.get(member.name))
        for known, member in zip(remembered, plan.members, strict=True)
    )
    memory = replace(memory, workers=workers)
    windows = [None] * len(workers)
    seats = seats_of(job, plan, workers, windows)
    repair = repaired(job, plan, memory.workers)
    likely, as_slow = likely_seats(job, seats, memory)
    proposal = Proposal(*repair) if repair is not None else ask_policy(job, likely, memory.batching)
    if as_slow and repair is None:
        proposal = replace(proposal, reason=f"{proposal.reason}; {as_slow}")
    predictions = [seat.prediction for seat in seats]
    lines = [None if prediction is None else prediction.line for prediction in predictions]
    best, ceiling, why_not = _ceiling(plan, seats, lines)
    proposed = proposal.batches or plan.batch_sizes
    return Outlook(
        workers=tuple(
            WorkerOutlook(seat, seat.memory != remembered[rank], line, batch, best[rank] if best else None)
            for rank, (seat, line, batch) in enumerate(zip(seats, lines, proposed, strict=True))
        ),
        proposal=proposal,
        ceiling=ceiling,
        no_ceiling=why_not,
    )


def _with_report(job: Job, known: RememberedWorker, seconds: float | None) -> RememberedWorker:
    if known.step_time.estimate is not None or seconds is None or seconds <= 0:
        return known
    estimate = Estimate(seconds, (ASSUMED_VARIATION * seconds) ** 2, float(max(job.interval, 1)))
    return known._replace(step_time=known.step_time.with_estimate(estimate))


def _ceiling(plan: Plan, seats: list[Seat], lines: list[Line | None]) -> tuple[tuple[int, ...], Ceiling | None, str]:
    """The best split of the plan's global batch by the fitted times, within the job's bounds."""
    fitted = [line for line in lines if line is not None]
    if len(fitted) < len(lines):
        unknown = [seat.name for seat, line in zip(seats, lines, strict=True) if line is None]
        return (), None, f"nothing is known yet of {listed(unknown)}"
    bounds, multiples = [seat.bounds for seat in seats], multiples_of_seats(seats)
    why_not = infeasible(plan.global_batch_size, bounds, multiples, [seat.name for seat in seats])
    if why_not is not None:
        return (), None, why_not
    best = waterfill(fitted, plan.global_batch_size, bounds, multiples)
    ceiling = Ceiling(iteration_seconds(fitted, plan.batch_sizes), iteration_seconds(fitted, best))
    return best, ceiling, ""
