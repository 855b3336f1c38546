"""Compare a worker with what is expected of it: its own healthy speed, at its present CPU limit and batch.

Machines of a job are unequal by design, so no worker is blamed for being slower than others. It is blamed for having
become slower than it was itself, unless its whole group has, or for being too slow to be balanced at all.

Evidence is summed over windows of steps (CUSUM; Page, 1954, *Continuous inspection schemes*): each adds the logarithm
of its time over the expected one, less half of the slowdown that is worth reporting, and the sum never falls below 0.
Of a healthy worker it exceeds `h` with a chance of at most `exp(-2*k*h/s^2)` in any window (Kingman's bound on a random
walk with drift `-k` and variance `s^2` per step), so that `h` follows from the false alarms that are tolerated over all
workers and windows of a job together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median, median_low
from typing import NamedTuple

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, Estimate
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.rule import Finding, Interval, Reading, Rule
from heterotrain_operator.core.stragglers.verdict import Grounds

FALSE_ALARM_CHANCE = 1e-4
"""Chance per job, over all of its workers and its whole run, that noise alone names somebody."""

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

LEAST_WINDOWS = 3
"""More windows than these must speak against a worker: a single stall of any length names nobody."""

GREATEST_SHIFT = math.log(2)
"""What one window can say at most, for the same reason."""

GREATEST_LEVEL = 2 * GREATEST_SHIFT
"""As much of a window is averaged at most, so the moving average never exceeds it."""

HEALTHY_WINDOWS = 30
"""Windows that the healthy time is averaged over; it is kept then, so that a creeping slowdown shows."""

LEARNING_WINDOWS = 2
"""With fewer healthy windows than these, so slow ones as `LEARNING_RATIO` are still taken for healthy."""

LEARNING_RATIO = 2.5
"""What a changed CPU limit or another batch can do to a time beyond its prediction; steps under a quota took up to 1.8
times as long as predicted by the limits' ratio."""

SUSPICION = 0.2
"""Evidence above which a worker is not taken for healthy, so that nothing is learned from it."""

MOVED = math.log(1.25)
"""A change of the batch by which the time changes so much makes the healthy time another one, to be learned again."""

OUTLIER = 9.0
"""Times the variance that a window counts as at most when the noise is learned."""

PRIOR_WINDOWS = 4
"""Windows that the noise assumed at first counts for."""

RECOVERY_WINDOWS = 3
"""Healthy windows that end a verdict at least."""

RECOVERY_CHANCE = 1e-2
"""Chance per window that noise alone ends a verdict: a false end costs one event, and the next verdict."""

CAUTION = 2.0
"""Standard errors of the healthy time that every window is excused by, since that error is one of all of them."""

SHAPE_ERROR = 0.1
"""Error of the exponent by which a time grows with the batch, where it is carried from one batch to another."""

FARTHEST = math.log(4)
"""Logarithm of the greatest ratio of batches for which that error grows."""

FEW = 3
"""Up to so many workers the others' median is taken without the worker itself."""


def judge(settings: Stragglers, interval: Interval, readings: Sequence[Reading]) -> list[Evidence]:
    """Take the interval's windows into the evidence of all workers."""
    tolerance = _tolerance(settings)
    expected = _all_rebased(readings)
    shifts = [_shift(reading.window, at) for reading, at in zip(readings, expected, strict=True)]
    common = _common(readings, shifts)
    times = _others_times(readings)
    alarms = math.log(max(len(readings), 1) * (interval.judged + 1) * (interval.judged + 2) / FALSE_ALARM_CHANCE)
    after = []
    for rank, reading in enumerate(readings):
        evidence, window = expected[rank][1], reading.window
        if window is None:
            after.append(evidence)
            continue
        own, pinned = shifts[rank], -math.inf
        if own is not None:
            own -= common[rank].excuse + _shape_error(reading, evidence)
        if reading.pinned and times is not None:
            pinned = math.log(window.mean_seconds / times[rank])
        weight = min(window.steps / max(interval.steps, 1), 1.0)
        evidence = _summed(settings, evidence, _Said(own, pinned, weight, interval.step), alarms=alarms)
        usual = window._replace(mean_seconds=window.mean_seconds * math.exp(-common[rank].job))
        after.append(_learned(evidence, reading, usual, expected[rank][0], tolerance))
    return after


def find(readings: Sequence[Reading]) -> list[Finding | None]:
    """How slow each worker is now; `window` of a reading is its whole estimate then."""
    expected = _all_rebased(readings)
    shifts = [_shift(reading.window, at) for reading, at in zip(readings, expected, strict=True)]
    common = _common(readings, shifts)
    times = _others_times(readings)
    found: list[Finding | None] = []
    for rank, reading in enumerate(readings):
        own = shifts[rank]
        own = -math.inf if own is None else own - common[rank].excuse
        pinned = -math.inf
        if reading.pinned and times is not None and reading.window is not None:
            pinned = math.log(reading.window.mean_seconds / times[rank])
        if max(own, pinned) == -math.inf:
            found.append(None)
        else:
            grounds = Grounds.LEAST_BATCH if pinned > own else Grounds.ITSELF
            found.append(Finding(math.exp(max(own, pinned)), grounds))
    return found


