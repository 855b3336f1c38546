"""A worker's series at /metrics, and JSON lines of steps and evaluations for whoever wants the whole story.

Counters belong to the plan version in force: they start anew with it, and only it is exported, so that a reader never
mixes times of different batch sizes.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heterotrain import contract
from heterotrain.data import sampler
from heterotrain.origin import Origin
from heterotrain.reporting import resources
from heterotrain.reporting.peak import PeakMemory
from heterotrain.reporting.serving import MetricsServer

if TYPE_CHECKING:
    from heterotrain.reporting.timing import StepTimes

log = logging.getLogger(__name__)

_WRITE_SECONDS = 0.25


@dataclass(slots=True)
class VersionCounters:
    """A plan version, and what was measured since it began; one object, so that no reader mixes two versions.

    `ewma` weighs the newest step with `smoothing`.

    Source of the moving average over the iterations since the last adjustment: Taming, section III-C1.
    """

    plan_version: int = 0
    generation: int = 0
    batch_size: int = 0
    steps: int = 0
    samples: int = 0
    own_seconds: float = 0.0
    own_seconds_squared: float = 0.0
    wait_seconds: float = 0.0
    ewma: float | None = None

    @property
    def mean_seconds(self) -> float:
        """Own and waiting seconds of a measured step, in the mean; 0 before the first."""
        return (self.own_seconds + self.wait_seconds) / self.steps if self.steps else 0.0

    def add(self, samples: int, own: float, wait: float, smoothing: float) -> None:
        """Count one measured step."""
        self.steps += 1
        self.samples += samples
        self.own_seconds += own
        self.own_seconds_squared += own * own
        self.wait_seconds += wait
        self.ewma = own if self.ewma is None else smoothing * own + (1 - smoothing) * self.ewma


@dataclass(slots=True)
class WorkerState:
    """All that a worker exports; the training thread writes it, the metrics server's thread reads it."""

    step: int = 0
    total_steps: int = 0
    least_batch_size: int = 1
    epoch: int = 0
    phase: str = contract.PHASE_PREPARING
    loss: float = math.nan
    plans_rejected: int = 0
    steps_replayed: int = 0
    steps_nonfinite: int = 0
    taken_over: Origin | None = None
    evaluated: contract.Evaluated | None = None


