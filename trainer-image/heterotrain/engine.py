"""The protocol of a step: begin, compute, commit; and at the boundaries between steps, everything else.

All ranks take every decision at the same boundary from the same facts (position, plan, and what the last exchange
summed), so none needs a vote. If all of a step's buckets completed on one rank, every rank contributed: so a
rank commits when its buckets completed. A failed step changes nothing and comes again, under new groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from heterotrain import contract, sampler
from heterotrain.batch_norm import LEAST_SAMPLES_WITH_BATCH_NORM, has_batch_norm
from heterotrain.contract import TrainingConfig
from heterotrain.division import Division
from heterotrain.evaluation import Evaluation
from heterotrain.exchange import Exchange
from heterotrain.gradient import ElasticModel
from heterotrain.loss_scale import LossScale
from heterotrain.losses import Losses
from heterotrain.membership import MembershipError
from heterotrain.metrics import Series, WorkerMetrics
from heterotrain.plans import Plans
from heterotrain.progress import Progress
from heterotrain.running_step import RunningStep
from heterotrain.team import Team
from heterotrain.timing import clock_for
from heterotrain.training_state import TrainingState
from heterotrain.worker import StopRequest, Worker

log = logging.getLogger(__name__)

# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5

# What is written or measured after every step is a part of what a step takes, and no exception that would not count.
_USUAL_AFTER_STEPS = 10
_MAY_BE_USUAL = ("checkpoint", "evaluation")


class Engine:
    """One worker's side of the training; the script reaches it only through what the session returns."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        worker: Worker | None,
        plans: Plans,
        model: ElasticModel,
        optimizer: torch.optim.Optimizer,
        dataset_length: int,
        loss_reduction: str,
        counted: bool,
        find_unused_parameters: bool,
        device: torch.device,
        metrics: WorkerMetrics,
        series: Series,
        stop: StopRequest,
    ) -> None:
        """Without a `worker` it is a run alone."""
        self.state = TrainingState(model, optimizer, dataset_length, config)
        self.evaluation = Evaluation(config)
        self.finished = False
        self.stopped = False
        self._config = config
        self._worker = worker
        self._plans = plans
        self._model = model
        self._optimizer = optimizer
        least = LEAST_SAMPLES_WITH_BATCH_NORM if has_batch_norm(model.module) else 1
        self._division = Division(config, self.state, plans, dataset_length, least)
        self._metrics = metrics
        self._series = series
        self._stop = stop
        self._clock = clock_for(device)
        self._step = RunningStep()
        self._losses = Losses(config.reaches_target_loss, config.target_every_steps)
        self._exchange = Exchange(plans, self._losses, stop)
        self._team = Team(
            model=model,
            state=self.state,
            plans=plans,
            losses=self._losses,
            exchange=self._exchange,
            clock=self._clock,
            device=device,
            evaluation=self.evaluation,
        )
        self._loss_scale = LossScale(model, self._team, self._losses, loss_reduction, counted, find_unused_parameters)
        self._progress = Progress(config, dataset_length, self.state, plans, self._losses, self.evaluation, metrics)
        self._mark = "first"
        self._marked_steps = 0  # in a row, by now
        self._replays = 0

    # --- what the session and the iterator ask ------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the loop over the batches has begun."""
        return self.finished or self._stop.deferred

    @property
    def rank(self) -> int:
        """This worker's place in the plan; 0 leads."""
        return self._plans.rank

    @property
    def position(self) -> sampler.Position:
        """How far the job has come."""
        return self.state.position

    @property
    def in_collective(self) -> bool:
        """Whether this worker has done its own part of the step and only waits for the others."""
        return self._team.reduction is not None and self._team.reduction.in_collective

    @property
    def share(self) -> sampler.Share | None:
        """The samples that this worker is to compute on now, None if it has none in the running step."""
        return self._step.share

    def coming_shares(self) -> Iterator[sampler.Share]:
        """This worker's shares from the running step on, should the plan stay as it is."""
        return self._division.coming(self._step)

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        """See `Session.scale`."""
        return self._loss_scale.scale(self._step, loss, count)

    # --- the life of a job --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Become a member, take over the newest checkpoint, and stand before the first step.

        Raises MembershipError, CheckpointError; SystemExit(143) if asked to stop meanwhile.
        """
        if self.finished or self._team.generation is not None:
            raise RuntimeError("the batches end with the job; they cannot be iterated twice")
        self.state.checked()
        self._stop.deferred = True
        if self._worker is not None:
            self._await_membership(self._worker)
        for remark in self._division.remarks():
            log.warning("%s", remark)
        self._follow()
        self._metrics.state.phase = contract.PHASE_TRAINING
        self._clock.restart()

    def begin_step(self) -> bool:
        """Go to the next step that is to be computed; False when the job is done.

        Raises RuntimeError if the script did not commit the batch that it got.
        """
        if self._step.is_open:
            raise RuntimeError(
                "optimizer.step() was not called for the batch before; every batch must be committed once"
            )
        if 0 < self._step.opened < len(self._step.parts):
            self._open_part()
            return True
        while True:
            if self._team.broken:
                if not self._mended():
                    return False
            elif self._exchange.stop_agreed or (self._team.generation is None and self._stop.requested):
                self._leave_on_request()
            elif self.evaluation.is_due(self.position, at_the_end=self._progress.done):
                self._evaluate()
            elif self._progress.done:
                if self._team.merge_statistics() and self._team.await_all():
                    self._end()
                    return False
            else:
                if self._plans.take_due(self.position.cursor == 0):
                    self._follow()
                self._checkpoint_if_due()
                self._open_step()
                return True

    def step_without_samples(self) -> None:
        """Do a whole step in which this worker has no samples."""
        # Scripts clear gradients before backward or after the step; this step stands in for either kind.
        self._optimizer.zero_grad()
        self._loss_scale.nothing(self._step)
        self._model.contribute_nothing()
        self.commit()
        self._optimizer.zero_grad()

    def commit(self) -> None:
        """Commit the running step, or drop it if its gradients did not arrive. See `ElasticOptimizer.step`."""
        step, reduction = self._step, self._team.reduction
        if not step.is_open:
            raise RuntimeError("optimizer.step() was called without a new batch")
        if not step.scaled:
            raise RuntimeError("the loss did not go through session.scale(); its gradient would be weighted wrongly")
        step.is_open = False
        if reduction is None:
            self._clock.bucket_ready()
        else:
            reduction.in_collective = False
            if not step.is_last_part and not reduction.error:
                return
            if not reduction.reduced and not reduction.error:
                raise RuntimeError(
                    "no gradients were summed over the workers: the forward must go through the model that "
                    "session.prepare() returned, and backward() through what session.scale() returned; if the forward "
                    "leaves parameters out, session.prepare() is to be told find_unused_parameters=True"
                )
            if step.source is not None:
                self._team.hand_on_changes(step.source, takes=step.share is None)
            if reduction.error:
                self._drop_step(reduction.error)
                return
        self._clock.gradients_arrived()
        self._optimizer.step()
        self.state.step_schedules()
        self._settle()

    # --- inside a step ------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        plan = self._plans.in_force
        self._step = self._division.next_step()
        if self._step.samples != plan.global_batch_size:
            self._mark = self._mark or "partial"
        self._model.accumulator.drop()
        self._open_part()
        if self._team.reduction is not None:
            self._team.reduction.begin(watched=self._step.source == self.rank)
            self.state.keep()
        self._losses.begin()
        self._team.begin_exchange(self._metrics.counters.mean_seconds)

    def _open_part(self) -> None:
        self._step.open_part()
        if self._step.is_last_part:
            self._model.accumulator.release()
        else:
            self._model.accumulator.collect()

    def _drop_step(self, why: str) -> None:
        log.warning("step %d failed and will be replayed: %s", self.position.step, why)
        self._step = RunningStep()
        self._model.accumulator.drop()
        self._optimizer.zero_grad()
        self.state.restore()

    def _settle(self) -> None:
        """The step is committed: count it, then learn what the others had to say."""
        times = self._clock.finish()
        samples = self._step.own_samples
        if self._team.reduction is not None and self._team.reduction.evaluated:
            self._team.reduction.evaluated = False
            self._mark = self._mark or "evaluation"
        mark = self._mark_of_step()
        self._team.statistics.saw(samples)
        loss = self._losses.commit(samples / self._step.samples, self._team.loss_factor)
        self._metrics.committed(samples, times, self._config.smoothing, measured=not mark)
        self._series.write(self._step.record(self.position, self._plans, times, loss, mark))
        self._mark = ""
        self._replays = 0
        self._division.commit(self._step)
        self._exchange.committed(samples, self._step.samples)
        self._progress.show()
        self._hear()

    def _mark_of_step(self) -> str:
        """Why the committed step does not count as measured; empty if it does."""
        self._marked_steps = self._marked_steps + 1 if self._mark else 0
        usual = self._marked_steps > _USUAL_AFTER_STEPS and self._mark in _MAY_BE_USUAL
        return "" if usual else self._mark

    def _hear(self) -> None:
        """Take in what the workers have told each other, if this step carried an exchange."""
        signals = self._team.hear()
        if signals is None:
            return
        state = self._metrics.state
        if signals.nonfinite:
            state.steps_nonfinite += int(signals.nonfinite)
            if self.rank == 0:
                log.warning("the loss was no finite number lately, by step %d", self.position.step)
        loss = self._losses.hear(signals)
        if loss is not None:
            state.loss = loss

    # --- plans --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """The plan in force is another than before."""
        plan, batch_size = self._plans.in_force, self._plans.batch_size
        self._metrics.follow(plan, self._plans.rank)
        self._mark = self._mark or "first"
        self._progress.show()
        if self._worker is not None:
            log.info(
                "step %d: following plan %d: %d of %d samples",
                self.position.step,
                plan.version,
                batch_size,
                plan.global_batch_size,
            )

    # --- membership ---------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        if self._stop.requested:
            self._leave_on_request()

    def _await_membership(self, worker: Worker) -> None:
        """Wait until a plan holds this very worker, then meet the others."""
        state = self._metrics.state
        state.phase = contract.PHASE_WAITING
        self._plans.await_first(worker, self._check_stop)
        state.phase = contract.PHASE_STARTING
        self._team.join(worker.metrics_port, self._config.startup_deadline_seconds, self._check_stop)

    def _reform(self) -> None:
        """Meet the same members again after a failure.

        Raises MembershipError if they do not all come back in time: then a restart from the checkpoint is due.
        """
        self._replays += 1
        if self._replays > _MOST_REPLAYS_OF_A_STEP:
            raise MembershipError(
                f"step {self.position.step} failed {self._replays} times in a row: {self._team.broken}"
            )
        state = self._metrics.state
        state.phase = contract.PHASE_REFORMING
        state.steps_replayed += 1
        self._optimizer.zero_grad()
        self._team.form(self._config.progress_timeout_seconds)
        log.info("group formed again at step %d", self.position.step)
        if self._plans.in_force.version != self._metrics.counters.plan_version:
            self._follow()
        self._mark = "replay"
        self._clock.restart()
        state.phase = contract.PHASE_TRAINING

    def _mended(self) -> bool:
        """Form the group again; False if the others are gone but this worker has committed the job's last step."""
        try:
            self._reform()
        except MembershipError:
            if not self._progress.done:
                raise
            self._end()
            return False
        return True

    def _end(self) -> None:
        """The job's last step is committed, and the group is left."""
        self._save()
        self._team.part()
        self.finished = True
        self._stop.deferred = False
        self._metrics.state.phase = contract.PHASE_FINISHED

    def _leave_on_request(self) -> None:
        """Save what is committed and leave in order. Raises SystemExit(143)."""
        self.stopped = True
        self._team.merge_statistics()
        self._save()
        self._team.part()
        log.info("asked to stop: leaving after step %d", self.position.step)
        raise SystemExit(contract.EXIT_PREEMPTED)

    # --- evaluations and checkpoints ----------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Measure the model as it is after the newest step, together; if a worker fails it is for later."""
        self._checkpoint_if_due()  # an evaluation may take long, and be the last that a worker does
        if not self._team.merge_statistics():
            return
        with self._metrics.phase(contract.PHASE_EVALUATING):
            record = self.evaluation.run(
                self._model, self._plans.in_force.members, self.rank, self.position.step, self._team.tell_all
            )
        if record is not None and self.rank == 0:
            self._series.write(record)
        self._mark = self._mark or "evaluation"
        self._clock.restart()

    def _checkpoint_if_due(self) -> None:
        if self.state.checkpoint_is_due and self._team.merge_statistics():
            self._save()
            # Everybody's next step holds the leader's writing, as own time there and as waiting elsewhere.
            self._mark = self._mark or "checkpoint"

    def _save(self) -> None:
        """The leader writes a checkpoint of what it has committed. Raises CheckpointError."""
        with self._metrics.phase(contract.PHASE_CHECKPOINTING):
            self.state.save(writes=self._worker is not None and self.rank == 0)
