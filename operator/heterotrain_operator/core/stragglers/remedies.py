"""What could be done about a straggler, what each would gain, what a replacement costs, and whether it is worth it.

Rebalancing comes first, since it costs nothing: what is left of the loss once the batches are balanced is what a
replacement, or doing without the worker, is held against. It needs no advice either, since the policy does it by
itself; with an action that hastens it (`verdict.py`) it only waits for less (`batching/rebalance.py`). Of anything else
a single interval convinces nobody: it must be worth it for several in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policies import Seat
from heterotrain_operator.core.batching.policy import multiples_of_seats
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from heterotrain_operator.core.split.multiples import infeasible
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.verdict import Grounds, Outlooks, Remedy, Verdict

LEAST_GAIN = 0.02
"""Share of the step below which rebalancing is not worth naming; as much as `Optimal` moves for."""

LEAST_SWAP_GAIN = 0.05
"""Share of the balanced step that another set of workers must save: less is within what predictions err by."""

LEAST_ELASTIC_GAIN = 0.005
"""The same where members change while the others train: then a replacement costs little, and that somebody who is
slow by fault would better be healthy is sure, however little it makes up of a job of many workers."""


def outlooks(
    seats: Sequence[Seat], slowdowns: Mapping[int, float], replacement_seconds: float
) -> Mapping[int, Outlooks]:
    """Own seconds of a step with each of these ranks' workers, which is so many times slower than expected, and without
    it; none if nothing is known of some worker, or no split is possible. Each takes two splits among all workers.
    """
    lines, bounds = [], []
    for seat in seats:
        prediction = seat.prediction
        if prediction is None:
            return {}
        lines.append(prediction.line)
        bounds.append(seat.bounds)
    batches = [seat.batch for seat in seats]
    total = sum(batches)
    multiples = multiples_of_seats(seats)
    if not slowdowns or infeasible(total, bounds, multiples) is not None:
        return {}
    as_it_is = iteration_seconds(lines, batches)
    rebalanced = iteration_seconds(lines, waterfill(lines, total, bounds, multiples))
    found = {}
    for rank, slowdown in slowdowns.items():
        healthy = [_scaled(line, 1 / slowdown) if other == rank else line for other, line in enumerate(lines)]
        rest = [other for other in range(len(seats)) if other != rank]
        found[rank] = Outlooks(
            as_it_is=as_it_is,
            rebalanced=rebalanced,
            replaced=iteration_seconds(healthy, waterfill(healthy, total, bounds, multiples)),
            removed=_best_of([lines[other] for other in rest], [seats[other] for other in rest], total),
            replacement_seconds=replacement_seconds,
        )
    return found


def fair_share(seats: Sequence[Seat], rank: int, slowdown: float) -> float | None:
    """Samples that a worker gets which is so many times faster than the one of this rank, beside the present batches of
    the others, if all are to be ready together; None where `outlooks` says nothing either.
    """
    predictions = [seat.prediction for seat in seats]
    lines = [prediction.line for prediction in predictions if prediction is not None]
    bounds, multiples = [seat.bounds for seat in seats], multiples_of_seats(seats)
    total, present = sum(seat.batch for seat in seats), seats[rank].batch
    if len(lines) < len(seats) or infeasible(total, bounds, multiples) is not None:
        return None
    lines[rank] = _scaled(lines[rank], 1 / slowdown)
    share = waterfill(lines, total, bounds, multiples)[rank]
    return share * (total - present) / (total - share) if 0 < share < total else float(share)


def best_remedy(ahead: Outlooks | None, steps_left: int | None, *, least_swap_gain: float = LEAST_SWAP_GAIN) -> Remedy:
    """What helps best, by the predictions; `steps_left` None: not known, and taken as enough to repay any cost."""
    if ahead is None:
        return Remedy.IGNORE
    if 1 - ahead.rebalanced / ahead.as_it_is >= LEAST_GAIN:
        return Remedy.REBALANCE
    if replacement_pays(ahead, steps_left, least_swap_gain=least_swap_gain):
        return Remedy.REPLACE
    if ahead.removed is not None and 1 - ahead.removed / ahead.rebalanced >= LEAST_GAIN:
        return Remedy.REMOVE
    return Remedy.IGNORE


def replacement_pays(
    ahead: Outlooks | None, steps_left: int | None, *, least_swap_gain: float = LEAST_SWAP_GAIN
) -> bool:
    """Whether a healthy replacement gains more than it costs, beside balanced batches: also where the policy does not
    make the last move that balancing predicts, since noise might explain it.
    """
    if ahead is None:
        return False
    saved = ahead.rebalanced - ahead.replaced
    repaid = steps_left is None or steps_left * saved > ahead.replacement_seconds
    return saved >= least_swap_gain * ahead.rebalanced and repaid


def _best_of(lines: Sequence[Line], seats: Sequence[Seat], total: int) -> float | None:
    bounds, multiples = [seat.bounds for seat in seats], multiples_of_seats(seats)
    if not lines or infeasible(total, bounds, multiples) is not None:
        return None
    return iteration_seconds(lines, waterfill(lines, total, bounds, multiples))


def _scaled(line: Line, factor: float) -> Line:
    return Line(line.fixed_seconds * factor, line.seconds_per_sample * factor)


ENOUGH_INTERVALS = 2
"""Intervals in a row after which it is done."""

MOST_COUNTED = 100
"""More intervals in a row say nothing more."""


def advised(job: Job, plan: Plan, memory: Remembered, standing: Sequence[Verdict]) -> Remembered:
    """The memory after an interval with these standing verdicts; its workers are the plan's members, by rank."""
    action = job.stragglers.action
    named = {verdict.worker for verdict in standing}
    others = {member.group for member in plan.members if member.name not in named}
    wanted = {
        verdict.worker
        for verdict in standing
        if is_worth(action, verdict) and (action != "Replace" or is_fault(verdict, verdict.group in others))
    }
    if not wanted and not any(known.evidence.advised for known in memory.workers):
        return memory
    workers = []
    for member, known in zip(plan.members, memory.workers, strict=True):
        count = min(known.evidence.advised + 1, MOST_COUNTED) if member.name in wanted else 0
        changed = count != known.evidence.advised
        workers.append(known.with_evidence(known.evidence._replace(advised=count)) if changed else known)
    return replace(memory, workers=tuple(workers))


def is_worth(action: str, verdict: Verdict) -> bool:
    """Whether the action is what helps this straggler's job, by the predictions."""
    if action == "Replace":
        return verdict.replacement_pays
    return action == "Remove" and verdict.outlooks is not None and gains_without(verdict.outlooks)


def is_fault(verdict: Verdict, has_healthy_peers: bool) -> bool:
    """Whether another worker of its group is likely faster. Of one that is only too slow at its least batch that is not
    known where its whole group is: machines of a group may be slow by design.
    """
    return verdict.grounds is not Grounds.LEAST_BATCH or has_healthy_peers


def gains_without(ahead: Outlooks) -> bool:
    """Whether the others are faster without the worker than with its batch balanced; they have the same global batch,
    so the throughput rises as the step gets shorter.
    """
    return ahead.removed is not None and ahead.removed < ahead.rebalanced * (1 - LEAST_GAIN)
