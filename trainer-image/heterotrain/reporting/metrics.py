"""A worker's series at /metrics, and JSON lines of steps and evaluations for a full record.

Counters belong to the active plan's version: they start again with it, and only it is exported, so that a reader never
mixes times of different batch sizes.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.data import sampler
from heterotrain.origin import Origin
from heterotrain.reporting import resources
from heterotrain.reporting.cpu_use import CpuMeter
from heterotrain.reporting.families import Figures, families
from heterotrain.reporting.peak import PeakMemory
from heterotrain.reporting.server_metrics import ServerMetrics
from heterotrain.reporting.serving import MetricsServer
from heterotrain.worker_metrics import WORKERS

if TYPE_CHECKING:
    from heterotrain.reporting.timing import StepTimes

log = logging.getLogger(__name__)

_WRITE_SECONDS = 0.25

_Record = contract.StepRecord | contract.UpdateRecord | contract.EvaluationRecord


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
    smaller: Mapping[int, tuple[int, float]] = field(default_factory=dict)  # by samples: steps, and own seconds in all
    cpu: CpuMeter = field(default_factory=CpuMeter)
    rank: int | None = None
    members: int | None = None

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

    def add_smaller(self, samples: int, own: float) -> None:
        """Count a step with fewer samples than the batch, which is a measurement at that many."""
        steps, seconds = self.smaller.get(samples, (0, 0.0))
        # Another thread may go through the one before.
        self.smaller = {**self.smaller, samples: (steps + 1, seconds + own)}


@dataclass(slots=True)
class WorkerState:
    """All that a worker exports; the training thread writes it, the metrics server's thread reads it."""

    step: int = 0
    total_steps: int = 0
    least_batch_size: int = 1
    protocol: int = contract.MEMBERS_STAY
    epoch: int = 0
    phase: str = contract.PHASE_PREPARING
    loss: float = math.nan
    plans_rejected: int = 0
    steps_replayed: int = 0
    steps_nonfinite: int = 0
    learning_rate_factor: float | None = None
    taken_over: Origin | None = None
    evaluated: contract.Evaluated | None = None
    warm_up: dict[int, float] = field(default_factory=dict)  # seconds per step, by batch size
    checkpoint: tuple[int, float] | None = None  # the step of the newest one, and the seconds that it took


