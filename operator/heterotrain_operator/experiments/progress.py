"""How far a job has come, how fast it trains now, and how that went of late; pure."""

from __future__ import annotations

from collections import deque

from heterotrain_operator.core.model import Seen, WorkerMetrics

RATE_OVER_SECONDS = 20.0


class Pace:
    """Committed steps per second over the last seconds, from (moment, step) pairs."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def note(self, moment: float, step: int) -> None:
        """A step was seen as the newest at a moment; going back in steps, as a restart does, discards what was seen."""
        if self._points and step < self._points[-1][1]:
            self._points.clear()
        if step > 0:
            self._points.append((moment, step))
        while len(self._points) > 2 and self._points[1][0] < moment - RATE_OVER_SECONDS:
            self._points.popleft()

    @property
    def steps_per_second(self) -> float | None:
        """None until two steps have been seen."""
        if len(self._points) < 2:
            return None
        (first, low), (last, high) = self._points[0], self._points[-1]
        return (high - low) / (last - first) if last > first and high > low else None


TREND = 8
"""Values of a trend: the newest."""


class Trends:
    """How the share of waiting of each worker and the job's samples per second went, observation by observation."""

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=TREND)
        self.waiting: dict[str, deque[float]] = {}
        self._before: dict[str, WorkerMetrics] = {}

    def note(self, seen: Seen, samples_per_second: float | None) -> None:
        """A round was observed."""
        metrics = {worker.name: worker.metrics for worker in seen.workers if worker.metrics is not None}
        if samples_per_second is not None:
            self.rates.append(samples_per_second)
        for name, now in metrics.items():
            before = self._before.get(name)
            is_same = before is not None and before.plan_version == now.plan_version and before.steps <= now.steps
            own = now.own_seconds - (before.own_seconds if before is not None and is_same else 0.0)
            wait = now.wait_seconds - (before.wait_seconds if before is not None and is_same else 0.0)
            if own + wait > 0:
                self.note_waiting(name, wait / (own + wait))
        self._before |= metrics

    def note_waiting(self, worker: str, share: float) -> None:
        """A worker's share of waiting was observed."""
        self.waiting.setdefault(worker, deque(maxlen=TREND)).append(share)


def committed_steps(seen: Seen) -> int:
    """The most steps that any worker reports as committed; 0 before the first."""
    return max((worker.metrics.step for worker in seen.workers if worker.metrics is not None), default=0)


def reached_steps(seen: Seen) -> int:
    """The committed steps, including those that workers reported when they ended: a job's last steps fall between two
    observations."""
    ended = max((worker.step for worker in seen.workers if worker.exit_code is not None), default=0)
    return max(committed_steps(seen), ended)
