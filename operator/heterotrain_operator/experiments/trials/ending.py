"""How a trial ended, and what the job's memory has counted by then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.lifecycle.publishing import known_workers
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.trials.result import FailedWorker, failing_worker
from heterotrain_operator.experiments.trials.stop import Interrupted
from heterotrain_operator.experiments.trials.trial import Trial

logger = logging.getLogger(__name__)


INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trial ended: its last phase, the reason, and the signal that stopped it, None if none did."""

    phase: str
    message: str
    stopped_by: Interrupted | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Adjustments and restarts, as the job's memory has counted them, and the fewest samples that workers need."""

    adjustments: int = 0
    restarts: int = 0
    least_batches: Mapping[str, int] = field(default_factory=dict)


def history_of(trial: Trial, ending: Ending, counted: Counted) -> TrialHistory:
    """What is known of a trial besides its steps."""
    return TrialHistory(
        policy=trial.policy,
        round=trial.round,
        steps=(),
        adjustments=counted.adjustments,
        phase=ending.phase,
        message=ending.message,
        restarts=counted.restarts,
        level=trial.level,
    )


def failed_worker(ending: Ending, failures: Sequence[str], log_file: Callable[[str], Path]) -> FailedWorker | None:
    """The worker for which the trial failed, if it failed for one."""
    name = failing_worker(ending.message, failures) if ending.phase == "Failed" else None
    return None if name is None else FailedWorker(name, log_file(name))


def counted_in(job: Job, cluster: LocalCluster) -> Counted:
    """What the job's memory has counted at the end; nothing if it cannot be read."""
    try:
        seen, memory = cluster.observe()
    except (OSError, ValueError) as error:
        logger.warning("adjustments and restarts are not known: %s", error)
        return Counted()
    if memory is None:
        return Counted()
    known = known_workers(job, memory, seen.plan)
    leasts = {name: worker.least_batch for name, worker in known.items()}
    return Counted(memory.batching.adjustments, memory.budget.restarts, leasts)
