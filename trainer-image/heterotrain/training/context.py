"""The job around one worker's training."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain.contract import TrainingConfig
from heterotrain.job.farewell import Farewell
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest, Worker
from heterotrain.reporting.metrics import Series, WorkerMetrics


@dataclass(frozen=True, slots=True)
class Context:
    """What a worker's training takes from its job, and where it reports; without a `worker` it runs alone."""

    config: TrainingConfig
    worker: Worker | None
    plans: Plans
    metrics: WorkerMetrics
    series: Series
    stop: StopRequest
    farewell: Farewell | None = None

    @property
    def name(self) -> str:
        """The worker's name."""
        return "alone" if self.worker is None else self.worker.name
