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
from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.stragglers.evidence import Evidence, made
from heterotrain_operator.core.stragglers.healthy_time import (
    FEW,
    RECOVERY_CHANCE,
    learned,
    own_error,
    rebased,
    thousandths,
    tolerance_of,
    variance_of,
    with_common_noise,
)
from heterotrain_operator.core.stragglers.rule import Finding, Interval, Reading, Rule
from heterotrain_operator.core.stragglers.verdict import Grounds

FALSE_ALARM_CHANCE = 1e-4
"""Chance per job, over all of its workers and its whole run, that noise alone names somebody."""

MOST_DEVIATIONS = 6.0
"""Standard deviations of its windows that one counts as at most, if they are more than twice the tolerance: a worker
whose windows vary much is named by much evidence, of which twice the tolerance is little. Tried: without, and 6."""

LEAST_WINDOWS = 3
"""More windows than these must speak against a worker: a single stall of any length names nobody."""

GREATEST_LEVEL = math.log(100)
"""No average of slowdowns is greater, whatever a memory holds."""

RECOVERY_WINDOWS = 3
"""Healthy windows that end a verdict at least."""


def judge(settings: Stragglers, interval: Interval, readings: Sequence[Reading]) -> list[Evidence]:
    """Take the interval's windows into the evidence of all workers."""
    tolerance, smoothing = tolerance_of(settings), settings.smoothing
    common = median_low([reading.evidence.spread for reading in readings] or [0])
    expected = [(seconds, with_common_noise(known, common)) for seconds, known in rebased(readings)]
    shifts = [_shift(reading.window, seconds) for reading, (seconds, _) in zip(readings, expected, strict=True)]
    in_group, in_job = _common(readings, shifts)
    times = _others_times(readings)
    alarms = math.log(max(len(readings), 1) * (interval.judged + 1) * (interval.judged + 2) / FALSE_ALARM_CHANCE)
    steps = max(interval.steps, 1)
    after = []
    for rank, (reading, (_seconds, known), shift) in enumerate(zip(readings, expected, shifts, strict=True)):
        window, evidence = reading.window, known
        if window is None:
            after.append(known)
            continue
        # Who does not show what slows the whole job is not slowed by it; one of two workers does not speak for both.
        own, joined, of_job, of_group = -math.inf, 0.0, in_job[rank], in_group[rank]
        if shift is None:
            joined = of_job if len(readings) > 2 else 0.0
        else:
            if of_job and shift > 0:
                joined = min(of_job, shift)
            if known.healthy_windows:
                own = shift - (of_group if of_group > of_job else of_job)
        pinned = -math.inf
        if reading.pinned and times is not None:
            pinned = math.log(window.mean_seconds / times[rank])
        weight = min(window.steps / steps, 1.0)
        # With the fewest samples it is fast beside others even if it is slow by fault, which excuses nothing.
        if own > -math.inf or pinned > (0.0 if known.healthy_windows else -math.inf):
            raw = own if own > pinned else pinned
            level = _level_after(known, raw, weight, tolerance, smoothing)
            if raw <= tolerance / 2 and not (known.named or known.evidence):
                evidence = _with_level(known, level)
            else:
                said = _Said(own, own_error(reading, known), pinned, weight, interval.step)
                evidence = _summed(known, said, level, tolerance, alarms)
        taught = learned(
            evidence, reading.batch, window, shift=shift, joined=joined, weight=weight, tolerance=tolerance
        )
        after.append(taught)
    return after


def find(readings: Sequence[Reading]) -> list[Finding | None]:
    """How slow each worker is now; `window` of a reading is its whole estimate then."""
    expected = rebased(readings)
    shifts = [_shift(reading.window, seconds) for reading, (seconds, _) in zip(readings, expected, strict=True)]
    in_group, in_job = _common(readings, shifts)
    times = _others_times(readings)
    found: list[Finding | None] = []
    for rank, (reading, (_, evidence), shift) in enumerate(zip(readings, expected, shifts, strict=True)):
        own = pinned = -math.inf
        if shift is not None and evidence.healthy_windows:
            own = shift - max(in_group[rank], in_job[rank])
        if reading.pinned and times is not None and reading.window is not None:
            pinned = math.log(reading.window.mean_seconds / times[rank])
        grounds = Grounds.LEAST_BATCH if pinned > own else Grounds.ITSELF
        slowdown = max(own, pinned)
        found.append(None if slowdown == -math.inf else Finding(math.exp(slowdown), grounds))
    return found


