"""A worker's own time: what it takes for itself, without any waiting for others.

Own time goes from the completion of the previous step's last collective to the moment at which this step's last
gradient bucket is ready. So it includes the optimizer's step, data loading, transfer, forward and backward. The return
of `backward()` would be too late an end, since it has waited for the others by then, and its start would be too early.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch


class StepTimes(NamedTuple):
    """Seconds of one step."""

    own: float
    wait: float

    def read(self) -> StepTimes:
        """Return the times, which are known already."""
        return self


class PendingTimes(Protocol):
    """The times of a step that the device may not have ended yet."""

    def read(self) -> StepTimes:
        """Wait until they are known."""
        ...


class StepClock:
    """Times steps on the host: right for CPU workers, whose work is done when its call returns."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._ready = self._begin
        self._done = self._begin

    def restart(self) -> None:
        """Begin a step now; what happened before (set-up, a checkpoint, a new group) is no part of it."""
        self._begin = self._ready = self._done = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """So many of those that have just passed belong to no step."""
        self._begin += seconds
        self._done += seconds

    def bucket_ready(self) -> None:
        """A gradient bucket of this step is ready; the last one counts."""
        self._ready = time.perf_counter()

    @property
    def own_seconds(self) -> float:
        """Those of this step until its newest bucket was ready, as the host sees it."""
        return self._ready - self._begin

    def bucket_done(self) -> None:
        """A bucket's collective has completed."""
        self._done = max(self._done, time.perf_counter())

    def gradients_arrived(self) -> None:
        """The optimizer's step comes next; it belongs to the next step's own time."""

    def finish(self) -> PendingTimes:
        """The times of the step that has just ended; the next one began with its last collective."""
        return self._finish()

    def _finish(self) -> StepTimes:
        done = max(self._done, self._ready)
        times = StepTimes(own=self._ready - self._begin, wait=done - self._ready)
        self._begin = self._done = done
        return times


class CudaStepTimes(NamedTuple):
    """The times of a step between two events on the device; `host` are those that the host measured."""

    begin: torch.cuda.Event
    ready: torch.cuda.Event
    host: StepTimes

    def read(self) -> StepTimes:
        """Wait until the device has reached the step's end."""
        self.ready.synchronize()
        own = self.begin.elapsed_time(self.ready) / 1e3
        return StepTimes(own=own, wait=max(0.0, sum(self.host) - own))


class CudaStepClock(StepClock):
    """Times steps with CUDA events, since on a GPU a call returns before its work is done."""

    def __init__(self) -> None:
        super().__init__()
        self._begin_event = self._event()
        self._ready_event: torch.cuda.Event | None = None
        self._next_event = self._begin_event

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record()
        return event

    def restart(self) -> None:
        super().restart()
        self._begin_event = self._next_event = self._event()
        self._ready_event = None

    def gradients_arrived(self) -> None:
        self._next_event = self._event()

    def bucket_ready(self) -> None:
        super().bucket_ready()
        self._ready_event = self._event()

    def finish(self) -> PendingTimes:
        host = self._finish()
        if self._ready_event is None:
            return host
        times = CudaStepTimes(self._begin_event, self._ready_event, host)
        self._begin_event = self._next_event
        self._ready_event = None
        return times


def clock_for(device: torch.device) -> StepClock:
    """The clock that is right for a device."""
    return CudaStepClock() if device.type == "cuda" else StepClock()