class WorkerMetrics(Collector):
    """Exports a WorkerState and the counters of the active version."""

    def __init__(self, job: str, worker: str, group: str, in_collective: Callable[[], bool]) -> None:
        self.state = WorkerState()
        self.counters = VersionCounters()
        self.memory = PeakMemory()
        self.server = ServerMetrics(job, worker)  # has series on a parameter server alone
        self._samples_at_once = 0
        self._labels = (job, worker, group)
        self._in_collective = in_collective

    def follow(self, plan: contract.Plan, rank: int) -> None:
        """A new version is active: its counters start at zero."""
        member = plan.members[rank]
        parts = sampler.micro_batches(0, member.batch_size, member.micro_batch_size)
        self._samples_at_once = max(stop - start for start, stop in parts)
        self.memory.begin(self._samples_at_once)
        self.counters = VersionCounters(
            plan.version, plan.generation, member.batch_size, rank=rank, members=len(plan.members)
        )
        self.state.warm_up = {}  # what is measured from here on says more

    def committed(self, samples: int, times: StepTimes, smoothing: float, *, measured: bool) -> None:
        """A step of `samples` here is committed; only one fit for measuring counts."""
        counters = self.counters
        if measured:
            counters.add(samples, times.own, times.wait, smoothing)
        elif not counters.steps:
            counters.cpu = CpuMeter()  # to change plans, and to make groups, is no part of a step's cost
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
        """Prometheus' way to ask. What is not known has no series."""
        counters = self.counters  # once, for the training thread replaces it when the version changes
        exported = families(WORKERS, [((*self._labels, str(counters.plan_version)), self._figures(counters))])
        return [family for family in (*exported, *self.server.collect()) if family.samples]

    def _figures(self, counters: VersionCounters) -> Figures:
        """The value of every metric in the table of workers' metrics."""
        state, peak, cpu = self.state, self.memory.peak, counters.cpu.read()
        evaluated, origin = state.evaluated, state.taken_over
        checkpoint_step, checkpoint_seconds = state.checkpoint or (None, None)
        return {
            table.OWN_SECONDS_EWMA: counters.ewma,
            table.BATCH_SIZE: counters.batch_size,
            table.PLAN_VERSION: counters.plan_version,
            table.GENERATION: counters.generation,
            table.RANK: counters.rank,
            table.MEMBERS: counters.members,
            table.STEP: state.step,
            table.TOTAL_STEPS: state.total_steps,
            table.LEAST_BATCH_SIZE: state.least_batch_size,
            table.PROTOCOL: state.protocol,
            table.EPOCH: state.epoch,
            table.IN_COLLECTIVE: float(self._in_collective()),
            table.LOSS: None if math.isnan(state.loss) else state.loss,
            table.LEARNING_RATE_FACTOR: state.learning_rate_factor,
            table.MEMORY_BYTES: resources.memory_bytes(),
            table.MEMORY_LIMIT_BYTES: self.memory.limit_bytes(),
            table.CPU_LIMIT: resources.cpu_limit_cores(),
            table.MEMORY_PEAK_BYTES: peak.memory_bytes + self.memory.children_bytes() if peak else None,
            table.MEMORY_BATCH_SIZE: peak.batch_size if peak else None,
            table.STEPS: counters.steps,
            table.SAMPLES: counters.samples,
            table.OWN_SECONDS: counters.own_seconds,
            table.OWN_SECONDS_SQUARED: counters.own_seconds_squared,
            table.WAIT_SECONDS: counters.wait_seconds,
            table.SMALLER_STEP_SECONDS: {
                (str(samples),): seconds / steps for samples, (steps, seconds) in counters.smaller.items()
            },
            table.OBSERVED_SECONDS: cpu.observed_seconds,
            table.CPU_SECONDS: cpu.cpu_seconds,
            table.CPU_THROTTLED_OF_VERSION: cpu.throttled_seconds,
            table.CPU_WAIT_SECONDS: cpu.wait_seconds,
            table.CPU_PRESSURE_SECONDS: cpu.pressure_seconds,
            table.COMPUTING_THREADS: cpu.threads,
            table.CPU_THROTTLED_SECONDS: resources.cpu_throttled_seconds(),
            table.PLANS_REJECTED: state.plans_rejected,
            table.STEPS_REPLAYED: state.steps_replayed,
            table.STEPS_NONFINITE: state.steps_nonfinite,
            table.CHECKPOINT_STEP: checkpoint_step,
            table.CHECKPOINT_SECONDS: checkpoint_seconds,
            table.RESUMED_STEP: {(origin.job_uid,): origin.step} if origin else None,
            table.WARM_UP_SECONDS: {(str(batch),): seconds for batch, seconds in state.warm_up.items()},
            table.PHASE: {(state.phase,): 1},
            table.EVALUATION: {(name,): value for name, value in evaluated.metrics} if evaluated else None,
            table.EVALUATION_STEP: evaluated.step if evaluated else None,
        }


def serve(metrics: WorkerMetrics, port: int) -> None:
    """Serve `metrics` on all interfaces from a thread of its own.

    Raises OSError, naming the port, if it cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    server = MetricsServer(registry, port)
    # A forked process (a data loader's) would hold the port without answering for some time after this one's end.
    os.register_at_fork(after_in_child=server.socket.close)


class Series:
    """Appends step records to a file as JSON lines; without a file it drops them.

    Records are written some at a time, for a small step would feel a write of its own: a worker that is killed may lose
    those of `_WRITE_SECONDS`, which were not followed by another yet.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: RawIOBase | None = None
        self._unwritten: list[_Record] = []
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

    def write(self, record: _Record) -> None:
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