def resized(evidence: Evidence, factor: float) -> Evidence:
    """Once the worker's CPU limit has changed, by which its steps are expected to take `factor` times as long.

    A change of the limit is by design: what is healthy is what no effect and the whole of it explain, and is learned
    again, unless the worker was suspected before.
    """
    if evidence.healthy_windows == 0:
        return evidence
    windows = evidence.healthy_windows if _suspected(evidence) else 1
    return evidence._replace(
        healthy_seconds=min(evidence.healthy_seconds * max(factor, 1.0), ABSURD_SECONDS), healthy_windows=windows
    ).rounded()


def _suspected(evidence: Evidence) -> bool:
    return evidence.named > 0 or evidence.evidence > 1000 * SUSPICION


def _all_rebased(readings: Sequence[Reading]) -> list[tuple[float, Evidence]]:
    """For each worker the healthy time that is expected at its present batch (0: not known), and the evidence about
    that batch.

    A time is carried from one batch to another by the overhead of a step, in samples, that most like workers have: the
    fit of a single one is bent by the very change of speed that is to be judged. It is carried the worse, the more the
    batches differ, so what was healthy counts for fewer windows then. Of a suspect it is left as it was.
    """
    if all(each.evidence.healthy_windows == 0 or each.evidence.healthy_batch == each.batch for each in readings):
        return [
            (each.evidence.healthy_seconds if each.evidence.healthy_windows else 0.0, each.evidence)
            for each in readings
        ]
    overheads = _overheads(readings)
    return [_rebased(reading, overheads(reading)) for reading in readings]


def _rebased(reading: Reading, overhead: float | None) -> tuple[float, Evidence]:
    evidence = reading.evidence
    if evidence.healthy_windows == 0:
        return 0.0, evidence
    if evidence.healthy_batch == reading.batch:
        return evidence.healthy_seconds, evidence
    if overhead is None or min(reading.batch, evidence.healthy_batch) <= 0 or reading.window is None:
        return 0.0, evidence
    ratio = (overhead + reading.batch) / (overhead + evidence.healthy_batch)
    expected = evidence.healthy_seconds * ratio
    if _suspected(evidence):
        return expected, evidence
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


def _shift(window: Estimate | None, expected: tuple[float, Evidence]) -> float | None:
    """The logarithm of a window's time over the expected one; None where there is none, or no window."""
    seconds, evidence = expected
    if window is None or seconds <= 0 or evidence.healthy_windows == 0:
        return None
    return math.log(window.mean_seconds / seconds)


def _shape_error(reading: Reading, evidence: Evidence) -> float:
    """What the fitted shape may be wrong by, between the batch where a worker was healthy and the present one."""
    if evidence.healthy_batch == reading.batch or min(evidence.healthy_batch, reading.batch) <= 0:
        return 0.0
    return SHAPE_ERROR * min(abs(math.log(reading.batch / evidence.healthy_batch)), FARTHEST)


class _Common(NamedTuple):
    """By how much a worker's group, and the whole job, have become slower together, as logarithms not below 0."""

    group: float
    job: float

    @property
    def excuse(self) -> float:
        return max(self.group, self.job)


def _common(readings: Sequence[Reading], shifts: Sequence[float | None]) -> list[_Common]:
    """By how much each worker's group and job have become slower together, as its others say.

    It excuses and never accuses: who was left behind by others that became faster is no straggler.
    """
    groups: dict[str, list[int]] = {}
    for rank, reading in enumerate(readings):
        if shifts[rank] is not None:
            groups.setdefault(reading.group, []).append(rank)
    everybody = [rank for ranks in groups.values() for rank in ranks]
    in_group = {name: _others(ranks, shifts) for name, ranks in groups.items()}
    in_job = _others(everybody, shifts)
    return [
        _Common(in_group[reading.group](rank) if reading.group in in_group else 0.0, in_job(rank))
        for rank, reading in enumerate(readings)
    ]


def _others(ranks: Sequence[int], shifts: Sequence[float | None]) -> Callable[[int], float]:
    """The median of the others among these ranks, as a function of the rank."""
    if len(ranks) > FEW:
        known = _median(ranks, shifts)
        return lambda rank: known
    return lambda rank: _median([other for other in ranks if other != rank], shifts)


def _median(ranks: Sequence[int], shifts: Sequence[float | None]) -> float:
    known = [shift for shift in (shifts[rank] for rank in ranks) if shift is not None]
    return max(median_low(known), 0.0) if known else 0.0


