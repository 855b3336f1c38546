"""The figures of one job after its newest round; a snapshot, so that no series outlives what it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from heterotrain.contract import PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_HOLDING, PHASE_PAUSED, PHASE_TRAINING
from heterotrain.reporting.families import Family, Figures, families
from heterotrain_operator.core.facts import ended, newest_evaluation
from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.metrics import table

READY_PHASES = frozenset({PHASE_TRAINING, PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_PAUSED, PHASE_HOLDING})


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What is exported of a job, by metric of `table.JOBS`."""

    namespace: str
    name: str
    figures: Figures


def figures_of(namespace: str, job: Job, seen: Seen, decision: Decision, memory: Memory) -> JobFigures:
    """The figures of a job just after a decision about it."""
    plan = decision.plan or seen.plan
    live = [worker for worker in seen.workers if not ended(worker)]
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
        table.JOB_WORKERS_WANTED: sum(group.replicas for group in job.groups) - sum(n for _, n in decision.removed),
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
    }
    return JobFigures(namespace, job.name, figures)


def job_families(jobs: Iterable[JobFigures], sources_up: Mapping[tuple[str, str], bool]) -> Iterator[Family]:
    """All series of all jobs. `sources_up` says by namespace and name whether a job's metrics could be read."""
    observed: list[tuple[Sequence[str], Figures]] = [((job.namespace, job.name), job.figures) for job in jobs]
    asked = [(key, {table.JOB_METRICS_SOURCE_UP: answers}) for key, answers in sources_up.items()]
    return families(table.JOBS, [*observed, *asked])
