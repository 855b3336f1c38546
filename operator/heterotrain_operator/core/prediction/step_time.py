"""What is remembered of each worker's own time per step, and the windows of its counters that it is learned from.

A window is what a worker has counted since the one before. How windows become one estimate is in `jumps.py`.

Not every CPU limit binds. At first own time is taken to follow it in full, and is expected to as soon as the limit has
changed. The first window after a change shows how far it did, as sure as the window and what was expected of it are; a
worker whose limit does nothing is not moved by the next change of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

from heterotrain_operator.core.columns import BASELINE_DIGITS, Column, cut_all, maker
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.roughness import inflation_of

ASSUMED_VARIATION = 0.15
"""Coefficient of variation of a step where the counters cannot tell it."""

LEAST_VARIATION = 0.01
"""Coefficient of variation below which windows count as equally steady."""

ABSURD_SECONDS = 86_400.0
"""A step of more own time than a day is a fault of measurement."""

LEAST_SECONDS = 1e-7
"""So is one of less than this."""

ABSURD_STEPS = 1e12
"""And more steps than these in one window."""

MEASURED, EXPECTED, JUMPED = 0, 1, 2
"""What an estimate rests on: windows of the active plan; no window yet, but what the plan before lets expect of this
one; or windows of the active plan of which the last one showed another speed, and may hold steps of both."""

SLOWER, FASTER = 16, 32
"""Added where the last window was set aside, since it differed too far to be averaged (`jumps.py`)."""

NO_MORE, NO_LESS = 4, 8
"""Added where it is expected: at a batch that is nearly the one before, and not greater, or not less than that."""

BATCH_BEFORE = 64
"""So many times the batch before are added where it is expected."""

MEAN_DIGITS, VARIANCE_DIGITS = 5, 3
"""Kept of an estimate: 1e-5 of a mean is far below its error, and a variance is never known to a hundredth."""


class Estimate(NamedTuple):
    """Own seconds per step: the mean, the variance of a single step (s^2), and the steps that stand behind it.

    `inflation`: by how many times the mean's variance exceeds that of as many independent steps (`roughness.py`).
    """

    mean_seconds: float
    variance: float
    steps: float
    inflation: float = 1.0

    @property
    def relative_error(self) -> float:
        """Standard error of the mean, as a fraction of it."""
        return math.sqrt(self.inflation * self.variance / self.steps) / self.mean_seconds

    def scaled(self, ratio: float) -> Estimate:
        """Of steps that take so many times as long, and vary as much in proportion."""
        return self._replace(mean_seconds=self.mean_seconds * ratio, variance=self.variance * ratio**2)


class StepTime(NamedTuple):
    """What is remembered of a worker's own time under the active plan.

    `counted_*` are its counters as they were when the last window ended. The running estimate is the mean (seconds),
    the variance of one step (s^2) and the steps behind it; no steps: nothing was measured under this plan yet.
    `cpu_limit`, in cores, is the one that its speed belongs to; 0 where none is known. `roughness` is that of its
    windows in hundredths, `surprise` the last one's in tenths, and `trend` that of the last ones in hundredths
    (`roughness.py`). `basis` is what the estimate rests on (`MEASURED` and so on).
    """

    counted_steps: Annotated[float, Column(0)] = 0.0
    counted_seconds: Annotated[float, Column(1)] = 0.0
    counted_squares: Annotated[float, Column(2)] = 0.0
    mean_seconds: Annotated[float, Column(3)] = 0.0
    variance: Annotated[float, Column(4)] = 0.0
    steps: Annotated[float, Column(5)] = 0.0
    cpu_limit: Annotated[float, Column(6)] = 0.0

    roughness: Annotated[float, Column(47)] = 0.0
    surprise: Annotated[float, Column(48)] = 0.0
    basis: Annotated[int, Column(49)] = 0
    unfelt: Annotated[int, Column(50)] = 0
    limit_change: Annotated[float, Column(51)] = 0.0
    trend: Annotated[float, Column(53)] = 0.0

    @property
    def elasticity(self) -> float:
        """By how many per cent own time grows where the CPU limit falls by one: 1 where it binds, 0 where not."""
        return 1 - min(self.unfelt, 100) / 100

    @property
    def is_measured(self) -> bool:
        """Whether there is an estimate under the active plan."""
        return self.steps > 0 and self.mean_seconds > 0 and not self.is_expected

    @property
    def is_expected(self) -> bool:
        """Whether no window of the active plan has ended."""
        return self.basis & EXPECTED > 0

    @property
    def batch_before(self) -> int:
        """The batch of the plan before, by which this one's is expected; 0 where nothing is."""
        return self.basis // BATCH_BEFORE

    @property
    def estimate(self) -> Estimate | None:
        """The estimate under the active plan; None before the first window."""
        return None if self.basis & EXPECTED else self.before

    @property
    def before(self) -> Estimate | None:
        """What the next window is taken into: the estimate, or before the first what is expected of the plan."""
        mean, steps = self.mean_seconds, self.steps
        if steps <= 0 or mean <= 0:
            return None
        return Estimate(mean, self.variance, steps, inflation_of(self.roughness / 100))

    def unmeasured(self, expected: Estimate | None = None, basis: int = EXPECTED) -> StepTime:
        """At the start of another plan, whose counters begin at 0; the limit stays, and what is known of windows."""
        known = self._replace(counted_steps=0.0, counted_seconds=0.0, counted_squares=0.0)
        if expected is None or not LEAST_SECONDS <= expected.mean_seconds <= ABSURD_SECONDS:
            return known._replace(mean_seconds=0.0, variance=0.0, steps=0.0, basis=MEASURED)
        return known.with_estimate(expected)._replace(basis=basis)

    def with_estimate(self, estimate: Estimate) -> StepTime:
        """The same counters with another estimate."""
        return self._replace(
            mean_seconds=estimate.mean_seconds, variance=estimate.variance, steps=estimate.steps, basis=MEASURED
        )


