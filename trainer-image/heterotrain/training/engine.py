"""The protocol of a step: begin, compute, commit; and at the boundaries between steps, everything else.

All ranks take every decision at the same boundary from the same facts (position, plan, and what the last exchange
summed), so none needs a vote. If all of a step's buckets completed on one rank, every rank contributed: so a
rank commits when its buckets completed. A failed step changes nothing and comes again, under new groups.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain.data import sampler
from heterotrain.data.evaluation import Evaluation
from heterotrain.data.sampler import Rules
from heterotrain.gradients.losses import Losses
from heterotrain.gradients.mean_check import MeanCheck
from heterotrain.groups.membership import MembershipError
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest, Worker
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.reporting.timing import clock_for
from heterotrain.state.batch_norm import (
    GOOD_SAMPLES_WITH_BATCH_NORM,
    LEAST_SAMPLES_WITH_BATCH_NORM,
    has_batch_norm,
)
from heterotrain.state.buffers import KeptBuffers
from heterotrain.state.randomness import StepRandomness
from heterotrain.state.replica_check import ReplicaChecksum
from heterotrain.state.replica_watch import ReplicaWatch
from heterotrain.state.training_state import TrainingState
from heterotrain.training.accounts import Accounts, Committed
from heterotrain.training.division import Division
from heterotrain.training.exchange import Exchange
from heterotrain.training.group import Room, Team
from heterotrain.training.loss_scale import LossScale
from heterotrain.training.progress import Progress
from heterotrain.training.running_step import RunningStep
from heterotrain.training.schedules import Schedules
from heterotrain.training.subject import Subject

log = logging.getLogger(__name__)

# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5

# A peer may be in the middle of a step of its own when a collective fails.
_STEPS_TO_WAIT = 20

# What is written or measured after every step is a part of what a step takes, and no exception that would not count.
_USUAL_AFTER_STEPS = 10
_MAY_BE_USUAL = ("checkpoint", "evaluation", "pause")


class Engine:
    """One worker's side of the training; the script reaches it only through what the session returns."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        worker: Worker | None,
        plans: Plans,
        subject: Subject,
        handle: Any,
        loss_reduction: str,
        counted: bool,
        metrics: WorkerMetrics,
        series: Series,
        stop: StopRequest,
    ) -> None:
        """Without a `worker` it is a run alone. `handle` is what the script holds of the model."""
        self.state = TrainingState(
            subject.module, subject.optimizer, subject.order.length, config, "" if worker is None else worker.job_uid
        )
        self.evaluation = Evaluation(config)
        self.schedules = Schedules()
        self.after_step: list[Callable[[], object]] = []
        self.finished = False
        self.stopped = False
        self.ended_because = ""  # this worker's script has ended the job
        self.looked_at = False  # a forward without gradients happened since the last step
        self._config = config
        self._worker = worker
        self._plans = plans
        self._subject = subject
        self._handle = handle
        self._optimizer = subject.optimizer
        normalises = has_batch_norm(subject.module)
        least = LEAST_SAMPLES_WITH_BATCH_NORM if normalises else 1
        metrics.state.least_batch_size = GOOD_SAMPLES_WITH_BATCH_NORM if normalises else 1
        rules = Rules(subject.order.length, least, config.last_step, config.epochs, config.steps, config.endless)
        self._division = Division(rules, self.state, plans)
        self._metrics = metrics
        self._series = series
        self._stop = stop
        self._clock = clock_for(subject.device)
        self._step = RunningStep()
        self._losses = Losses(config.reaches_target_loss, config.target_every_steps)
        on_gpu = subject.device.type == "cuda"
        self._accounts = Accounts(self._losses, metrics, series, config.smoothing, one_later=on_gpu)
        checksum = ReplicaChecksum(subject.module, subject.optimizer)
        watch = ReplicaWatch(subject.hyperparameters, checksum, self.state)
        self._exchange = Exchange(plans, self._losses, stop, watch)
        self._team = Team(
            subject=subject,
            state=self.state,
            plans=plans,
            losses=self._losses,
            exchange=self._exchange,
            clock=self._clock,
            evaluation=self.evaluation,
        )
        self._buffers = KeptBuffers(subject.module)
        self._randomness = StepRandomness(config.seed, "alone" if worker is None else worker.name, subject.device)
        self._loss_scale = LossScale(subject, self._team, self._losses, loss_reduction, counted, MeanCheck())
        told = None if worker is None else worker.global_batch_size
        self.progress = Progress(rules, self.state, plans, self._losses, self.evaluation, self._exchange, metrics, told)
        self._started = False
        self._mark = "first"
        self._marked_steps = 0  # in a row, by now
        self._replays = 0

    # --- what the session and the iterator ask ------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the loop over the batches has begun."""
        return self._started

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

        Raises MembershipError, CheckpointError, ValueError if the workers' scripts differ; SystemExit(143) if asked to
        stop meanwhile.
        """
        self._started = True
        self.state.checked()
        self._subject.settle()
        self._stop.deferred = True
        if self._worker is not None:
            self._await_membership(self._worker)
        self._metrics.state.taken_over = self.state.taken_over
        for remark in self._division.remarks():
            log.warning("%s", remark)
        for remark in self.schedules.remarks(self.progress.total_steps, self._config.epochs):
            log.warning("%s", remark)
        self._follow()
        self._randomness.start(self.position.step)
        self._metrics.state.phase = contract.PHASE_TRAINING
        self._clock.restart()

    def begin_epoch(self) -> bool:
        """Whether there is another epoch; False when the job is done."""
        return not self.finished and self._boundary()

    def go_on(self) -> None:
        """What the script did between two loops over batches is no part of a step."""
        self._clock.restart()

    def begin_step(self, epoch: int | None = None) -> bool:
        """Go to the next step that is to be computed; False when the job is done, or if it is in another epoch.

        Raises RuntimeError if the script did not commit the batch that it got.
        """
        if self._step.is_open:
            raise RuntimeError(
                "optimizer.step() was not called for the batch before; every batch must be committed once"
            )
        if 0 < self._step.opened < len(self._step.parts):
            self._open_part()
            return True
        if self.finished or not self._boundary() or (epoch is not None and self.position.epoch != epoch):
            return False
        if self._plans.take_due(self.position.begins):
            self._follow()
        self._checkpoint_if_due()
        self._open_step()
        return True

    def _boundary(self) -> bool:
        """Do whatever is due between two steps; whether there is a next one. The same on all workers."""
        while True:
            done = self.progress.done
            if self._team.broken:
                if not self._recovered():
                    return False
            elif not done and (self._exchange.stop_agreed or (self._team.generation is None and self._stop.requested)):
                self._leave_on_request()
            elif self.evaluation.is_due(self.position, at_the_end=done):
                self._evaluate()
            elif done:
                if self._team.unite():
                    self._end()
                    return False
            else:
                return True

    def step_without_samples(self) -> None:
        """Do a whole step in which this worker has no samples."""
        # Scripts clear gradients before backward or after the step; this step stands in for either kind.
        self._optimizer.zero_grad()
        self._subject.check_frozen()
        self._loss_scale.nothing(self._step)
        self._subject.passes.without_samples()
        self.commit()
        self._optimizer.zero_grad()

    def commit(self) -> None:
        """Commit the running step, or drop it if its gradients did not arrive. See `ElasticOptimizer.step`."""
        step, reduction, passes = self._step, self._team.reduction, self._subject.passes
        if not step.is_open:
            raise RuntimeError("optimizer.step() was called without a new batch")
        if not step.scaled:
            raise RuntimeError("the loss did not go through session.scale(); its gradient would be weighted wrongly")
        passes.check_done()
        step.is_open = False
        if reduction is None:
            self._clock.bucket_ready()
            self._subject.give_unreached_zeros()
        else:
            reduction.in_collective = False
            if not step.is_last_part and not reduction.error:
                return
            if not reduction.reduced and not reduction.error:
                raise RuntimeError(
                    "the gradients are not complete, so none were summed over the workers: the loss does not reach all "
                    "parameters, and reached others in the first steps; say "
                    "session.prepare(..., find_unused_parameters=True)"
                )
            if step.source is not None:
                self._team.hand_on_changes(step.source, takes=step.share is None)
            if reduction.error:
                self._drop_step(reduction.error)
                return
        passes.close()
        self._clock.gradients_arrived()
        self._subject.hyperparameters.used(self.position.step, self._subject.hyperparameters.values())
        self._optimizer.step()
        self._subject.drop_gradients_of_lacking()
        self._settle()
        if self.progress.done:
            self._boundary()

    def left(self) -> None:
        """The script has left the loop over the batches. If it has not ended the job before, it is not at its end."""
        if self.finished or self.stopped:
            return
        self._accounts.settle()
        if self.ended_because:
            if self._step.is_open:
                self._drop_step("the script left it")
            # The others are in the midst of a step that this worker will not finish; all meet once more to end it.
            self._team.give_up("the script has ended the job")
            self._boundary()
            return
        self._subject.passes.close()
        total = self.progress.total_steps
        self._team.leave(
            f"its script left the loop over the batches after step {self.position.step} of {total or 'unknown'}, by a "
            "break, a return or an exception; a script that wants to end the job calls session.stop()"
        )

    def end(self, reason: str) -> None:
        """See `Session.stop`."""
        self.ended_because = reason
        self._exchange.done = True
        if self._team.generation is None:
            self._exchange.done_agreed = True

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """See `Session.pause`."""
        log.info("step %d: paused for %s", self.position.step, name)
        with self._metrics.phase(contract.PHASE_PAUSED):
            yield
        self._mark = self._mark or "pause"
        if not self._step.is_open:
            self._clock.restart()

    # --- inside a step ------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        if self.position.begins:
            self._subject.hyperparameters.saw(self._subject.order.checksum(self.position.epoch))
        self._step = self._division.next_step()
        if self._step.samples != self._division.usual_samples():
            self._mark = self._mark or "partial"
        self._subject.accumulator.drop()
        self._open_part()
        self._randomness.begin(self.position.step)
        if self._team.reduction is not None:
            self._team.reduction.begin(watched=self._step.source == self.rank)
            self._buffers.keep()
        self._losses.begin()
        if self._team.generation is not None and self._exchange.is_due(self.position.step):
            self._accounts.settle()
            self._team.begin_exchange(self._metrics.counters.mean_seconds)

    def _open_part(self) -> None:
        first = self._step.opened == 0
        self._step.open_part()
        self._subject.passes.open(first_part=first, last_part=self._step.is_last_part)

    def _drop_step(self, why: str) -> None:
        log.warning("step %d failed and will be replayed: %s", self.position.step, why)
        self._step = RunningStep()
        self._subject.passes.close()
        self._subject.accumulator.drop()
        self._optimizer.zero_grad()
        self._subject.drop_gradients_of_lacking()
        self._buffers.restore()

    def _settle(self) -> None:
        """The step is committed: count it, then learn what the others had to say."""
        step, before = self._step, self.position
        samples = step.own_samples
        if self.looked_at:
            self.looked_at = False
            self._mark = self._mark or "evaluation"
        self._team.buffers.saw(samples)
        self._accounts.commit(
            Committed(
                time=time.time(),
                step=before.step,
                epoch=before.epoch,
                version=self._plans.in_force.version,
                batch=self._plans.batch_size,
                samples=samples,
                share=samples / step.samples,
                times=self._clock.finish(),
                loss=self._losses.commit(self._team.loss_factor),
                mark=self._mark_of_step(),
            )
        )
        self._mark = ""
        self._replays = 0
        self._division.commit(step)
        self.schedules.step(self.position.step, self.position.epoch, epochs=self.position.epoch - before.epoch)
        for function in self.after_step:
            function()
        self._exchange.committed(samples, step.samples)
        self.progress.show()
        self._hear()

    def _mark_of_step(self) -> str:
        """Why the committed step does not count as measured; empty if it does."""
        self._marked_steps = self._marked_steps + 1 if self._mark else 0
        usual = self._marked_steps > _USUAL_AFTER_STEPS and self._mark in _MAY_BE_USUAL
        return "" if usual else self._mark

    def _hear(self) -> None:
        """Take in what the workers have told each other, if this step carried an exchange."""
        signals = self._losses.alone() if self._team.generation is None else self._team.hear()
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
        self._accounts.settle()
        self._metrics.follow(plan, self._plans.rank)
        self._mark = self._mark or "first"
        self.progress.show()
        self.progress.show_total()
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
            self._team.leave("it was asked to stop before all had met")
            self._leave_on_request()

    def _await_membership(self, worker: Worker) -> None:
        """Wait until a plan holds this very worker, then meet the others."""
        state = self._metrics.state
        state.phase = contract.PHASE_WAITING
        self._plans.await_first(worker, self._check_stop)
        state.phase = contract.PHASE_STARTING
        room = Room(
            spare_port=worker.metrics_port,
            backend=self._config.backend,
            check_stop=self._check_stop,
            is_asked_to_stop=lambda: self._stop.requested,
            secret=worker.secret,
        )
        self._team.join(room, self._config.startup_deadline_seconds)

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
        # Nobody knows yet how long the first step takes, with whatever is compiled in it.
        usual = self._accounts.slow_step_seconds * _STEPS_TO_WAIT or self._config.startup_deadline_seconds
        self._team.form(max(self._config.progress_timeout_seconds, usual))
        log.info("group formed again at step %d", self.position.step)
        if self._plans.in_force.version != self._metrics.counters.plan_version:
            self._follow()
        self._mark = "replay"
        self._clock.restart()
        state.phase = contract.PHASE_TRAINING

    def _recovered(self) -> bool:
        """Form the group again; False if the others are gone but this worker has committed the job's last step."""
        try:
            self._reform()
        except MembershipError:
            if not self.progress.done:
                raise
            self._end()
            return False
        return True

    def _end(self) -> None:
        """The job's last step is committed, and the group is left."""
        self._accounts.settle()
        self._save()
        self._team.part()
        self.finished = True
        self._stop.deferred = False
        self._metrics.state.phase = contract.PHASE_FINISHED

    def _leave_on_request(self) -> None:
        """Save what is committed and leave in order. Raises SystemExit(143)."""
        self.stopped = True
        self._accounts.settle()
        self._team.unite()
        self._save()
        self._team.part()
        log.info("asked to stop: leaving after step %d", self.position.step)
        raise SystemExit(contract.EXIT_PREEMPTED)

    # --- evaluations and checkpoints ----------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Measure the model as it is after the newest step, together; if a worker fails it is for later."""
        self._checkpoint_if_due()  # an evaluation may take long, and be the last that a worker does
        if not self._team.unite():
            return
        self._accounts.settle()
        with self._metrics.phase(contract.PHASE_EVALUATING):
            record = self.evaluation.run(
                self._subject.module,
                self._plans.in_force.members,
                self.rank,
                self.position.step,
                self._team.tell_all,
                handle=self._handle,
            )
        if record is not None and self.rank == 0:
            self._series.write(record)
            self._metrics.state.evaluated = contract.Evaluated.of(record.step, record.metrics.items())
        self._mark = self._mark or "evaluation"
        self._clock.restart()

    def _checkpoint_if_due(self) -> None:
        if self.state.checkpoint_is_due and self._team.unite():
            self._save()
            # Everybody's next step holds the leader's writing, as own time there and as waiting elsewhere.
            self._mark = self._mark or "checkpoint"

    def _save(self) -> None:
        """The leader writes a checkpoint of what it has committed. Raises CheckpointError."""
        with self._metrics.phase(contract.PHASE_CHECKPOINTING):
            self.state.save(writes=self._worker is not None and self.rank == 0)
