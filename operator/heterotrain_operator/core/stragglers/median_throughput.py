"""The rule of the paper on elasticity (Algorithm 1), to be compared with: a moving average of a worker's throughput
over the median of all, below a threshold.

It takes machines for equal: on a cluster that is unequal by design it names those that are slow by design.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.rule import Finding, Interval, Reading, Rule
from heterotrain_operator.core.stragglers.verdict import Grounds


def judge(settings: Stragglers, interval: Interval, readings: Sequence[Reading]) -> list[Evidence]:
    """Take the interval's throughputs into the moving averages; `level` of the evidence holds them, in thousandths."""
    after = []
    for reading, relative in zip(readings, _relative(readings), strict=True):
        known = reading.evidence
        if relative is None:
            after.append(known)
            continue
        before = known.level / 1000 if known.healthy_windows else relative
        level = before + settings.smoothing * (relative - before)
        named = level < settings.threshold
        since = (known.since_step or interval.step + 1) if named else 0
        after.append(known._replace(level=round(1000 * level), healthy_windows=1, named=int(named), since_step=since))
    return after


def find(readings: Sequence[Reading]) -> list[Finding | None]:
    """How slow each worker is now, against the median throughput."""
    return [
        None if relative is None or relative <= 0 else Finding(1 / relative, Grounds.GROUP)
        for relative in _relative(readings)
    ]


def _relative(readings: Sequence[Reading]) -> list[float | None]:
    throughputs = [None if each.window is None else each.batch / each.window.mean_seconds for each in readings]
    known = [throughput for throughput in throughputs if throughput is not None]
    if not known:
        return [None] * len(readings)
    middle = median(known)
    return [None if each is None else each / middle for each in throughputs]


RULE = Rule("moving average of throughput over the median (the paper's)", judge, find)
