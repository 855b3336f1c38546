"""One job in figures, as the newest look at it left them; a snapshot, so that no series outlives what it tells of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from heterotrain.contract import (
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_PAUSED,
    PHASE_TRAINING,
    Evaluated,
)
from heterotrain.foreign import as_text, is_measurement
from heterotrain_operator.core.facts import ended
from heterotrain_operator.core.lifecycle.evaluations import newest_evaluation
from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.metrics import names

READY_PHASES = frozenset({PHASE_TRAINING, PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_PAUSED})

Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What is exported of a job; None: not known.

    `planned` are worker, group and batch size (samples per step) in the plan in force. `imbalance` is the slowest own
    time over the mean; 1 is balance.
    """

    namespace: str
    name: str
    policy: str
    apply_at: str
    dry_run: bool
    phase: str
    conditions: tuple[tuple[str, bool], ...]
    wanted: int
    ready: int
    silent: int
    adjustments: int
    restarts: int
    plan_version: int | None
    global_batch: int | None
    planned: tuple[tuple[str, str, int], ...]
    imbalance: float | None
    step: int | None
    evaluated: Evaluated | None = None


def figures_of(namespace: str, job: Job, seen: Seen, decision: Decision, memory: Memory) -> JobFigures:
    """The figures of a job just after a decision about it."""
    plan = decision.plan or seen.plan
    live = [worker for worker in seen.workers if not ended(worker)]
    return JobFigures(
        namespace=namespace,
        name=job.name,
        policy=job.policy,
        apply_at=job.apply_at,
        dry_run=job.dry_run,
        phase=decision.phase,
        conditions=tuple(
            (condition.type, condition.status) for condition in decision.conditions if condition.status is not None
        ),
        wanted=sum(group.replicas for group in job.groups),
        ready=sum(worker.metrics is not None and worker.metrics.phase in READY_PHASES for worker in live),
        silent=sum(worker.metrics is None and worker.phase == "Running" for worker in live),
        adjustments=memory.adjustments,
        restarts=memory.restarts,
        plan_version=plan.version if plan is not None else None,
        global_batch=plan.global_batch_size if plan is not None else None,
        planned=tuple((m.name, m.group, m.batch_size) for m in plan.members) if plan is not None else (),
        imbalance=None if decision.imbalance is None else 1 + decision.imbalance,
        step=max((worker.metrics.step for worker in seen.workers if worker.metrics is not None), default=None),
        evaluated=newest_evaluation(seen.workers),
    )


def families(jobs: Iterable[JobFigures], sources_up: dict[tuple[str, str], bool]) -> Iterator[Metric]:
    """All series of all jobs. `sources_up` tells by namespace and name whether a job's metrics could be read."""
    jobs = list(jobs)
    info = _gauge(names.JOB_INFO, "1; what the job asks for is in the labels.", "policy", "apply_at", "dry_run")
    phase = _gauge(names.JOB_PHASE, "1 for the phase the job is in.", "phase")
    condition = _gauge(names.JOB_CONDITION, "1 if the condition holds, 0 if not.", "condition")
    planned = _gauge(names.JOB_PLANNED_BATCH_SIZE, "Samples per step in the plan in force.", "worker", "group")
    evaluation = _gauge(names.JOB_EVALUATION, "What the script evaluated last, by metric.", "metric")
    for job in jobs:
        key = (job.namespace, job.name)
        for metric, value in job.evaluated.metrics if job.evaluated is not None else ():
            _add(evaluation, (*key, metric), value)
        _add(info, (*key, job.policy, job.apply_at, str(job.dry_run).lower()), 1)
        _add(phase, (*key, job.phase), 1)
        for kind, holds in job.conditions:
            _add(condition, (*key, kind), holds)
        for worker, group, batch in job.planned:
            _add(planned, (*key, worker, group), batch)
    yield from (info, phase, condition, planned, evaluation)
    for name, text, field in (
        (names.JOB_WORKERS_WANTED, "Workers that the job asks for.", "wanted"),
        (names.JOB_WORKERS_READY, "Workers that train.", "ready"),
        (names.JOB_WORKERS_SILENT, "Running workers whose metrics could not be read.", "silent"),
        (names.JOB_PLAN_VERSION, "Version of the plan in force.", "plan_version"),
        (names.JOB_GLOBAL_BATCH_SIZE, "Samples per step over all workers in the plan in force.", "global_batch"),
        (names.JOB_IMBALANCE_RATIO, "Own time of the slowest worker over the mean; 1 is balance.", "imbalance"),
        (names.JOB_STEP, "Committed steps.", "step"),
    ):
        yield _filled(_gauge(name, text), jobs, field)
    for name, text, field in (
        (names.JOB_ADJUSTMENTS, "Plans that changed a batch size.", "adjustments"),
        (names.JOB_RESTARTS, "Restarts after a worker's own fault.", "restarts"),
    ):
        yield _filled(CounterMetricFamily(name, text, labels=names.JOB_LABELS), jobs, field)
    up = _gauge(names.JOB_METRICS_SOURCE_UP, "1 if the workers' metrics could be asked for, 0 if not.")
    for key, answers in sources_up.items():
        _add(up, key, answers)
    yield up


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=(*names.JOB_LABELS, *labels))


def _filled(family: Family, jobs: Iterable[JobFigures], field: str) -> Family:
    for job in jobs:
        value = getattr(job, field)
        if value is not None:
            _add(family, (job.namespace, job.name), value)
    return family


def _add(family: Family, labels: tuple[str, ...], value: float) -> None:
    """One sample. A figure that no exposition can hold is left out: with it nobody's could be read, of any job."""
    if is_measurement(value) or isinstance(value, bool):
        family.add_metric([as_text(label, len(label)) for label in labels], float(value))
