"""How far a fitted split is believed: by how well the last ones kept their promises.

Own times are only nearly affine. Under a CPU quota a worker that waits saves up quota for its next step, and is faster
than the same worker at nearly the same batch when the others wait for it. No line holds both, and moves made on one
would go to and fro for ever. So the step that a split promised is compared with the one that came: a split that made
the step slower is taken back by halves, and until the doubt has faded a further one must promise to save more than the
last ones fell short by. One that made it faster, if by less than it promised, raises no doubt. Where the way back makes
the step hardly faster, it was not the split: a worker's speed changed just when the batches did, and all doubt ends.
Otherwise it fades, the slower, the more often promises were missed.

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

from heterotrain_operator.core.batching.likeness import measured_step
from heterotrain_operator.core.batching.policy import Promise, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.batching.words import duration, percent, sizes
from heterotrain_operator.core.prediction.noise import Noise
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.prediction.whole_steps import LONGEST_HISTORY
from heterotrain_operator.core.remembered.batching import Promises
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import infeasible
from heterotrain_operator.core.state import Remembered

LEAST_FAILURE = 0.05
"""Share of the step by which a promise may be missed and still count as kept."""

LOSS_DEVIATIONS = 3.0
"""Standard errors by which a step must exceed the one before the split to be taken for slower; fewer than for a new
split, for the way back leads to what is known."""

LEAST_REGAINED = 0.2
"""Part of what the split has lost that the way back by half of it regains at least, if the split is what has lost it.
Tried: 0 to 0.25; with 0, noise that made each step a little shorter than the last led all the way back, by seven plans,
while a worker that had become slow kept its samples."""

CAUTION = 2.0
"""Times the doubt that a further split must promise to save. Tuned on twelve rows of `hack/bench/simulated.py`: without
doubt workers that no line describes moved in half of all decisions, with 1 in 8 to 11 of 100, with 2 in 7 to 8."""

HALF_LIFE = 20
"""Decisions in which the doubt halves after one missed promise; twice as many after each further one."""

GREATEST_FAILURES = 20
"""Missed promises beyond which the doubt fades no slower."""

KEPT_LOOKS = 3
"""Decisions after which a promise that was kept at each of them is fulfilled: a step that gets slower later does so for
other reasons, as a drift that all workers share. Of 1 to 20 and for ever, all served workers that no line describes
alike; under drifts of 0.3 to 1 % per decision, at noise up to 10 %, the plans per 100 decisions grew from 0.46 to 0.65,
and to 1.3 for ever."""

LEAST_DOUBT = 0.01
"""A doubt below this is forgotten: the least saving that is worth a move exceeds it."""


def reviewed(memory: Remembered, seats: Sequence[Seat], proposal: Proposal) -> tuple[Remembered, Proposal]:
    """Compare what the active plan promised with what was measured, and hold the proposal back as far as it failed.

    A step slower than promised, beyond noise, raises the doubt by the share that it fell short, once. While it is
    slower than the step before that plan, too, half of the move is taken back, and half of the rest: a line search
    between two splits of which the earlier is known to be better. Where that makes it hardly faster, nothing is held
    back.
    """
    promises = _faded(memory.promises)
    estimates = [seat.estimate for seat in seats if seat.estimate is not None]
    if estimates:
        worst = max(estimates, key=lambda estimate: estimate.mean_seconds)
        if promises.expected_steps:
            step = measured_step([seat.memory for seat in seats])
            worst = worst._replace(mean_seconds=step, variance=worst.variance * (step / worst.mean_seconds) ** 2)
        if _regains_nothing(promises, worst.mean_seconds):
            return replace(memory, promises=Promises()), proposal
        promises = _judged(promises, worst, estimates)
        back = _half_way_back(promises, seats, worst)
        if back is not None:
            return replace(memory, promises=promises), back
    memory = replace(memory, promises=promises)
    if proposal.batches is None or not 0 < proposal.saving <= CAUTION * promises.doubt:
        return memory, proposal
    reason = (
        f"the batches stay: a split that promises to save {percent(proposal.saving, 1)} of the step is not believed, "
        f"since others missed their promises by {percent(promises.doubt, 1)}"
    )
    return memory, replace(proposal, batches=None, reason=reason)


def promised(memory: Remembered, promise: Promise | None, replaced_batches: Sequence[int]) -> Remembered:
    """The memory at the publication of a plan that promises something, in place of batches whose step was measured."""
    if promise is None:
        return replace(memory, promises=memory.promises.without_promise())
    if promise.expected:
        measured = measured_step(memory.workers)
    else:
        measured = max((worker.step_time.mean_seconds for worker in memory.workers), default=0.0)
    if promise.goes_back and promise.seconds > 0:
        return replace(memory, promises=replace(memory.promises.without_trial(), retreated_seconds=measured))
    whole, steps = memory.whole_steps.mean(memory.plan_version) if promise.expected else (0.0, 0.0)
    gap = whole - measured if steps > 0 else 0.0
    if promise.goes_back:
        return replace(memory, promises=replace(memory.promises.without_comparison(), back_gap=gap, back_steps=steps))
    return replace(
        memory,
        promises=replace(
            memory.promises.without_promise(),
            promised_seconds=promise.seconds,
            replaced_seconds=measured if promise.seconds > 0 else 0.0,
            expected_steps=promise.expected,
            trial_seconds=whole,
            trial_gap=gap,
            trial_steps=steps,
        ),
        workers=tuple(
            worker._replace(replaced_batch=batch)
            for worker, batch in zip(memory.workers, replaced_batches, strict=True)
        ),
    )


def _faded(promises: Promises) -> Promises:
    half_life = HALF_LIFE * 2 ** min(max(promises.missed_promises - 1, 0), GREATEST_FAILURES)
    doubt = promises.doubt * 0.5 ** (1 / half_life)
    return replace(promises, doubt=doubt if doubt >= LEAST_DOUBT else 0.0)


def _judged(promises: Promises, worst: Estimate, estimates: Sequence[Estimate]) -> Promises:
    """With the doubt that a missed promise raises, unless the step got shorter all the same: then the fit was wrong by
    some measure, and has learned from it. One that is missed, or fulfilled after some decisions, is judged: 0 seconds
    stand for it.
    """
    if promises.promised_seconds <= 0:
        return promises
    missed = 1 - promises.promised_seconds / worst.mean_seconds
    if missed <= max(Noise(estimates).explains(worst), LEAST_FAILURE):
        looks = promises.kept_looks + 1
        return promises.without_comparison() if looks >= KEPT_LOOKS else replace(promises, kept_looks=looks)
    if worst.mean_seconds < promises.replaced_seconds:
        return promises.without_comparison()
    return replace(
        promises,
        promised_seconds=0.0,
        doubt=1 - (1 - promises.doubt) * (1 - missed),
        missed_promises=min(promises.missed_promises + 1, GREATEST_FAILURES),
    )


def _regains_nothing(promises: Promises, seconds: float) -> bool:
    """Whether the way back has made the step hardly faster than it was before half of the split was taken back."""
    retreated = promises.retreated_seconds
    lost = max(retreated - promises.replaced_seconds, 0.0)
    return retreated > 0 and seconds >= retreated - LEAST_REGAINED * lost


def _half_way_back(promises: Promises, seats: Sequence[Seat], worst: Estimate) -> Proposal | None:
    """The split between the present one, which missed its promise, and the one before it, which was faster; None if
    it was not, or if there is none between within the bounds.
    """
    if promises.promised_seconds > 0 or promises.replaced_seconds <= 0:
        return None
    lost = 1 - promises.replaced_seconds / worst.mean_seconds
    if lost <= LOSS_DEVIATIONS * math.sqrt(2) * worst.relative_error:
        return None
    back = way_back(seats, 0.5)
    if back is None:
        return None
    reason = (
        f"the step takes {duration(worst.mean_seconds)}, and took {duration(promises.replaced_seconds)} before the "
        f"last split, half of which is taken back (batches {sizes(back)})"
    )
    return Proposal(back, reason, promise=Promise(promises.replaced_seconds, promises.expected_steps, goes_back=True))


def way_back(seats: Sequence[Seat], left: float) -> tuple[int, ...] | None:
    """The batches between those before the last split and the present ones, of which so much is `left` (0 to 1); None
    if there are none within the bounds.
    """
    present = tuple(seat.batch for seat in seats)
    total, bounds, multiples = sum(present), [seat.bounds for seat in seats], multiples_of_seats(seats)
    if sum(seat.memory.replaced_batch for seat in seats) != total or infeasible(total, bounds, multiples) is not None:
        return None
    shares = [left * seat.batch + (1 - left) * seat.memory.replaced_batch for seat in seats]
    back = split_proportionally(shares, total, bounds, multiples)
    return None if back == present else back


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


def apply_trial(memory: Remembered, seats: Sequence[Seat], proposal: Proposal) -> tuple[Remembered, Proposal]:
    """Go on with the trial of the last split for noise, if there is one, and hold the proposal back while it is not
    known what half of the way back regains; but not for long, for whole steps may tell nothing.
    """
    batching = replace(memory.batching, noise_caution_weight=_recovered(memory.batching.noise_caution_weight))
    memory = replace(memory, batching=batching)
    promises = memory.promises
    if promises.trial_steps <= 0 or (proposal.promise is not None and proposal.promise.goes_back):
        return memory, proposal
    whole = memory.whole_steps.estimate(memory.plan_version)
    if whole is not None:
        return _judged_by_whole_steps(memory, seats, proposal, whole)
    if promises.back_steps <= 0:
        return memory, proposal
    if promises.kept_looks >= LONGEST_WAIT:
        return replace(memory, promises=promises.without_trial()), proposal
    memory = replace(memory, promises=replace(promises, kept_looks=promises.kept_looks + 1))
    if proposal.batches is None:
        return memory, proposal
    reason = "the batches stay until it is known what was regained by half of the way back from the last split"
    return memory, replace(proposal, batches=None, promise=None, reason=reason)


def _recovered(weight: float) -> float:
    return 1.0 if weight >= FULL_BELIEF else 1 - (1 - weight) * 0.5 ** (1 / RECOVERY)


def _judged_by_whole_steps(
    memory: Remembered, seats: Sequence[Seat], proposal: Proposal, whole: Estimate
) -> tuple[Remembered, Proposal]:
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
        back = _split_way_back(seats, 0.5, (whole.mean_seconds, promises.trial_seconds))
        return (memory, back) if back is not None else (free, proposal)
    if promises.back_gap - gap < LEAST_REGAINED * (promises.back_gap - promises.trial_gap):
        return free, proposal
    free = replace(
        free, batching=replace(free.batching, noise_caution_weight=BELIEF_KEPT * free.batching.noise_caution_weight)
    )
    if lost <= by_chance:
        return free, _with_less_belief(proposal)
    back = _split_way_back(seats, 0.0, (whole.mean_seconds, promises.trial_seconds))
    return free, back or _with_less_belief(proposal)


def _with_less_belief(proposal: Proposal) -> Proposal:
    """A split for noise was proposed with what was believed till now: the next decision proposes it with less."""
    if proposal.batches is None or proposal.promise is None or not proposal.promise.expected:
        return proposal
    reason = "the batches stay until a split for the workers' noise is proposed with less caution"
    return replace(proposal, batches=None, promise=None, reason=reason)


def _split_way_back(seats: Sequence[Seat], left: float, took: tuple[float, float]) -> Proposal | None:
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