def rounded_times(times: Sequence[StepTime]) -> Iterator[StepTime]:
    """The same with their numbers cut to the digits that are kept, column by column: most workers have new ones after
    every interval, and a call for each number would take longer than the rest.
    """
    if not times:
        return iter(())
    steps, seconds, squares, mean, variance, counts, limit, rough, surprise, basis, unfelt, change, trend = zip(
        *times, strict=True
    )
    return map(
        maker(StepTime),
        zip(
            cut_all(steps, BASELINE_DIGITS),
            cut_all(seconds, BASELINE_DIGITS),
            cut_all(squares, BASELINE_DIGITS),
            cut_all(mean, MEAN_DIGITS),
            cut_all(variance, VARIANCE_DIGITS),
            cut_all(counts),
            cut_all(limit),
            map(float, map(round, rough)),
            map(float, map(round, surprise)),
            basis,
            unfelt,
            map(float, map(round, change)),
            map(float, map(round, trend)),
            strict=True,
        ),
    )


def steps_since(known: StepTime, metrics: WorkerMetrics) -> float:
    """Measured steps since the last window ended; 0 if the counter is no number."""
    if not math.isfinite(metrics.steps):
        return 0.0
    steps, base = metrics.steps, known.counted_steps
    steps = steps if _began_again(steps, metrics.own_seconds, base, known.counted_seconds) else steps - base
    return steps if steps > 0 else 0.0


def window_of(known: StepTime, metrics: WorkerMetrics) -> Estimate | str:
    """The steps since the last window as an estimate of their own; or why they are ignored, in words."""
    steps, seconds, squares = metrics.steps, metrics.own_seconds, metrics.own_seconds_squared
    if not (math.isfinite(steps) and math.isfinite(seconds) and math.isfinite(squares)):
        return f"its counters are {steps:g} steps and {seconds:g} s"
    base_steps, base_seconds = known.counted_steps, known.counted_seconds
    if not _began_again(steps, seconds, base_steps, base_seconds):
        steps -= base_steps
        seconds -= base_seconds
        squares -= known.counted_squares
    if not 1 <= steps <= ABSURD_STEPS:
        return f"it counted {steps:g} steps"
    mean = seconds / steps
    if not LEAST_SECONDS <= mean <= ABSURD_SECONDS:
        return f"{mean:g} s of own time per step is no plausible figure"
    rounding = 1e-6 * steps * mean**2
    excess = squares - steps * mean**2
    inflation = inflation_of(known.roughness / 100)
    # Squares of times exceed neither way what their sum allows.
    if steps < 2 or not -rounding <= excess <= seconds**2:
        return Estimate(mean, (ASSUMED_VARIATION * mean) ** 2, steps, inflation)
    # What rounding of the counters can explain is no noise of the worker's.
    noise = excess - rounding
    return Estimate(mean, noise / (steps - 1) if noise > 0 else 0.0, steps, inflation)