def _shift(window: Estimate | None, seconds: float) -> float | None:
    """The logarithm of a window's time over the expected one; None where there is none, or no window."""
    return None if window is None or seconds <= 0 else math.log(window.mean_seconds / seconds)


def _common(readings: Sequence[Reading], shifts: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """By how much each worker's group, and the whole job, have become slower together, as its others say: logarithms
    not below 0, by rank.

    They excuse and never accuse: who was left behind by others that became faster is no straggler. Who is measured at a
    batch of which nothing is known yet says that nothing has changed, so that one worker never speaks for many.
    """
    groups: dict[str, list[int]] = {}
    measured: list[int] = []
    for rank, reading in enumerate(readings):
        if reading.window is not None:
            groups.setdefault(reading.group, []).append(rank)
            measured.append(rank)
    in_group, in_job = [0.0] * len(readings), [0.0] * len(readings)
    for ranks in groups.values():
        _set_medians(in_group, ranks, shifts)
    _set_medians(in_job, measured, shifts)
    return in_group, in_job


def _set_medians(medians: list[float], ranks: Sequence[int], shifts: Sequence[float | None]) -> None:
    """The median of the others among these ranks, where they are few; of all, where one more changes nothing."""
    known = [shifts[rank] or 0.0 for rank in ranks]
    of_all = max(median_low(known), 0.0) if len(ranks) > FEW else 0.0
    for place, rank in enumerate(ranks):
        if 1 < len(ranks) <= FEW:
            medians[rank] = max(median_low(known[:place] + known[place + 1 :]), 0.0)
        else:
            medians[rank] = of_all


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
    """What a window says: logarithms of its time over the healthy one, with what that may err by, and of a pinned
    worker over the others' (minus infinity: not known); its weight, and the committed step at its end.
    """

    own: float
    own_error: float
    pinned: float
    weight: float
    step: int


def _level_after(evidence: Evidence, raw: float, weight: float, tolerance: float, smoothing: float) -> float:
    """The moving average of the windows' logarithms, after one more."""
    level = min(evidence.level / 1000, GREATEST_LEVEL)
    newest = min(raw, 4 * tolerance) if raw > 0 else 0.0
    share: float = 1 - (1 - smoothing) ** weight
    return level + share * (newest - level)


def _with_level(evidence: Evidence, level: float) -> Evidence:
    """The evidence about a worker against whom nothing speaks."""
    rounded = thousandths(level)
    return evidence if rounded == evidence.level else made((*evidence[:4], rounded, 0, 0, *evidence[7:]))


def _summed(evidence: Evidence, said: _Said, level: float, tolerance: float, alarms: float) -> Evidence:
    """The evidence with what one window says, and named or not by that."""
    middle, greatest = tolerance / 2, max(2 * tolerance, MOST_DEVIATIONS * evidence.spread / 1000)
    raw = max(said.pinned, said.own)
    variance = variance_of(evidence)
    if evidence.named:
        middle = max(middle, level / 2)
        recovery = max(evidence.evidence / 1000 + said.weight * (middle - raw), 0.0)
        enough = max(-math.log(RECOVERY_CHANCE) * variance / (2 * middle), (RECOVERY_WINDOWS - 0.5) * middle)
        if recovery >= enough:
            return evidence._replace(level=0, evidence=0, since_step=0, named=0)
        return evidence._replace(level=thousandths(level), evidence=thousandths(recovery))
    shift = min(max(said.pinned, said.own - said.own_error), greatest)
    total = max(evidence.evidence / 1000 + said.weight * (shift - middle), 0.0)
    since = 0 if total <= 0 else evidence.since_step or said.step + 1
    enough = max(alarms * variance / (2 * middle), LEAST_WINDOWS * (greatest - middle))
    named = total > enough and level >= tolerance
    return evidence._replace(
        level=thousandths(level), evidence=0 if named else thousandths(total), since_step=since, named=int(named)
    )


RULE = Rule("own healthy time at the present limit and batch, by evidence over time", judge, find)
