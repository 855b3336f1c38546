"""Steps that were executed under a plan, the mean time of one, and what trainers count and export of them.

All is vectorised over the plan's members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from heterotrain.contract import Plan
from heterotrain_operator.clusters.simulated.influences import Influence, Trainee
from heterotrain_operator.clusters.simulated.laws import Throttled
from heterotrain_operator.clusters.simulated.noise import Matrix
from heterotrain_operator.clusters.simulated.pod import SimulatedPod, first_metrics
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.split.passes import at_once

_NAMES = [each.name for each in fields(WorkerMetrics)]
_VALUES = attrgetter(*_NAMES)
_STEP, _EPOCH, _STEPS, _SAMPLES = map(_NAMES.index, ("step", "epoch", "steps", "samples"))
_OWN, _SQUARES = map(_NAMES.index, ("own_seconds", "own_seconds_squared"))
_WAIT, _SMOOTHED = map(_NAMES.index, ("wait_seconds", "own_seconds_ewma"))
_PEAK, _PEAK_BATCH = map(_NAMES.index, ("memory_peak_bytes", "memory_batch_size"))
_LIMIT, _THREADS = map(_NAMES.index, ("memory_limit_bytes", "computing_threads"))
_USE = [_NAMES.index(name) for name in ("observed_seconds", "cpu_seconds", "cpu_throttled_seconds", "cpu_wait_seconds")]
"""Places of what steps change; to make metrics of a row takes half as long as `replace`, at ten thousand workers."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that were executed under one plan, by members in its order.

    `first` is the number of the first, from 0; `began` when it began, on the simulation's clock. `seconds` are whole
    steps, communication included, of shape (n,). `own_seconds` are of shape (n, K). `factors` are the noise and all
    that events did, of shape (n, K), and `known_factors` what the oracle knows of the latter (None: nothing happened).
    """

    first: int
    began: float
    plan: Plan
    pods: Sequence[SimulatedPod]
    seconds: Matrix
    own_seconds: Matrix
    factors: Matrix
    known_factors: Matrix | None
    communication_seconds: float


def mean_seconds(pods: Sequence[SimulatedPod], batches: Sequence[int]) -> Matrix:
    """Mean own seconds of workers at these batches, without noise and events."""
    means, throttled = unheld_seconds(pods, batches)
    return means if throttled is None else means * throttled


def unheld_seconds(pods: Sequence[SimulatedPod], batches: Sequence[int]) -> tuple[Matrix, Matrix | None]:
    """The same if all could wait for others, and by what factor the CPU limit holds those back that cannot; None where
    it holds nobody back.
    """
    means = np.array([pod.scale * pod.law.seconds(batch) for pod, batch in zip(pods, batches, strict=True)])
    if not any(isinstance(pod.law, Throttled) for pod in pods):
        return means, None
    throttled, order = np.ones(len(means)), np.sort(means)
    for rank, pod in enumerate(pods):
        others = order[-2] if means[rank] == order[-1] and len(pods) > 1 else order[-1]
        if isinstance(pod.law, Throttled) and (len(pods) == 1 or means[rank] >= others):
            throttled[rank] = pod.law.penalty
    return means, throttled


class Counted:
    """What was measured since it was last written into metrics, by rank; seconds, and squares of them."""

    __slots__ = ("cpu", "observed", "own", "squares", "steps", "throttled", "wait", "waiting")

    def __init__(self, members: int) -> None:
        self.steps, self.observed = 0, 0.0
        self.cpu, self.throttled, self.waiting = np.zeros(members), np.zeros(members), np.zeros(members)
        self.own, self.squares, self.wait = np.zeros(members), np.zeros(members), np.zeros(members)

    def add(self, own_seconds: Matrix, seconds: Matrix) -> None:
        """Measured steps: the members' own seconds, and whole steps."""
        total = own_seconds.sum(axis=0)
        self.steps += len(seconds)
        self.own += total
        self.squares += np.einsum("sk,sk->k", own_seconds, own_seconds)
        self.wait += seconds.sum() - total

    def add_use(self, steps: Steps, influence: Influence | None, throttled: Matrix | None, first: int) -> None:
        """What the steps' own times, from the `first` one on, went to: work, the CPU limit, which holds workers back by
        the factors `throttled` whatever happens (None: nobody), and waiting for a CPU.
        """
        self.observed += float(steps.seconds[first:].sum())
        own = steps.own_seconds[first:]
        if influence is None and throttled is None:
            self.cpu += own.sum(axis=0)
            return
        held = np.ones(own.shape) if throttled is None else np.broadcast_to(throttled, own.shape)
        waiting = np.ones(own.shape)
        if influence is not None:
            done = len(steps.seconds)
            held, waiting = held * influence.throttled[first:done], influence.waiting[first:done]
        work = own / (held * waiting)
        self.cpu += work.sum(axis=0)
        self.throttled += (work * np.maximum(held - 1, 0)).sum(axis=0)
        self.waiting += (work * held * np.maximum(waiting - 1, 0)).sum(axis=0)