def counted(
    known: StepTime,
    metrics: WorkerMetrics,
    estimate: Estimate | None = None,
    rough: tuple[float, float] | None = None,
    basis: int = MEASURED,
    *,
    trend: float | None = None,
) -> StepTime:
    """The next window begins here, with a new estimate if there is one and what it rests on, and a new roughness,
    surprise and trend if they are known; counters that are no numbers leave the baseline as it is.
    """
    trend = known.trend if trend is None else trend
    if not (math.isfinite(metrics.steps) and math.isfinite(metrics.own_seconds)):
        known = known._replace(trend=trend)
        return known if estimate is None else known.with_estimate(estimate)
    newest = known if estimate is None else estimate
    roughness, surprise = (known.roughness, known.surprise) if rough is None else rough
    squares = metrics.own_seconds_squared
    return StepTime(
        metrics.steps,
        metrics.own_seconds,
        squares if math.isfinite(squares) else 0.0,
        newest.mean_seconds,
        newest.variance,
        newest.steps,
        known.cpu_limit,
        roughness,
        surprise,
        known.basis if estimate is None else basis,
        known.unfelt,
        known.limit_change,
        trend,
    )


def _began_again(steps: float, seconds: float, base_steps: float, base_seconds: float) -> bool:
    """Whether counters are below their baseline, since a worker may lose them: all that they count is new then."""
    return steps < base_steps or seconds < base_seconds * (1 - 1e-9)


GREATEST_FEED_FORWARD = 16.0
"""Factor of a CPU limit's change that is believed at most before it is measured."""

LEAST_EFFECT = 0.08
"""Relative change of own time that a new limit must let expect to be acted on before it is measured."""

SAME_LIMIT = 1e-5
"""Relative difference below which two CPU limits are the same: more than the digits that are remembered leave out."""

LEAST_CHANGE = 0.1
"""Logarithm of the limits' ratio below which nothing is learned: noise would say more than the change."""

PRIOR_DEVIATION = 0.5
"""Standard deviation of the elasticity before a change was seen; it is between 0 and 1."""

GREATEST_GAIN = 0.8
"""Weight of the newest change at most, so that one window held up by something else does not decide alone."""


def feed_forward(
    known: StepTime,
    cpu_limit: float | None,
    metrics: WorkerMetrics,
    interval: int,
    factor_of: Callable[[float, float], float],
) -> tuple[StepTime, float]:
    """Expect own time to change with the CPU limit by a factor of the old and the new one, before it is measured; a new
    window begins.

    The second value is the factor by which a step is expected to take longer; 1 where the limit is the known one. The
    expectation weighs no more than one window: where the limit does not bind, the next one shows it as a
    jump. A step that no window may show is not expected either. See docs/life-of-a-decision.md.
    """
    if cpu_limit is None or not 0 < cpu_limit < math.inf:
        return known, 1.0
    if known.cpu_limit <= 0:
        return known._replace(cpu_limit=cpu_limit), 1.0
    if cpu_limit == known.cpu_limit or same_limit(cpu_limit, known.cpu_limit):
        return known, 1.0
    in_full = factor_of(known.cpu_limit, cpu_limit)
    known = known._replace(cpu_limit=cpu_limit, limit_change=known.limit_change + 100 * math.log(in_full))
    ratio = in_full**known.elasticity
    expected = known.mean_seconds * ratio
    if abs(ratio - 1) < LEAST_EFFECT or (expected and not LEAST_SECONDS <= expected <= ABSURD_SECONDS):
        return known, 1.0
    scaled = known._replace(
        mean_seconds=expected,
        variance=known.variance * ratio**2,
        steps=min(known.steps, float(interval)),
    )
    return counted(scaled, metrics), ratio


def same_limit(one: float, other: float) -> bool:
    """Whether two CPU limits are one, of which either may have been cut to the digits that are remembered."""
    return math.isclose(one, other, rel_tol=SAME_LIMIT)


def factor_of_limits(old: float, new: float) -> float:
    """By how much longer a step is expected to take under the new CPU limit: the ratio of the limits, within bounds."""
    return min(max(old / new, 1 / GREATEST_FEED_FORWARD), GREATEST_FEED_FORWARD)


def after_window(known: StepTime, expected: Estimate | None, window: Estimate) -> StepTime:
    """Take in the first window after the limit has changed; `expected` is own time as it was expected of that."""
    if not known.limit_change:
        return known
    change = known.limit_change / 100
    known = known._replace(limit_change=0.0)
    if expected is None or abs(change) < LEAST_CHANGE:
        return known
    felt = known.elasticity + math.log(window.mean_seconds / expected.mean_seconds) / change
    noise = (window.relative_error**2 + expected.relative_error**2) / change**2
    gain = min(PRIOR_DEVIATION**2 / (PRIOR_DEVIATION**2 + noise), GREATEST_GAIN)
    unfelt = known.unfelt + gain * (100 * (1 - min(max(felt, 0.0), 1.0)) - known.unfelt)
    return known._replace(unfelt=round(unfelt))
