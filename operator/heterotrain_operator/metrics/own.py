"""What the operator exports about itself and its jobs, in a registry of its own.

Jobs are exported from snapshots: series of a job or worker that has ended are gone after the next round, and totals
come from the memory beside the plan, so that a restart of the operator does not reset them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.registry import Collector

from heterotrain.contract import (
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_HOLDING,
    PHASE_PAUSED,
    PHASE_TRAINING,
)
from heterotrain.metric import Metric
from heterotrain.reporting.families import Family, Figures, families
from heterotrain.reporting.serving import MetricsServer
from heterotrain_operator.core.facts import ended, newest_evaluation, without_server
from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.metrics import table

READY_PHASES = frozenset({PHASE_TRAINING, PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_PAUSED, PHASE_HOLDING})


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What is exported of a job, by metric of `table.JOBS`."""

    namespace: str
    name: str
    figures: Figures


def figures_of(namespace: str, job: Job, seen: Seen, decision: Decision, memory: Remembered) -> JobFigures:
    """The figures of a job just after a decision about it."""
    plan = decision.plan or seen.plan
    live = [worker for worker in without_server(job, seen) if not ended(worker)]
    steps = [worker.metrics.step for worker in seen.workers if worker.metrics is not None]
    evaluated = newest_evaluation(seen.workers)
    figures: Figures = {
        table.JOB_INFO: {(job.policy, job.apply_at, str(job.dry_run).lower()): 1},
        table.JOB_PHASE: {(decision.phase,): 1},
        table.JOB_CONDITION: {
            (condition.type,): condition.status for condition in decision.conditions if condition.status is not None
        },
        table.JOB_PLANNED_BATCH_SIZE: {(m.name, m.group): m.batch_size for m in plan.members} if plan else None,
        table.JOB_EVALUATION: {(metric,): value for metric, value in evaluated.metrics} if evaluated else None,
        table.JOB_WORKERS_WANTED: sum(group.replicas for group in job.groups) + sum(n for _, n in decision.resized),
        table.JOB_WORKERS_READY: sum(w.metrics is not None and w.metrics.phase in READY_PHASES for w in live),
        table.JOB_WORKERS_SILENT: sum(w.metrics is None and w.phase == "Running" for w in live),
        table.JOB_PLAN_VERSION: plan.version if plan else None,
        table.JOB_GLOBAL_BATCH_SIZE: plan.global_batch_size if plan else None,
        table.JOB_IMBALANCE_RATIO: None if decision.imbalance is None else 1 + decision.imbalance,
        table.JOB_STRAGGLERS: len(decision.stragglers),
        table.JOB_STRAGGLER_SLOWDOWN: {(each.worker, each.group): each.slowdown for each in decision.stragglers},
        table.JOB_STEP: max(steps, default=None),
        table.JOB_ADJUSTMENTS: memory.batching.adjustments,
        table.JOB_RESTARTS: memory.budget.restarts,
        table.JOB_TRANSITIONS: {
            ("swap",): memory.transitions.swaps,
            ("join",): memory.transitions.joins,
            ("leave",): memory.transitions.leaves,
        },
        table.JOB_TRANSITION_SECONDS: memory.transitions.idle_seconds,
        table.JOB_SCALING_THROUGHPUT: {(each.words,): each.throughput for each in decision.scaling.points}
        if decision.scaling is not None
        else None,
        table.JOB_COST: {(group,): cost for group, cost in memory.cost.spent},
    }
    return JobFigures(namespace, job.name, figures)


def job_families(jobs: Iterable[JobFigures], sources_up: Mapping[tuple[str, str], bool]) -> Iterator[Family]:
    """All series of all jobs. `sources_up` says by namespace and name whether a job's metrics could be read."""
    observed: list[tuple[Sequence[str], Figures]] = [((job.namespace, job.name), job.figures) for job in jobs]
    asked = [(key, {table.JOB_METRICS_SOURCE_UP: answers}) for key, answers in sources_up.items()]
    return families(table.JOBS, [*observed, *asked])


RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
FOLLOW_BUCKETS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds. With `applyAt: step` workers follow a plan within two seconds, with `epoch` within an epoch."""


class _Jobs(Collector):
    """The newest figures of every job; the operator writes them, the metrics server's thread reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: dict[tuple[str, str], JobFigures] = {}
        self._sources_up: dict[tuple[str, str], bool] = {}

    def put(self, figures: JobFigures) -> None:
        with self._lock:
            self._figures[figures.namespace, figures.name] = figures

    def put_source(self, key: tuple[str, str], answers: bool) -> None:
        with self._lock:
            self._sources_up[key] = answers

    def drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._figures.pop(key, None)
            self._sources_up.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._figures.clear()
            self._sources_up.clear()

    def collect(self) -> Iterator[Family]:
        with self._lock:
            figures, sources_up = list(self._figures.values()), dict(self._sources_up)
        yield from job_families(figures, sources_up)


def _of(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    """Name, help and labels, with which the library's metrics are declared."""
    return metric.name, metric.help, metric.labels


class OperatorMetrics:
    """The metrics of the operator. All methods are cheap, and may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._jobs = _Jobs()
        self.registry.register(self._jobs)
        ProcessCollector(registry=self.registry)  # CPU seconds and memory: what the operator costs
        self._leader = Gauge(*_of(table.LEADER), registry=self.registry)
        self._reconcile_seconds = Histogram(
            *_of(table.RECONCILE_SECONDS), buckets=RECONCILE_BUCKETS, registry=self.registry
        )
        self._follow_seconds = Histogram(
            *_of(table.PLAN_FOLLOW_SECONDS), buckets=FOLLOW_BUCKETS, registry=self.registry
        )
        self._errors = Counter(*_of(table.RECONCILE_ERRORS), registry=self.registry)
        for kind in table.FAILURES:
            self._errors.labels(kind)  # a rate sees the first failure only if there was a zero before it
        self._writes = Counter(*_of(table.API_WRITES), registry=self.registry)
        self._watches = Gauge(*_of(table.WATCH_UP), registry=self.registry)
        self._server: MetricsServer | None = None

    def observe_job(self, namespace: str, job: Job, seen: Seen, decision: Decision, memory: Remembered) -> None:
        """A round of a job has ended; `memory` is the one that belongs to the decision."""
        self._jobs.put(figures_of(namespace, job, seen, decision, memory))

    def source_up(self, namespace: str, name: str, answers: bool) -> None:
        """Whether the source of a job's metrics answered."""
        self._jobs.put_source((namespace, name), answers)

    def forget_job(self, namespace: str, name: str) -> None:
        """Remove the series of a job that is gone."""
        self._jobs.drop((namespace, name))

    def leading(self, leads: bool) -> None:
        """Whether this replica holds the Lease. Without it, it exports no jobs, since it does not observe them."""
        self._leader.set(leads)
        if not leads:
            self._jobs.clear()

    def reconciled(self, seconds: float) -> None:
        """A round of a job took so long."""
        self._reconcile_seconds.observe(seconds)

    def failed(self, kind: str) -> None:
        """A round of a job failed; `kind` is one of `table.FAILURES`."""
        self._errors.labels(kind).inc()

    def wrote(self, verb: str, kind: str) -> None:
        """An object was written to the API server, e.g. by `patch` of a `ConfigMap`."""
        self._writes.labels(verb, kind).inc()

    def watching(self, plural: str, namespace: str, stands: bool) -> None:
        """Whether the watch of a resource in a namespace (empty: in all) works."""
        self._watches.labels(plural, namespace).set(stands)

    def followed(self, seconds: float) -> None:
        """All workers follow a plan since now, so many seconds after it was written."""
        self._follow_seconds.observe(seconds)

    def serve(self, port: int) -> int:
        """Serve at `/metrics` on all interfaces from a thread of its own; 0 takes any free port. Returns the port.

        Raises OSError, naming the port, if it is not free.
        """
        self._server = MetricsServer(self.registry, port)
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
            self._server = None