def _others_times(readings: Sequence[Reading]) -> list[float] | None:
    """The median own time of the others, by rank; None if nobody is pinned, or there are no others."""
    times = [reading.window.mean_seconds if reading.window is not None else None for reading in readings]
    known = [seconds for seconds in times if seconds is not None]
    if len(known) < 2 or not any(reading.pinned for reading in readings):
        return None
    if len(known) > FEW:
        return [median_low(known)] * len(readings)
    return [
        median_low([seconds for other, seconds in enumerate(times) if other != rank and seconds is not None] or known)
        for rank in range(len(readings))
    ]


class _Said(NamedTuple):
    """What a window says: logarithms of its time over the healthy one (None: not known) and, of a pinned worker, over
    the others' (else minus infinity); its weight, and the committed step at its end.
    """

    own: float | None
    pinned: float
    weight: float
    step: int


def _summed(settings: Stragglers, evidence: Evidence, said: _Said, *, alarms: float) -> Evidence:
    """The evidence with what one window says, and named or not by that."""
    own, pinned, weight = said.own, said.pinned, said.weight
    tolerance = _tolerance(settings)
    middle = tolerance / 2
    variance = INFLATION * max(evidence.spread / 1000, LEAST_SPREAD) ** 2
    raw = max(pinned, -math.inf if own is None else own)
    if raw == -math.inf:
        return evidence
    level = min(evidence.level / 1000, GREATEST_LEVEL)
    newest = 1 - (1 - settings.smoothing) ** weight
    level += newest * (min(max(raw, 0.0), GREATEST_LEVEL) - level)
    if evidence.named:
        middle = max(middle, level / 2)
        recovery = max(evidence.evidence / 1000 + weight * (middle - raw), 0.0)
        enough = max(-math.log(RECOVERY_CHANCE) * variance / (2 * middle), (RECOVERY_WINDOWS - 0.5) * middle)
        if recovery >= enough:
            return evidence._replace(level=0, evidence=0, since_step=0, named=0)
        return evidence._replace(level=_thousandths(level), evidence=_thousandths(recovery))
    greatest = max(GREATEST_SHIFT, 2 * tolerance)
    if own is not None:
        # What is healthy is known by a mean of few windows; its error is one of all windows that follow.
        own -= CAUTION * math.sqrt(variance / evidence.healthy_windows)
    shift = min(max(pinned, -math.inf if own is None else own), greatest)
    total = max(evidence.evidence / 1000 + weight * (shift - middle), 0.0)
    since = 0 if total <= 0 else evidence.since_step or said.step + 1
    enough = max(alarms * variance / (2 * middle), LEAST_WINDOWS * (greatest - middle))
    if total > enough and level >= tolerance:
        return evidence._replace(level=_thousandths(level), evidence=0, since_step=since, named=1)
    return evidence._replace(level=_thousandths(level), evidence=_thousandths(total), since_step=since)


def _learned(evidence: Evidence, reading: Reading, window: Estimate, expected: float, tolerance: float) -> Evidence:
    """The evidence with what a window of a healthy worker teaches of its healthy time and of its noise."""
    known = evidence.healthy_windows
    if known == 0 or expected <= 0:
        if _suspected(evidence):
            return evidence
        # What windows vary by beyond what their steps say is assumed where it is not known yet.
        unknown = max(INFLATION / window.inflation, 1.0)
        spread = max(math.sqrt(unknown) * window.relative_error, LEAST_SPREAD)
        return evidence._replace(
            healthy_seconds=window.mean_seconds,
            healthy_batch=reading.batch,
            healthy_windows=1,
            spread=evidence.spread or _thousandths(spread),
        )
    shift = math.log(window.mean_seconds / expected)
    if shift < 0:
        # Only fast windows: slow ones may be a fault, which must not excuse itself as noise.
        variance = (evidence.spread / 1000) ** 2
        seen = min(shift**2 * known / (known + 1), OUTLIER * variance)
        variance += (seen - variance) / (known + PRIOR_WINDOWS)
        evidence = evidence._replace(spread=max(_thousandths(math.sqrt(variance)), _thousandths(LEAST_SPREAD)))
    accepted = math.log(LEARNING_RATIO) if known < LEARNING_WINDOWS else tolerance
    if _suspected(evidence) or shift > accepted:
        return evidence
    if shift < -MOVED:
        known //= 2  # it has never been so fast: what was taken for healthy may not have been
    elif known >= HEALTHY_WINDOWS:
        return evidence
    seconds = (known * evidence.healthy_seconds + window.mean_seconds) / (known + 1)
    return evidence._replace(healthy_seconds=seconds, healthy_windows=min(known + 1, HEALTHY_WINDOWS))


def _tolerance(settings: Stragglers) -> float:
    """The slowdown that is worth reporting, as its logarithm."""
    return max(-math.log(settings.threshold), LEAST_TOLERANCE)


def _thousandths(value: float) -> int:
    return round(1000 * value)


RULE = Rule("own healthy time at the present limit and batch, by evidence over time", judge, find)