class WorkerMetrics(Collector):
    """Exports a WorkerState and the counters of the version in force."""

    def __init__(self, job: str, worker: str, group: str, in_collective: Callable[[], bool]) -> None:
        self.state = WorkerState()
        self.counters = VersionCounters()
        self.memory = PeakMemory()
        self._samples_at_once = 0
        self._labels = (job, worker, group)
        self._in_collective = in_collective

    def follow(self, plan: contract.Plan, rank: int) -> None:
        """A new version is in force: its counters start at zero."""
        member = plan.members[rank]
        parts = sampler.micro_batches(0, member.batch_size, member.micro_batch_size)
        self._samples_at_once = max(stop - start for start, stop in parts)
        self.memory.begin()
        self.counters = VersionCounters(plan.version, plan.generation, member.batch_size)

    def committed(self, samples: int, times: StepTimes, smoothing: float, *, measured: bool) -> None:
        """A step of `samples` here is committed; only one fit for measuring counts."""
        if measured:
            self.counters.add(samples, times.own, times.wait, smoothing)
        self.memory.step(self._samples_at_once, times.own + times.wait, measured=measured)

    @contextlib.contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Inside, the worker is in another phase of its life."""
        before, self.state.phase = self.state.phase, phase
        try:
            yield
        finally:
            self.state.phase = before

    def collect(self) -> Iterable[Metric]:
        """Prometheus' way to ask."""
        state, counters, peak = self.state, self.counters, self.memory.peak
        labels = (*self._labels, str(counters.plan_version))
        gauges: list[tuple[str, str, float | None]] = [
            (contract.METRIC_OWN_SECONDS_EWMA, "Moving average of own seconds per step.", counters.ewma),
            (contract.METRIC_BATCH_SIZE, "Samples per step in the plan in force.", counters.batch_size),
            (contract.METRIC_PLAN_VERSION, "Version of the plan in force.", counters.plan_version),
            (contract.METRIC_GENERATION, "Generation of the plan in force.", counters.generation),
            (contract.METRIC_STEP, "Committed steps.", state.step),
            (contract.METRIC_TOTAL_STEPS, "Steps of the whole job; 0 if not known yet.", state.total_steps),
            (contract.METRIC_LEAST_BATCH_SIZE, "Samples with fewer of which it trains badly.", state.least_batch_size),
            (contract.METRIC_EPOCH, "Epoch, from 0.", state.epoch),
            (contract.METRIC_IN_COLLECTIVE, "1 while only waiting for others.", float(self._in_collective())),
            (contract.METRIC_LOSS, "Global training loss.", None if math.isnan(state.loss) else state.loss),
            (contract.METRIC_MEMORY_BYTES, "Resident memory.", resources.memory_bytes()),
            (contract.METRIC_MEMORY_LIMIT_BYTES, "Memory limit in force.", self.memory.limit_bytes()),
            (contract.METRIC_CPU_LIMIT, "CPU limit in force, cores.", resources.cpu_limit_cores()),
        ]
        if peak is not None:
            most = peak.memory_bytes + self.memory.children_bytes()
            gauges += [
                (contract.METRIC_MEMORY_PEAK_BYTES, "Most memory in a measured step of the version.", most),
                (contract.METRIC_MEMORY_BATCH_SIZE, "Samples at once in those steps.", peak.batch_size),
            ]
        totals: list[tuple[str, str, float | None]] = [
            (contract.METRIC_STEPS, "Measured steps of the version.", counters.steps),
            (contract.METRIC_SAMPLES, "Samples in measured steps.", counters.samples),
            (contract.METRIC_OWN_SECONDS, "Own seconds in measured steps.", counters.own_seconds),
            (
                contract.METRIC_OWN_SECONDS_SQUARED,
                "Sum of squared own seconds of measured steps.",
                counters.own_seconds_squared,
            ),
            (contract.METRIC_WAIT_SECONDS, "Seconds waited in measured steps.", counters.wait_seconds),
            (
                contract.METRIC_CPU_THROTTLED_SECONDS,
                "Seconds held back by the CPU limit.",
                resources.cpu_throttled_seconds(),
            ),
            (contract.METRIC_PLANS_REJECTED, "Plans that were refused.", state.plans_rejected),
            (contract.METRIC_STEPS_REPLAYED, "Steps replayed after a failure.", state.steps_replayed),
            (contract.METRIC_STEPS_NONFINITE, "Steps with a loss that is no number.", state.steps_nonfinite),
        ]
        for name, text, value in gauges:
            if value is not None:
                gauge = GaugeMetricFamily(name, text, labels=contract.LABELS)
                gauge.add_metric(labels, value)
                yield gauge
        for name, text, value in totals:
            if value is not None:
                counter = CounterMetricFamily(name, text, labels=contract.LABELS)
                counter.add_metric(labels, value)
                yield counter
        if state.taken_over is not None:
            resumed = GaugeMetricFamily(
                contract.METRIC_RESUMED_STEP,
                "Step of an earlier job's checkpoint that training went on from.",
                labels=(*contract.LABELS, contract.LABEL_RESUMED_FROM),
            )
            resumed.add_metric((*labels, state.taken_over.job_uid), state.taken_over.step)
            yield resumed
        phase = GaugeMetricFamily(
            contract.METRIC_PHASE, "1 for the phase the worker is in.", labels=(*contract.LABELS, "phase")
        )
        phase.add_metric((*labels, state.phase), 1.0)
        yield phase
        if state.evaluated is not None:
            yield from _evaluation(labels, state.evaluated)


def _evaluation(labels: tuple[str, ...], evaluated: contract.Evaluated) -> Iterator[Metric]:
    values = GaugeMetricFamily(
        contract.METRIC_EVALUATION, "What was evaluated last, by metric.", labels=(*contract.LABELS, "metric")
    )
    for name, value in evaluated.metrics:
        values.add_metric((*labels, name), value)
    yield values
    step = GaugeMetricFamily(
        contract.METRIC_EVALUATION_STEP, "Committed steps of the model evaluated last.", labels=contract.LABELS
    )
    step.add_metric(labels, evaluated.step)
    yield step


def serve(metrics: WorkerMetrics, port: int) -> None:
    """Serve `metrics` on all interfaces from a thread of its own.

    Raises OSError, naming the port, if it cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    server = MetricsServer(registry, port)
    # A forked process (a data loader's) would hold the port, and answer nobody, for some time after this one's end.
    os.register_at_fork(after_in_child=server.socket.close)


class Series:
    """Appends step records to a file as JSON lines; without a file it drops them.

    Records are written some at a time, for a small step would feel a write of its own: a worker that is killed may lose
    those of `_WRITE_SECONDS`, which were not followed by another yet.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: RawIOBase | None = None
        self._unwritten: list[contract.StepRecord | contract.EvaluationRecord] = []
        self._written = -math.inf
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            atexit.register(self.flush)
            # A process that the script forks, and that ends in order, would write these a second time.
            os.register_at_fork(after_in_child=self._unwritten.clear)

    @property
    def is_written(self) -> bool:
        """Whether there is a file, and it can still be written."""
        return self._file is not None

    def write(self, record: contract.StepRecord | contract.EvaluationRecord) -> None:
        """Append one record."""
        if self._file is None:
            return
        self._unwritten.append(record)
        if not self._written <= record.time < self._written + _WRITE_SECONDS:
            self._written = record.time
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet. A full disk ends the series, not the training."""
        if self._file is None or not self._unwritten:
            return
        lines = "".join(f"{each.to_json()}\n" for each in self._unwritten).encode()
        self._unwritten.clear()
        try:
            if self._file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            log.warning("no more step records: %s", error)
            self._file.close()
            self._file = None
