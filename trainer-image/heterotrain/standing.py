"""Where a job stands, as its script may ask at any time: how far it is, what was measured, and who trains."""

from __future__ import annotations

import math
from collections.abc import Mapping

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain.job.planfile import PlanFile
from heterotrain.job.worker import Worker
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.training.life import WorkerLife
from heterotrain.training.warming import UnknownMetrics


class Standing:
    """What a `Session` knows; it has a life once it is prepared."""

    def __init__(self, worker: Worker | None, config: TrainingConfig) -> None:
        self._worker = worker
        self._config = config
        self._life: WorkerLife | None = None
        self._metrics = WorkerMetrics(
            "" if worker is None else worker.job,
            "alone" if worker is None else worker.name,
            "" if worker is None else worker.group,
            lambda: self._life is not None and self._life.in_collective,
        )

    @property
    def step(self) -> int:
        """Steps committed so far by the job, restarts included."""
        return 0 if self._life is None else self._life.position.step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return 0 if self._life is None else self._life.position.epoch

    @property
    def loss(self) -> float:
        """The mean training loss of the global batches of the newest steps that the workers have exchanged, about a
        second's; the same on all workers, NaN before. What `scale()` returns is only a part of a loss."""
        return self._metrics.state.loss

    @property
    def epoch_loss(self) -> float:
        """The mean training loss of the newest epoch that has ended, over the samples of all workers (over what was
        counted, after `prepare(..., counted=True)`); the same on all workers, NaN before. Known as soon as an inner
        loop over `epochs()` has ended. A step belongs to the epoch in which it begins."""
        return math.nan if self._life is None or self.warming else self._life.state.epoch_loss.last

    @property
    def metrics(self) -> Mapping[str, float]:
        """What `evaluate()` measured last, by name; the same on all workers, empty before, NaN while `warming`. A
        worker of a parameter server may look before that has measured anything: unknown names are NaN there, too."""
        if self._life is None:
            return {}
        evaluation = self._life.evaluation
        if self.warming:
            return UnknownMetrics()
        return (UnknownMetrics if evaluation.is_elsewhere else dict)(evaluation.values)

    @property
    def evaluated_step(self) -> int:
        """The steps that were committed when `metrics` were measured; -1 before."""
        return -1 if self._life is None or self.warming else self._life.evaluation.step

    @property
    def warming(self) -> bool:
        """Whether the loop runs for a few batches that are no part of the training, so that this worker, which was
        created while others train, does not hold them up when it joins them. Nothing of it stays in what is trained."""
        return self._life is not None and self._life.warm_up.is_running

    @property
    def total_steps(self) -> int:
        """Steps of the whole job, if the global batch stays as it is. Raises RuntimeError where that is not known yet:
        before `prepare()`, unless the manifest names steps."""
        if self._config.steps is not None and self._config.epochs is None:
            return self._config.steps
        if self._life is None:
            raise RuntimeError("session.total_steps follows from the data set, hence is known after session.prepare()")
        if not self._life.progress.total_steps:
            raise RuntimeError(
                "session.total_steps is known only once the loop over the batches has begun, since batches may change; "
                "what needs it before, such as a schedule, goes with training.steps in place of training.epochs"
            )
        return self._life.progress.total_steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch at the present global batch. Raises RuntimeError where that is not known yet."""
        return self._prepared("steps_per_epoch").progress.steps_per_epoch

    @property
    def global_batch_size(self) -> int:
        """Samples of a step over all workers. Raises RuntimeError where that is not known yet."""
        return self._prepared("global_batch_size").progress.global_batch_size

    @property
    def world_size(self) -> int:
        """Workers that train at present. Raises RuntimeError before the loop over the batches."""
        return self._prepared("world_size").progress.world_size

    @property
    def leader(self) -> bool:
        """Whether this worker should do what one worker alone should do, like printing or saving a result.

        Before the loop over the batches it is what the plan says that is there already; RuntimeError if there is none,
        as at a job's first start. What is to be done once before the loop belongs into `first_here()`.
        """
        if self._worker is None:
            return True
        if self._life is not None and self._life.started:
            return self._life.leads and not self.warming
        if self._config.mode == contract.ASP:
            return self._worker.serves
        plan = PlanFile(self._worker.plan_dir).newest()
        rank = None if plan is None else plan.rank_of(self._worker.name, self._worker.uid)
        if rank is None:
            raise RuntimeError(
                "session.leader is known only once the loop over the batches has begun; what one worker is to do "
                "before it, such as a download, belongs into `with session.first_here(path) as first:`"
            )
        return rank == 0

    def _prepared(self, what: str) -> WorkerLife:
        if self._life is None:
            raise RuntimeError(f"session.{what} was used before session.prepare()")
        return self._life

    def _before_loop(self, what: str) -> WorkerLife:
        if self._life is None or self._life.started:
            raise RuntimeError(f"session.{what} belongs between session.prepare() and the loop over the batches")
        return self._life
