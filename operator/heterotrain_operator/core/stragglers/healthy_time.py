"""What a worker's healthy time and its noise are: learned while it is healthy, carried to other batches and CPU limits,
and kept while anything speaks against it, so that no fault excuses itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, SAME_LIMIT, Estimate
from heterotrain_operator.core.stragglers.evidence import Evidence, made
from heterotrain_operator.core.stragglers.rule import Reading

PERSISTENCE = 0.5
"""Correlation of successive windows that is allowed for, fading as fast from one to the next. Of windows of ten steps
where steps are an AR(1) of 0.9 it makes long sums vary 3 times as much as if they were independent; they do 2.6 times.
With 0.6, one of 40 workers that became twice as slow under such noise was named later than ten intervals after."""

INFLATION = (1 + PERSISTENCE) / (1 - PERSISTENCE)
"""Variance of a long sum of windows of that correlation, over that of as many independent ones."""

LEAST_TOLERANCE = 0.1
"""Slowdown (its logarithm) that is worth reporting at least, whatever threshold the user gives: machines waver."""

LEAST_SPREAD = 0.02
"""Standard deviation of windows at least: no fitted time is exact."""

HEALTHY_WINDOWS = 30
"""Windows that the healthy time is averaged over; it is kept then, so that a creeping slowdown shows."""

LEARNING_WINDOWS = 2
"""With fewer healthy windows than these, so slow ones as `LEARNING_RATIO` are still taken for healthy."""

LEARNING_RATIO = 2.5
"""What a changed CPU limit or another batch can do to a time beyond its prediction; steps under a quota took up to 1.8
times as long as predicted by the limits' ratio."""

MOVED = math.log(1.25)
"""A change of the batch by which the time changes so much makes the healthy time another one, to be learned again."""

OUTLIER = 9.0
"""Times the variance that a window counts as at most when the noise is learned."""

PRIOR_WINDOWS = 4
"""Windows that the noise assumed at first counts for."""

RECOVERY_CHANCE = 1e-2
"""Chance per window that noise alone ends a verdict: a false end costs one event, and the next verdict."""

CAUTION = 2.0
"""Standard errors of the healthy time that every window is excused by, since that error is one of all of them."""

SHAPE_ERROR = 0.1
"""Error of the exponent by which a time grows with the batch, where it is carried from one batch to another."""

FARTHEST = 4
"""Times fewer samples at most for which that holds: with nearly none a step is mostly overhead, which is known badly.
With fewer still it takes at most as long."""

FEW = 3
"""Up to so many workers the others' median is taken without the worker itself."""

HARDLY = 0.5
"""Elasticity below which a limit was rather without effect when it was changed last."""


class Limits(NamedTuple):
    """A CPU limit that has changed, in cores, by which steps are expected to take `factor` times as long where it
    binds; `elasticity` is what former changes had of such an effect.
    """

    old: float
    new: float
    factor: float
    elasticity: float


def with_common_noise(evidence: Evidence, common: int) -> Evidence:
    """With at least the spread that most workers have, while few healthy windows are known: some few may be alike by
    chance, and long noise would count against the worker then.
    """
    if evidence.healthy_windows >= HEALTHY_WINDOWS or evidence.spread == 0:
        return evidence
    least = round(common * math.sqrt(1 - evidence.healthy_windows / HEALTHY_WINDOWS))
    return evidence if evidence.spread >= least else evidence._replace(spread=least)


def resized(settings: Stragglers, evidence: Evidence, limits: Limits) -> Evidence:
    """Once the worker's CPU limit has changed.

    A change of the limit is by design: what is healthy is what no effect and the whole of it explain, and is learned
    again, unless the worker was suspected before. A limit that was found not to bind does not when it comes back, nor
    does a greater one, so what is healthy stays known then; and no greater limit makes a worker slower.
    """
    if evidence.healthy_windows == 0:
        return evidence
    if limits.elasticity < HARDLY:
        unbound = evidence.unbound_limit
        evidence = evidence._replace(unbound_limit=min(unbound, limits.old) if unbound else limits.old)
    factor, windows = max(limits.factor, 1.0), evidence.healthy_windows
    if 0 < evidence.unbound_limit <= limits.new * (1 + SAME_LIMIT):
        factor **= limits.elasticity
    elif not _suspected(evidence, tolerance_of(settings)):
        windows = min(windows, LEARNING_WINDOWS) if factor == 1 else 1
    seconds = min(evidence.healthy_seconds * factor, ABSURD_SECONDS)
    return evidence._replace(healthy_seconds=seconds, healthy_windows=windows).rounded()


def _suspected(evidence: Evidence, tolerance: float) -> bool:
    """Whether more speaks against a worker than its noise explains."""
    if evidence.named or not evidence.evidence:
        return evidence.named > 0
    noise = -math.log(RECOVERY_CHANCE) * variance_of(evidence) / tolerance
    return evidence.evidence > 1000 * min(noise, tolerance / 2)


def variance_of(evidence: Evidence) -> float:
    """Of a window's shift, as long sums of windows show it."""
    return INFLATION * max(evidence.spread / 1000, LEAST_SPREAD) ** 2


def rebased(readings: Sequence[Reading]) -> list[tuple[float, Evidence]]:
    """For each worker the healthy time that is expected at its present batch (0: not known), and the evidence about
    that batch.

    A time is carried from one batch to another by the overhead of a step, in samples, that most like workers have: the
    fit of a single one is bent by the very change of speed that is to be judged. It is carried the worse, the more the
    batches differ, so what was healthy counts for fewer windows then, or for none: such a time only tells whether the
    worker has become slower with all others. Where anything speaks against a worker it is left as it was.
    """
    if all(each.evidence.healthy_batch in (0, each.batch) for each in readings):
        return [(each.evidence.healthy_seconds, each.evidence) for each in readings]
    overheads = _overheads(readings)
    return [_rebased(reading, overheads) for reading in readings]


