"""What came of a simulated run, step by step, and the figures that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.core.model import Event, PeerMetrics, SizePoint

Floats = npt.NDArray[np.float64]

SETTLING_INTERVALS = 20
"""So many control intervals a policy gets before figures "after settling" count."""

SCALING_EVENTS = ("Scaled", "ScalingStopped", "ScalingGivenUp")

CLOSE = 0.05
"""A step this close to the oracle's counts as balanced."""


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """A plan that was published when so many `step`s had been executed, `seconds` after the simulation began.

    `workers` and `batches` are those of its members, by rank; `reason` is the decision's.
    """

    step: int
    seconds: float
    version: int
    generation: int
    workers: tuple[str, ...]
    batches: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class HappenedEvent:
    """An event of the job, as the operator reported it."""

    step: int
    seconds: float
    event: Event


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A simulated run. Arrays are by executed step, n in all; seconds are those of whole steps.

    `began` is when each step began, in seconds after the simulation did. `step_seconds` are the realised steps and
    `oracle_seconds` those that the oracle's batches would have made under the very same noise. `own_seconds` are of
    shape (n, K), of the `workers` in plan order, NaN where one was no member; they are empty, of shape (0, K), if they
    were not asked for. `phase` is the job's at the end, `rounds` how often it was decided on. Of the steps so many are
    `repeated_steps`, which all workers had executed before they started again. `sizes` are what scaling has measured.
    `cost` is that of all pods, None if a group has no price. Steps of an asynchronous job are updates, for which there
    is no oracle (NaN); `peers` are what its server said last of its workers, and `peers_half_way` when half of the
    updates were applied.
    """

    scenario: Scenario
    workers: tuple[str, ...]
    began: Floats
    step_seconds: Floats
    oracle_seconds: Floats
    own_seconds: Floats
    plans: tuple[PublishedPlan, ...]
    events: tuple[HappenedEvent, ...]
    phase: str
    reason: str
    rounds: int
    virtual_seconds: float
    repeated_steps: int = 0
    sizes: tuple[SizePoint, ...] = ()
    cost: float | None = None
    peers: tuple[PeerMetrics, ...] = ()
    peers_half_way: tuple[PeerMetrics, ...] = ()

    @property
    def staleness(self) -> float:
        """By how many versions updates were stale in the mean; NaN without a server."""
        counted = [(peer.updates, peer.staleness) for peer in self.peers if peer.staleness is not None]
        updates = sum(each for each, _ in counted)
        return sum(each * stale for each, stale in counted) / updates if updates else math.nan

    @property
    def spread_of_rates(self) -> float:
        """How often the fastest worker's updates came in the second half, over the slowest's; NaN if not known."""
        before = {peer.worker: peer.updates for peer in self.peers_half_way}
        later = [peer.updates - before[peer.worker] for peer in self.peers if peer.worker in before]
        return max(later) / min(later) if later and min(later) > 0 else math.nan

    @property
    def steps(self) -> int:
        """How many steps were executed."""
        return len(self.step_seconds)

    @property
    def scaled(self) -> str:
        """What was decided last about the number of workers, and when on the simulation's clock; empty: nothing was."""
        last = next((each for each in reversed(self.events) if each.event.reason in SCALING_EVENTS), None)
        return "" if last is None else f"{last.event.reason} after {last.seconds:.0f} s: {last.event.message}"

    @property
    def idle_seconds(self) -> float:
        """Seconds between the first step's begin and the last one's end in which no step was taken."""
        if not self.steps:
            return 0.0
        lasted = self.began[-1] + self.step_seconds[-1] - self.began[0]
        return max(float(lasted - self.step_seconds.sum()), 0.0)

    @property
    def ratio(self) -> float:
        """E: the realised time of all steps over the oracle's; NaN if there was none."""
        return self.ratio_between(0, self.steps)

    @property
    def settled_ratio(self) -> float:
        """The same after the first `SETTLING_INTERVALS` intervals."""
        return self.ratio_between(SETTLING_INTERVALS * self.scenario.job.interval, self.steps)

    def ratio_between(self, begin: int, end: int) -> float:
        """The realised time over the oracle's, of steps `begin` up to `end`; NaN if there was none."""
        oracle = float(self.oracle_seconds[begin:end].sum())
        return float(self.step_seconds[begin:end].sum()) / oracle if oracle > 0 else math.nan

    @property
    def interval_ratios(self) -> Floats:
        """The realised time over the oracle's, by control interval; empty where there is no oracle."""
        if math.isnan(self.ratio):
            return np.empty(0)
        interval = self.scenario.job.interval
        whole = self.steps // interval
        shape = whole, interval
        realised = self.step_seconds[: whole * interval].reshape(shape).sum(axis=1)
        ratios: Floats = realised / self.oracle_seconds[: whole * interval].reshape(shape).sum(axis=1)
        return ratios

    @property
    def adjustments(self) -> tuple[PublishedPlan, ...]:
        """The plans that changed nothing but batches."""
        found = []
        for before, plan in zip(self.plans, self.plans[1:], strict=False):
            if plan.generation == before.generation and plan.batches != before.batches:
                found.append(plan)
        return tuple(found)

    def plans_per_100_intervals(self, after: int = SETTLING_INTERVALS) -> float:
        """How often batches were changed after so many intervals, per 100 intervals; NaN if there are no more."""
        intervals = self.steps / self.scenario.job.interval - after
        changes = sum(plan.step >= after * self.scenario.job.interval for plan in self.adjustments)
        return 100 * changes / intervals if intervals > 0 else math.nan

    def steps_to_within(self, close: float = CLOSE) -> int | None:
        """Steps until an interval began, at any step, that came this close to the oracle; None: none did.

        An interval is `job.interval` steps in a row.
        """
        interval = self.scenario.job.interval
        if self.steps < interval:
            return None
        realised, oracle = (_sums_of(seconds, interval) for seconds in (self.step_seconds, self.oracle_seconds))
        near = np.flatnonzero(realised <= (1 + close) * oracle)
        return int(near[0]) if len(near) else None

    def intervals_to_within(self, close: float = CLOSE) -> float | None:
        """The same in control intervals, of which a part may be one."""
        steps = self.steps_to_within(close)
        return None if steps is None else steps / self.scenario.job.interval

    @property
    def steps_to_first_move(self) -> int | None:
        """Executed steps when batches were changed for the first time; None: they never were."""
        return self.adjustments[0].step if self.adjustments else None


def _sums_of(seconds: Floats, count: int) -> Floats:
    """Sums of so many steps in a row, of shape (n - count + 1,); in a time that does not grow with `count`."""
    until = np.concatenate([[0.0], np.cumsum(seconds)])
    sums: Floats = until[count:] - until[:-count]
    return sums
