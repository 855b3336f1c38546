"""What each committed step took, and its loss, booked where they are asked for: in counters, series and losses.

On a GPU both are known only when the device has come to the step's end. Whoever asks at once makes the host wait for
the device, and then the device for the host. So there a step is booked when the next one is committed; and all of them
before anything that depends on them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from heterotrain.contract import StepRecord
from heterotrain.gradients.losses import Losses
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.reporting.timing import PendingTimes

_FORGET_SLOW_STEPS = 0.9


class Committed(NamedTuple):
    """A step just after its commit. Fields are those of `StepRecord`, but for `share`, this worker's part of the step's
    samples, and `times` and `loss`, which the device may not have come to yet."""

    time: float
    step: int
    epoch: int
    version: int
    batch: int
    samples: int
    share: float
    times: PendingTimes
    loss: torch.Tensor | None
    mark: str


class Accounts:
    """Those of one worker."""

    def __init__(
        self, losses: Losses, metrics: WorkerMetrics, series: Series, smoothing: float, *, one_later: bool
    ) -> None:
        """`one_later`: a step is booked when the next one is committed."""
        self.slow_step_seconds = 0.0  # what a slow step took lately
        self._losses = losses
        self._metrics = metrics
        self._series = series
        self._smoothing = smoothing
        self._one_later = one_later
        self._unbooked: Committed | None = None

    def commit(self, step: Committed) -> None:
        """It is committed; the one before is booked by now."""
        if not self._one_later:
            self._book(step)
            return
        self.settle()
        self._unbooked = step

    def settle(self) -> None:
        """All committed steps are booked."""
        step, self._unbooked = self._unbooked, None
        if step is not None:
            self._book(step)

    def _book(self, step: Committed) -> None:
        times = step.times.read()
        loss = self._losses.book(step.loss, step.share)
        self._metrics.committed(step.samples, times, self._smoothing, measured=not step.mark)
        self.slow_step_seconds = max(times.own + times.wait, _FORGET_SLOW_STEPS * self.slow_step_seconds)
        self._series.write(
            StepRecord(
                step.time,
                step.step,
                step.epoch,
                step.version,
                step.batch,
                step.samples,
                times.own,
                times.wait,
                loss,
                step.mark,
            )
        )
