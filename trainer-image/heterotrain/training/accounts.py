"""Books what each committed step took, and its loss, in counters, series and losses.

On a GPU both are known only when the device has come to the step's end. Whoever asks at once makes the host wait for
the device, and then the device for the host. So on a GPU a step is booked when the next one is committed; and every
committed step is booked before anything that depends on it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from heterotrain.contract import StepRecord
from heterotrain.gradients.losses import Losses
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.reporting.timing import PendingTimes

_FORGET_SLOW_STEPS = 0.9

# What is written or measured after every step is a part of what a step takes, and no exception that would not count.
_USUAL_AFTER_STEPS = 10
_MAY_BE_USUAL = ("checkpoint", "evaluation", "pause")

SMALLER = "partial"
"""The mark of a step with fewer samples than usual."""


class Committed(NamedTuple):
    """A step just after its commit. Fields are those of `StepRecord`, but for `share`, this worker's part of the step's
    samples, `times` and `loss`, which the device may not have come to yet, and the numbers that the loss is a mean over
    (of samples, or counts): this worker's `weight`, and the `total` of all workers."""

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
    weight: float = 0.0
    total: float = 0.0


class Accounts:
    """The accounts of one worker."""

    def __init__(
        self, losses: Losses, metrics: WorkerMetrics, series: Series, smoothing: float, *, one_later: bool
    ) -> None:
        """`one_later`: a step is booked when the next one is committed."""
        self.slow_step_seconds = 0.0  # what a slow step took lately
        self.looked_at = False  # a forward without gradients happened since the last commit
        self._losses = losses
        self._metrics = metrics
        self._series = series
        self._smoothing = smoothing
        self._one_later = one_later
        self._unbooked: Committed | None = None
        self._mark = "first"
        self._is_smaller = False
        self._sizes = set[int]()  # of smaller steps, so far
        self._marked_steps = 0  # in a row, by now

    def mark(self, why: str) -> None:
        """The running step does not count as measured; of several reasons the first one is noted, but that it is
        smaller only if there is no other: then its time is that of so many samples."""
        self._is_smaller = self._is_smaller or why == SMALLER
        if self._mark in ("", SMALLER):
            self._mark = why

    def mark_as_replay(self) -> None:
        """The running step does not count as measured, because it is done again; this goes before other reasons."""
        self._mark = "replay"

    def take_mark(self) -> str:
        """Why the step that is being committed does not count as measured; empty if it does. The next one has no mark
        yet."""
        if self.looked_at:
            self.looked_at = False
            self.mark("evaluation")
        mark, self._mark = self._mark, ""
        smaller, self._is_smaller = self._is_smaller, False
        if not mark:
            self._marked_steps = 0
            return ""
        self._marked_steps += 1
        is_usual = self._marked_steps > _USUAL_AFTER_STEPS and mark in _MAY_BE_USUAL and not smaller
        return "" if is_usual else mark

    def commit(self, step: Committed) -> None:
        """The step is committed; the one before it is booked by now."""
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
        if loss is not None:
            self._losses.epoch.add(loss * step.total, step.weight)
        self._metrics.committed(step.samples, times, self._smoothing, measured=not step.mark)
        if step.mark == SMALLER and step.samples:
            if step.samples in self._sizes:  # the first of a size may have taken long to compile, or to choose kernels
                self._metrics.counters.add_smaller(step.samples, times.own)
            self._sizes.add(step.samples)
        self.slow_step_seconds = max(times.own + times.wait, _FORGET_SLOW_STEPS * self.slow_step_seconds)
        if self._series.is_written:
            time, number, epoch, version, batch, samples, _, _, _, mark, *_ = step
            own, wait = times
            self._series.write(StepRecord(time, number, epoch, version, batch, samples, own, wait, loss, mark))
