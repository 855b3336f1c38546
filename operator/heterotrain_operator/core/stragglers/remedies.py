"""What could be done about a straggler, what each would gain, and what a replacement costs.

Rebalancing comes first, since it costs nothing: what is left of the loss once the batches are balanced is what a
replacement, or doing without the worker, is held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterotrain_operator.core.batching.policies import Seat
from heterotrain_operator.core.batching.policy import multiples_of_seats
from heterotrain_operator.core.split.multiples import infeasible
from heterotrain_operator.core.split.waterfill import Line, iteration_seconds, waterfill
from heterotrain_operator.core.stragglers.verdict import Outlooks, Remedy

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
