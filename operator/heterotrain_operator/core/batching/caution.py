"""How much of the caution for workers' noise is believed: as far as whole steps bear it out.

A split that gives steady workers longer times than noisy ones rests on how own times are distributed, of which means
and variances are known alone. They tell how long the slowest of eight takes, but not of hundreds: recorded own times
end within 2.5 to 2.8 times their mean, where lognormal ones of the same variation would make the step of 512 workers
longer by a quarter, and a split for these made it longer by 6 %. So such a split is on trial. Whole steps are compared
with what own times let expect of them, under the batches before and under its own: by how much that gap grows, the
split saves less than it should. Changes of own times are in both, and so is communication as long as it stays the same.

If that is all that it saves, and more than chance or a little of the step, half of it is taken back. Only what that
regains convicts it: less caution is believed from then on, and where steps are still slower than they were, the other
half is taken back, too. If it regains nothing, it was not the split, and the policy may go on from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterotrain_operator.core.batching.expectation import measured_step
from heterotrain_operator.core.batching.policy import Promise, Proposal, Seat
from heterotrain_operator.core.batching.rollback import LEAST_FAILURE, LEAST_REGAINED, LOSS_DEVIATIONS, way_back
from heterotrain_operator.core.batching.words import duration, sizes
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.prediction.whole_steps import LONGEST_HISTORY
from heterotrain_operator.core.state import Memory

TRIAL_WINDOWS = LONGEST_HISTORY
"""Windows of whole steps after which a split that nothing speaks against is acquitted: more are not counted."""

BELIEF_KEPT = 0.3
"""Part of the caution that is still believed after a conviction. Tried with 512 workers under recorded noise, where an
eighth of it is best: 0.3 and 0.5; with the latter more splits were tried and taken back."""

RECOVERY = 400
"""Decisions in which half of the disbelief fades. Tried: 100, 200 and 400, as above."""

FULL_BELIEF = 0.99
"""What counts as all of it."""

LONGEST_WAIT = 8
"""Decisions for which batches stay after half of a split was taken back: twice as many as whole steps need to tell."""


def tried(memory: Memory, seats: Sequence[Seat], proposal: Proposal) -> tuple[Memory, Proposal]:
    """Go on with the trial of the last split for noise, if there is one, and hold the proposal back while it is not
    known what half of the way back regains; but not for long, for whole steps may tell nothing.
    """
    batching = replace(memory.batching, believed=_recovered(memory.batching.believed))
    memory = replace(memory, batching=batching)
    promises = memory.promises
    if promises.trial_steps <= 0 or (proposal.promise is not None and proposal.promise.goes_back):
        return memory, proposal
    whole = memory.whole_steps.estimate(memory.plan_version)
    if whole is not None:
        return _judged(memory, seats, proposal, whole)
    if promises.back_steps <= 0:
        return memory, proposal
    if promises.kept_looks >= LONGEST_WAIT:
        return replace(memory, promises=promises.without_trial()), proposal
    memory = replace(memory, promises=replace(promises, kept_looks=promises.kept_looks + 1))
    if proposal.batches is None:
        return memory, proposal
    reason = "the batches stay until it is known what was regained by half of the way back from the last split"
    return memory, replace(proposal, batches=None, promise=None, reason=reason)


def _recovered(believed: float) -> float:
    return 1.0 if believed >= FULL_BELIEF else 1 - (1 - believed) * 0.5 ** (1 / RECOVERY)


def _judged(memory: Memory, seats: Sequence[Seat], proposal: Proposal, whole: Estimate) -> tuple[Memory, Proposal]:
    """What whole steps say of the split that is on trial, enough of which were measured."""
    promises = memory.promises
    gap = whole.mean_seconds - measured_step([seat.memory for seat in seats])
    grown, lost = gap - promises.trial_gap, whole.mean_seconds - promises.trial_seconds
    by_chance = LOSS_DEVIATIONS * math.sqrt(whole.variance * (1 / whole.steps + 1 / promises.trial_steps))
    free = replace(memory, promises=promises.without_trial())
    if promises.back_steps <= 0:
        if grown <= max(by_chance, LEAST_FAILURE * whole.mean_seconds) or lost < 0:
            ends = memory.whole_steps.whole_windows >= TRIAL_WINDOWS
            return (free if ends else memory), proposal
        back = _way_back(seats, 0.5, (whole.mean_seconds, promises.trial_seconds))
        return (memory, back) if back is not None else (free, proposal)
    if promises.back_gap - gap < LEAST_REGAINED * (promises.back_gap - promises.trial_gap):
        return free, proposal
    free = replace(free, batching=replace(free.batching, believed=BELIEF_KEPT * free.batching.believed))
    if lost <= by_chance:
        return free, _with_less_belief(proposal)
    back = _way_back(seats, 0.0, (whole.mean_seconds, promises.trial_seconds))
    return free, back or _with_less_belief(proposal)


def _with_less_belief(proposal: Proposal) -> Proposal:
    """A split for noise was proposed with what was believed till now: the next decision proposes it with less."""
    if proposal.batches is None or proposal.promise is None or not proposal.promise.expected:
        return proposal
    reason = "the batches stay until a split for the workers' noise is proposed with less caution"
    return replace(proposal, batches=None, promise=None, reason=reason)


def _way_back(seats: Sequence[Seat], left: float, took: tuple[float, float]) -> Proposal | None:
    """Batches of which so much of the split is `left`, where steps take so long now, and did before; while some is, the
    trial goes on. None if there are none within the bounds.
    """
    back = way_back(seats, left)
    if back is None:
        return None
    reason = (
        f"whole steps take {duration(took[0])}, and took {duration(took[1])} before the last split for the workers' "
        f"noise, {'half of which' if left else 'which'} is taken back (batches {sizes(back)})"
    )
    return Proposal(back, reason, promise=Promise(0.0, expected=True, goes_back=True) if left else None)