@dataclass(slots=True)
class FollowedPlan:
    """A plan that is followed, with its members' pods by rank. `columns` are theirs in the draws, `unmeasured` the
    steps that will not be measured; `random` draws the noise of memory. `smoothed` are moving averages of the members'
    own seconds, once one step is measured.
    """

    plan: Plan
    pods: list[SimulatedPod]
    trainees: tuple[Trainee, ...]
    columns: npt.NDArray[np.intp] | slice
    unmeasured: int
    random: np.random.Generator
    counted: Counted
    smoothed: Matrix | None = None

    def measure(self, own_seconds: Matrix, seconds: Matrix, weight: float) -> None:
        """Take in measured steps; the newest has this weight in the moving averages."""
        self.counted.add(own_seconds, seconds)
        if self.smoothed is None:
            self.smoothed, own_seconds = own_seconds[0], own_seconds[1:]
        kept = (1 - weight) ** np.arange(len(own_seconds), -1, -1.0)
        self.smoothed = kept[0] * self.smoothed + weight * (kept[1:] @ own_seconds)

    def report(self, step: int, epoch: int, total_steps: int | None) -> None:
        """Write what was counted into the members' metrics, on top of what these hold."""
        plan, counted = self.plan, self.counted
        self.counted = Counted(len(self.pods))
        columns = zip(
            self.pods,
            enumerate(plan.members),
            counted.own.tolist(),
            counted.squares.tolist(),
            counted.wait.tolist(),
            (None,) * len(self.pods) if self.smoothed is None else self.smoothed.tolist(),
            self.random.uniform(-1, 1, len(self.pods)).tolist(),
            counted.cpu.tolist(),
            counted.throttled.tolist(),
            counted.waiting.tolist(),
            strict=True,
        )
        for pod, (rank, member), own, squares, wait, smoothed, noise, *used in columns:
            metrics = pod.metrics
            if metrics.plan_version != plan.version:
                metrics = first_metrics(plan, rank, step, epoch, total_steps)
            row = list(_VALUES(metrics))
            row[_STEP] = step
            row[_EPOCH] = epoch
            row[_STEPS] += counted.steps
            row[_SAMPLES] += counted.steps * member.batch_size
            row[_OWN] += own
            row[_SQUARES] += squares
            row[_WAIT] += wait
            row[_SMOOTHED] = smoothed
            use = pod.memory
            if use is not None:
                peak, samples = metrics.memory_peak_bytes, at_once(member)
                if counted.steps:
                    new = use.peak_bytes(samples) * (1 + use.variation * noise) if member.batch_size else None
                    peak = new if peak is None or new is None else max(peak, new)
                row[_PEAK], row[_PEAK_BATCH], row[_LIMIT] = peak, samples, use.limit_bytes
            if pod.exports_use:
                for place, more in zip(_USE, (counted.observed, *used), strict=True):
                    row[place] = (row[place] or 0.0) + more
                row[_THREADS] = 1.0
            pod.metrics = WorkerMetrics(*row)
