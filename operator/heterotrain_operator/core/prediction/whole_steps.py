"""How long whole steps take, as all members measure them: own time, waiting for the others and communication together.

What a step is expected to take where it ends with another worker each time rests on how workers' times are distributed,
of which counters tell the mean and the variance alone. What it does take, every member's counters say. Members of a
step measure the same one, so the median of them is that of each, whoever else says what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.fields import MEASURED, Kept
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, ABSURD_STEPS, LEAST_SECONDS, Estimate

LEAST_WINDOWS = 4
"""Windows from which their spread tells the error of their mean."""

LONGEST_HISTORY = 12
"""Windows after which older ones fade out."""

JUMP_DEVIATIONS = 6.0
"""Standard errors by which a window differs from the ones before to be the first of another speed."""

LEAST_VARIATION = 0.01
"""Of a single step: windows never tell a jump by less."""

_UNCUT = Kept(measured=True, digits=None)


@dataclass(frozen=True, slots=True)
class WholeSteps:
    """Whole steps under plan `whole_version`: when the last window ended, `whole_counted` had taken
    `whole_counted_seconds`; the mean (seconds) over the windows since steps last took another time, the variance of a
    single step (s^2) and the steps and windows behind it.
    """

    whole_version: Annotated[int, Kept(measured=True, most=MAX_WHOLE)] = 0
    whole_counted: Annotated[float, _UNCUT] = 0.0
    whole_counted_seconds: Annotated[float, _UNCUT] = 0.0
    whole_mean: Annotated[float, Kept(measured=True, most=ABSURD_SECONDS)] = 0.0
    whole_variance: Annotated[float, Kept(measured=True, most=ABSURD_SECONDS**2)] = 0.0
    whole_steps: Annotated[float, Kept(measured=True, most=ABSURD_STEPS)] = 0.0
    whole_windows: Annotated[int, MEASURED] = 0

    def restarted(self) -> WholeSteps:
        """Where workers' own times are others from now on: whole steps so far tell nothing of the next ones."""
        return WholeSteps(self.whole_version, self.whole_counted, self.whole_counted_seconds)

    def mean(self, version: int) -> tuple[float, float]:
        """The seconds of a whole step under that plan, and the steps behind it; 0 if there are none."""
        known = self.whole_version == version and LEAST_SECONDS <= self.whole_mean <= ABSURD_SECONDS
        return (self.whole_mean, self.whole_steps) if known and self.whole_steps > 0 else (0.0, 0.0)

    def estimate(self, version: int) -> Estimate | None:
        """Of a whole step under that plan; None while too few windows tell its error."""
        mean, steps = self.mean(version)
        return Estimate(mean, self.whole_variance, steps) if steps > 0 and self.whole_windows >= LEAST_WINDOWS else None


def counted_by(metrics: Iterable[WorkerMetrics]) -> tuple[float, float] | None:
    """Whole steps of the median worker, and the seconds that they took; None if nobody's counters show any."""
    whole = [(each.steps, each.own_seconds + each.wait_seconds) for each in metrics]
    sound = [
        (steps, seconds)
        for steps, seconds in whole
        if 1 <= steps <= ABSURD_STEPS and LEAST_SECONDS <= seconds / steps <= ABSURD_SECONDS
    ]
    if not sound:
        return None
    steps = median([steps for steps, _ in sound])
    return steps, steps * median([seconds / steps for steps, seconds in sound])


def observed(known: WholeSteps, version: int, metrics: Sequence[WorkerMetrics | None]) -> WholeSteps:
    """With the window that ends here; the same if nobody's counters show one."""
    # Whoever exports no waiting tells nothing: of two or more workers each one waits in every step.
    found = counted_by(each for each in metrics if each is not None and each.wait_seconds > 0)
    if found is None:
        return known
    counted, total = found
    if known.whole_version != version or counted < known.whole_counted or total < known.whole_counted_seconds:
        known = WholeSteps(version)
    steps, seconds = counted - known.whole_counted, total - known.whole_counted_seconds
    if steps < 1 or not LEAST_SECONDS <= seconds / steps <= ABSURD_SECONDS:
        return known
    mean, variance, behind, windows = _together(known, seconds / steps, steps)
    return WholeSteps(version, counted, total, mean, variance, behind, windows)


def _together(known: WholeSteps, window: float, steps: float) -> tuple[float, float, float, int]:
    """The mean, the variance of a step, and the steps and windows behind them, with one more window.

    The variance is that of windows' means times their steps: it holds what lasts longer than a step, too.
    """
    windows, mean, behind = known.whole_windows, known.whole_mean, known.whole_steps
    if windows < 1 or behind <= 0:
        return window, 0.0, steps, 1
    change = window - mean
    if windows >= LEAST_WINDOWS:
        variance = max(known.whole_variance, (LEAST_VARIATION * mean) ** 2)
        if abs(change) > JUMP_DEVIATIONS * math.sqrt(variance * (1 / steps + 1 / behind)):
            return window, 0.0, steps, 1
        if windows >= LONGEST_HISTORY:
            behind *= 1 - 1 / LONGEST_HISTORY
            windows = LONGEST_HISTORY - 1
    whole = behind + steps
    squares = (windows - 1) * known.whole_variance + change * change * steps * (behind / whole)
    variance = min(squares / windows, ABSURD_SECONDS**2)
    return mean + change * steps / whole, variance, min(whole, ABSURD_STEPS), windows + 1