def _rebased(reading: Reading, overheads: Callable[[Reading], float | None]) -> tuple[float, Evidence]:
    evidence = reading.evidence
    if evidence.healthy_batch == reading.batch:
        return evidence.healthy_seconds, evidence
    if evidence.healthy_windows == 0:
        return 0.0, evidence
    overhead = overheads(reading)
    if overhead is None or min(reading.batch, evidence.healthy_batch) <= 0 or reading.window is None:
        return 0.0, evidence
    ratio = (overhead + _judged_batch(reading, evidence)) / (overhead + evidence.healthy_batch)
    expected = evidence.healthy_seconds * ratio
    if evidence.evidence > 0 or evidence.named:
        # With very few samples a time that is short says nothing: it is known only how long it may be at most.
        few = reading.batch < _judged_batch(reading, evidence) and reading.window.mean_seconds < expected
        return 0.0 if few else expected, evidence
    share = 1 - abs(math.log(ratio)) / MOVED
    kept = (
        min(max(int(evidence.healthy_windows * share), LEARNING_WINDOWS), evidence.healthy_windows) if share > 0 else 0
    )
    return expected, evidence._replace(healthy_seconds=expected, healthy_batch=reading.batch, healthy_windows=kept)


def _overheads(readings: Sequence[Reading]) -> Callable[[Reading], float | None]:
    """The samples that take as long as what a step takes beside them, as the median of a worker's group, or if that is
    small of all on its kind of device; None where nothing is known.
    """
    of_group: dict[str, list[float]] = {}
    of_device: dict[str, list[float]] = {}
    for reading in readings:
        line = reading.line()
        if line is not None and line.seconds_per_sample > 0:
            samples = max(line.fixed_seconds / line.seconds_per_sample, 0.0)
            of_group.setdefault(reading.group, []).append(samples)
            of_device.setdefault(reading.device, []).append(samples)
    groups = {name: median(samples) for name, samples in of_group.items() if len(samples) >= FEW}
    devices = {name: median(samples) for name, samples in of_device.items()}
    return lambda reading: groups.get(reading.group, devices.get(reading.device))


def own_error(reading: Reading, evidence: Evidence) -> float:
    """What the healthy time that is expected may be too short by, as a logarithm: it is known by a mean of few windows,
    whose error is one of all windows that follow, and it may be carried from another batch.
    """
    if evidence.healthy_windows == 0:
        return 0.0
    error = CAUTION * math.sqrt(variance_of(evidence) / evidence.healthy_windows)
    if evidence.healthy_batch == reading.batch or min(evidence.healthy_batch, reading.batch) <= 0:
        return error
    return error + SHAPE_ERROR * abs(math.log(_judged_batch(reading, evidence) / evidence.healthy_batch))


def _judged_batch(reading: Reading, evidence: Evidence) -> float:
    """The batch for which a time is expected: the present one, or one of more samples, where it has very few now."""
    return max(reading.batch, evidence.healthy_batch / FARTHEST)


def learned(
    evidence: Evidence,
    batch: int,
    window: Estimate,
    *,
    shift: float | None,
    joined: float,
    weight: float,
    tolerance: float,
) -> Evidence:
    """The evidence with what a window of a healthy worker teaches of its healthy time and of its noise. `shift` is the
    window's logarithm over the time that was expected (None: none was), of which `joined` slows the whole job.
    """
    known = evidence.healthy_windows
    suspected = bool(evidence.named or evidence.evidence) and _suspected(evidence, tolerance)
    if known == 0 or shift is None:
        if suspected or weight < 1:  # of few steps, neither mean nor variation says much
            return evidence
        # What windows vary by beyond what their steps say is assumed where it is not known yet.
        unknown = max(INFLATION / window.inflation, 1.0)
        spread = evidence.spread or thousandths(max(math.sqrt(unknown) * window.relative_error, LEAST_SPREAD))
        seconds = window.mean_seconds * math.exp(-joined)
        return evidence._replace(healthy_seconds=seconds, healthy_batch=batch, healthy_windows=1, spread=spread)
    shift, spread = shift - joined, evidence.spread
    if shift < 0:
        # Only fast windows: slow ones may be a fault, which must not excuse itself as noise.
        variance = (spread / 1000) ** 2
        seen = min(weight * shift**2 * known / (known + 1), OUTLIER * variance)
        variance += (seen - variance) / (known + PRIOR_WINDOWS)
        spread = thousandths(max(math.sqrt(variance), LEAST_SPREAD))
    accepted = math.log(LEARNING_RATIO) if known < LEARNING_WINDOWS else tolerance
    if suspected or shift > accepted or (known >= HEALTHY_WINDOWS and shift >= -MOVED):
        return evidence if spread == evidence.spread else evidence._replace(spread=spread)
    if shift < -MOVED:
        known //= 2  # it has never been so fast: what was taken for healthy may not have been
    # At another batch than the healthy time is of, where it was kept for what speaks against it, the shift says it.
    seconds = (known + math.exp(shift)) / (known + 1) * evidence.healthy_seconds
    windows = known + 1 if known < HEALTHY_WINDOWS else HEALTHY_WINDOWS
    return made((seconds, evidence.healthy_batch, windows, spread, *evidence[4:]))


def tolerance_of(settings: Stragglers) -> float:
    """The slowdown that is worth reporting, as its logarithm."""
    return max(-math.log(settings.threshold), LEAST_TOLERANCE)


def thousandths(value: float) -> int:
    return round(1000 * value)
