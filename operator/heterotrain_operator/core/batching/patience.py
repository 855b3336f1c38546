"""Small gains that noise might explain are taken, too, but only each time that the evidence has grown by a half.

What noise explains shrinks with the steps that are averaged, and while it is large a split that was chosen on few steps
would stay although a better one is likely. A move at each such growth is worth its cost even if it is by chance, and
there can only be a few of them, for averages are over a limited number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from heterotrain_operator.core.batching.policy import Proposal, Seat

DEVIATIONS = 1.0
"""Standard errors of the slowest that such a gain must exceed. Tried: 0.7 to 1.5, on independent, autoregressive and
recorded noise; with less, plans were more and steps the same."""

USUAL_WORKERS = 8
"""Of more workers the slowest seems slow by chance ever more, so that a gain must exceed more."""

GROWTH = 1.5
"""Times the evidence that the present split rests on. Tried: 1.3 to 2; with 2, steps under recorded noise took 2 %
longer, and with 1.4 autoregressive noise of 32 workers was followed by more than 3 plans in 100 intervals."""


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
