"""The protocol of a step: begin, compute, commit; and at the boundaries between steps, everything else.

All ranks take every decision at the same boundary from the same facts (position, plan, and what the last exchange
summed), so none needs a vote. If all of a step's buckets completed on one rank, every rank contributed: so a
rank commits when its buckets completed. A failed step changes nothing and comes again, under new groups.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import torch

from heterotrain import contract, sampler
from heterotrain.contract import StepRecord, TrainingConfig
from heterotrain.exchange import Exchange
from heterotrain.gradient import ElasticModel, sample_weight, zero_of
from heterotrain.losses import Losses
from heterotrain.membership import MembershipError
from heterotrain.metrics import Series, WorkerMetrics
from heterotrain.plans import Plans
from heterotrain.team import Team
from heterotrain.timing import clock_for
from heterotrain.training_state import TrainingState
from heterotrain.worker import StopRequest, Worker

log = logging.getLogger(__name__)

# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5


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
        find_unused_parameters: bool,
        device: torch.device,
        metrics: WorkerMetrics,
        series: Series,
        stop: StopRequest,
    ) -> None:
        """Without a `worker` it is a run alone."""
        self.state = TrainingState(model, optimizer, dataset_length, config)
        self.finished = False
        self.stopped = False
        self._config = config
        self._worker = worker
        self._plans = plans
        self._model = model
        self._optimizer = optimizer
        self._dataset_length = dataset_length
        self._loss_reduction = loss_reduction
        self._find_unused_parameters = find_unused_parameters
        self._metrics = metrics
        self._series = series
        self._stop = stop
        self._clock = clock_for(device)
        self._open = False  # a batch is out and not committed yet
        self._scaled = False
        self._samples = 0  # of the running step, all ranks
        self._slice = (0, 0)
        self._losses = Losses(config.target_loss, config.target_every_steps)
        self._exchange = Exchange(plans, self._losses, stop)
        self._team = Team(
            model=model,
            state=self.state,
            plans=plans,
            losses=self._losses,
            exchange=self._exchange,
            clock=self._clock,
            device=device,
        )
        self._mark = "first"
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
        """This worker's samples of the running step, None if it has none."""
        (start, stop), cursor = self._slice, self.position.cursor
        return sampler.Share(self.position.epoch, cursor + start, cursor + stop) if start < stop else None

    def coming_shares(self) -> Iterator[sampler.Share]:
        """This worker's shares from the running step on, should the plan stay as it is."""
        config, batch_sizes = self._config, self._plans.in_force.batch_sizes
        return sampler.coming_shares(
            self.position, batch_sizes, self.rank, self._dataset_length, epochs=config.epochs, steps=config.steps
        )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """See `Session.scale`."""
        if not self._open:
            raise RuntimeError("session.scale() was called outside the loop over the batches")
        start, stop = self._slice
        scaled = loss * sample_weight(stop - start, self._samples, self._loss_reduction)
        self._losses.add(scaled)
        self._scaled = True
        if self._find_unused_parameters and self._team.reduction is not None:
            return scaled + zero_of(self._model.module).to(scaled.device, scaled.dtype)
        return scaled

    # --- the life of a job --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Become a member, take over the newest checkpoint, and stand before the first step.

        Raises MembershipError, CheckpointError; SystemExit(143) if asked to stop meanwhile.
        """
        if self.finished or self._team.generation is not None:
            raise RuntimeError("the batches end with the job; they cannot be iterated twice")
        self._stop.deferred = True
        if self._worker is not None:
            self._await_membership(self._worker)
        if self._dataset_length < self._plans.in_force.global_batch_size:
            log.warning(
                "the data set has %d samples, fewer than the global batch of %d: no step is full, so none is measured "
                "and batches never change",
                self._dataset_length,
                self._plans.in_force.global_batch_size,
            )
        self._follow()
        self._metrics.state.phase = contract.PHASE_TRAINING
        self._clock.restart()

    def begin_step(self) -> bool:
        """Go to the next step that is to be computed; False when the job is done.

        Raises RuntimeError if the script did not commit the batch that it got.
        """
        if self._open:
            raise RuntimeError(
                "optimizer.step() was not called for the batch before; every batch must be committed once"
            )
        while True:
            if self._team.broken:
                if not self._mended():
                    return False
            elif self._exchange.stop_agreed or (self._team.generation is None and self._stop.requested):
                self._leave_on_request()
            elif self._done:
                if self._team.await_all():
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
        self._model.contribute_nothing()
        self._scaled = True
        self.commit()
        self._optimizer.zero_grad()

    def commit(self) -> None:
        """Commit the running step, or drop it if its gradients did not arrive. See `ElasticOptimizer.step`."""
        if not self._open:
            raise RuntimeError("optimizer.step() was called without a new batch")
        if not self._scaled:
            raise RuntimeError("the loss did not go through session.scale(); its gradient would be weighted wrongly")
        self._open = False
        reduction = self._team.reduction
        if reduction is None:
            self._clock.bucket_ready()
        else:
            reduction.in_collective = False
            if reduction.error:
                log.warning("step %d failed and will be replayed: %s", self.position.step, reduction.error)
                self._optimizer.zero_grad()
                self.state.restore()
                return
            if not reduction.reduced:
                raise RuntimeError(
                    "no gradients were summed over the workers: the forward must go through the model that "
                    "session.prepare() returned, and backward() through what session.scale() returned"
                )
        self._clock.gradients_arrived()
        self._optimizer.step()
        self.state.step_schedules()
        self._settle()

    # --- inside a step ------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        plan = self._plans.in_force
        self._samples = sampler.step_samples(self._dataset_length, self.position.cursor, plan.global_batch_size)
        self._slice = sampler.rank_slice(plan.batch_sizes, self.rank, self._samples)
        if self._samples < plan.global_batch_size:
            self._mark = self._mark or "partial"
        self._open, self._scaled = True, False
        if self._team.reduction is not None:
            self._team.reduction.reduced = False
            self.state.keep()
        self._losses.begin()
        if self._team.generation is not None:
            counters = self._metrics.counters
            try:
                self._exchange.begin(
                    self.position.step, self.state.learning_rate, counters.mean_seconds, self._team.generation
                )
            except RuntimeError as error:
                self._team.fail(error)

    def _settle(self) -> None:
        """The step is committed: count it, then learn what the others had to say."""
        times = self._clock.finish()
        start, stop = self._slice
        samples = stop - start
        if self._team.reduction is not None and self._team.reduction.evaluated:
            self._team.reduction.evaluated = False
            self._mark = self._mark or "evaluation"
        loss = self._losses.commit(samples / self._samples)
        self._metrics.committed(samples, times, self._config.smoothing, measured=not self._mark)
        self._series.write(
            StepRecord(
                time=time.time(),
                step=self.position.step,
                epoch=self.position.epoch,
                version=self._plans.in_force.version,
                batch=self._plans.batch_size,
                samples=samples,
                own=times.own,
                wait=times.wait,
                loss=loss,
                mark=self._mark,
            )
        )
        self._mark = ""
        self._replays = 0
        self.state.position = sampler.advance(self.position, self._samples, self._dataset_length)
        self._exchange.committed(samples, self._samples)
        self._show_progress()
        self._hear()

    def _hear(self) -> None:
        """Take in what the workers have told each other, if this step carried an exchange."""
        if self._team.generation is None:
            return
        try:
            signals = self._exchange.hear(self.position.step, self._team.generation)
        except RuntimeError as error:
            self._team.fail(error)
            return
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

    @property
    def _done(self) -> bool:
        config = self._config
        by_steps = config.steps is not None and self.position.step >= config.steps
        by_epochs = config.epochs is not None and self.position.epoch >= config.epochs
        return by_steps or by_epochs or self._losses.target_reached

    def _show_progress(self) -> None:
        state = self._metrics.state
        state.step, state.epoch = self.position.step, self.position.epoch
        config, batch = self._config, self._plans.in_force.global_batch_size
        if config.steps is not None:
            state.total_steps = config.steps
        elif config.epochs is not None:
            state.total_steps = sampler.steps_in_all(self.position, config.epochs, self._dataset_length, batch)

    # --- plans --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """The plan in force is another than before."""
        plan, batch_size = self._plans.in_force, self._plans.batch_size
        self._metrics.follow(plan, self._plans.rank)
        self._mark = self._mark or "first"
        self._show_progress()
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
            if not self._done:
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
        self._save()
        self._team.part()
        log.info("asked to stop: leaving after step %d", self.position.step)
        raise SystemExit(contract.EXIT_PREEMPTED)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        if self.state.checkpoint_is_due:
            self._save()
            # Everybody's next step holds the leader's writing, as own time there and as waiting elsewhere.
            self._mark = self._mark or "checkpoint"

    def _save(self) -> None:
        """The leader writes a checkpoint of what it has committed. Raises CheckpointError."""
        state, phase = self._metrics.state, self._metrics.state.phase
        state.phase = contract.PHASE_CHECKPOINTING
        self.state.save(writes=self._worker is not None and self.rank == 0)
        state.phase = phase
