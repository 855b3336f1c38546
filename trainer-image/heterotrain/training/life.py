"""The life of a worker in a job: join, follow plans, evaluate, write checkpoints, leave; a step is in `protocol.py`.

All workers take every decision at the same boundary between two steps, from the same facts (position, plan, and what
the last exchange summed), so none needs a vote.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from heterotrain import contract
from heterotrain.data.evaluation import Evaluation
from heterotrain.data.sampler import Position, Rules, Share
from heterotrain.gradients.losses import Losses
from heterotrain.groups.assembly import JobOverError, MembershipError
from heterotrain.groups.generation import STOP_SECONDS
from heterotrain.job.worker import Worker
from heterotrain.reporting.timing import clock_for
from heterotrain.state.batch_norm import (
    GOOD_SAMPLES_WITH_BATCH_NORM,
    LEAST_SAMPLES_WITH_BATCH_NORM,
    has_batch_norm,
)
from heterotrain.state.loop_changes import LoopChanges
from heterotrain.state.replica_check import ReplicaChecksum
from heterotrain.state.replica_watch import ReplicaWatch
from heterotrain.state.snapshot import Snapshots, Written
from heterotrain.state.training_state import TrainingState
from heterotrain.training.accounts import Accounts
from heterotrain.training.context import Context
from heterotrain.training.exchange import Exchange
from heterotrain.training.gathering import Meeting
from heterotrain.training.group import Group
from heterotrain.training.leaving import Leaving
from heterotrain.training.progress import Progress
from heterotrain.training.protocol import BatchProtocol, StepProtocol
from heterotrain.training.remarks import remarks_on_division
from heterotrain.training.saving import Saving
from heterotrain.training.subject import Subject
from heterotrain.training.synchronous import Synchronous
from heterotrain.training.warming import WarmUp

log = logging.getLogger(__name__)

# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5

# A peer may be in the middle of a step of its own when a collective fails.
_STEPS_TO_WAIT = 20

# Between two exchanges of members that hold, which then go over to another plan within a second.
_HOLDING_SECONDS = 0.2

# For the others, once this worker has committed the job's last step.
_FINISHING_SECONDS = 10.0


class OvertakenPlanError(MembershipError):
    """This worker does not train yet, and the plan that it waits for is not the newest any more."""


class WorkerLife:
    """The life of one worker; the script reaches it only through what the session returns."""

    def __init__(self, context: Context, subject: Subject) -> None:
        config, plans, metrics = context.config, context.plans, context.metrics
        normalises = has_batch_norm(subject.module)
        least = LEAST_SAMPLES_WITH_BATCH_NORM if normalises else 1
        if context.worker is not None and context.worker.elastic:
            metrics.state.protocol = contract.MEMBERS_MAY_END
        metrics.state.least_batch_size = GOOD_SAMPLES_WITH_BATCH_NORM if normalises else 1
        worker = context.worker
        job_uid = "" if worker is None else worker.job_uid
        self.state = TrainingState(
            subject.module,
            subject.optimizer,
            subject.order.length,
            config,
            job_uid,
            snapshots=Snapshots(metrics.memory, self._wrote),
        )
        self.loop_changes = LoopChanges(lambda: self.state.registered_modules)
        self.evaluation = Evaluation(config)
        self.started = False  # the loop over the batches has begun
        self._ended = False  # this worker's script has ended the job
        self._context = context
        self._plans = plans
        self._metrics = metrics
        self._stop = context.stop
        self.subject = subject
        rules = Rules(subject.order.length, least, config.last_step, config.epochs, config.steps, config.endless)
        self._clock = clock_for(subject.device)
        losses = Losses(config.reaches_target_loss, config.target_every_steps)
        on_gpu = subject.device.type == "cuda"
        self.accounts = Accounts(losses, metrics, context.series, config.smoothing, one_later=on_gpu)
        checksum = ReplicaChecksum(subject.module, subject.optimizer)
        watch = ReplicaWatch(subject.hyperparameters, checksum, self.state)
        self._exchange = Exchange(plans, losses, context.stop, watch)
        self._group = Group(
            subject=subject,
            state=self.state,
            plans=plans,
            losses=losses,
            exchange=self._exchange,
            clock=self._clock,
            evaluation=self.evaluation,
        )
        self._saving = Saving(context, self.state, self._group, self.accounts)
        self.leaving = Leaving(
            context,
            self.state,
            group=self._group,
            exchange=self._exchange,
            accounts=self.accounts,
            saving=self._saving,
        )
        self.step: StepProtocol = Synchronous(
            context, subject, state=self.state, rules=rules, group=self._group, accounts=self.accounts
        )
        self.warm_up = WarmUp(context, subject, state=self.state, group=self._group, rules=rules)
        batch_size = None if worker is None else worker.global_batch_size
        self.progress = Progress(
            rules=rules,
            state=self.state,
            plans=plans,
            losses=losses,
            evaluation=self.evaluation,
            exchange=self._exchange,
            batch_size=batch_size,
        )
        self._replays = 0
        self._followed: contract.Plan | None = None

    @property
    def batch(self) -> BatchProtocol:
        """The batch that the script has: one of a step, or of the warm-up before all steps."""
        return self.warm_up if self.warm_up.is_running else self.step

    def coming(self) -> Iterator[Share]:
        """What the script's loop will get, from the batch under way on."""
        return self.batch.coming()

    @property
    def rank(self) -> int:
        """This worker's place in the plan; 0 leads."""
        return self._plans.rank

    @property
    def position(self) -> Position:
        """How far the job has come."""
        return self.state.position

    @property
    def in_collective(self) -> bool:
        """Whether this worker has done its own part of the step and only waits for the others."""
        return self._group.in_collective

    # --- the loop over the batches ------------------------------------------------------------------------------

    def settle(self) -> None:
        """The script has made everything, and its loop begins. Raises CheckpointError if a checkpoint of what it has
        made could not be read again."""
        self.started = True
        self.state.checked()
        self.subject.settle()

    def start(self) -> None:
        """Become a member, take over the newest checkpoint, and stand before the first step.

        Raises MembershipError, CheckpointError, ValueError if the workers' scripts differ; SystemExit(143) if asked to
        stop meanwhile.
        """
        self._stop.deferred = True
        if self._context.worker is not None:
            self._await_membership(self._context.worker)
        self._metrics.state.taken_over = self.state.taken_over
        if self.rank == 0:
            for remark in remarks_on_division(self.progress.rules, self._plans.active):
                log.warning("%s", remark)
        for remark in self.subject.schedules.remarks(self.progress.total_steps, self._context.config.epochs):
            log.warning("%s", remark)
        self._follow()
        self.step.start()
        self._metrics.state.phase = contract.PHASE_TRAINING
        self._clock.restart()

    def begin_epoch(self) -> bool:
        """Whether there is another epoch; False when the job is done."""
        return not self.leaving.finished and self._boundary()

    def go_on(self) -> None:
        """Continue after what the script did between two loops over batches, which is no part of a step."""
        self._clock.restart()

    def begin_step(self, epoch: int | None = None) -> bool:
        """Go to the next batch that the script is to compute; False when the job is done, or if it is in another epoch.

        Raises RuntimeError if the script did not commit the batch that it got.
        """
        if self.step.next_part():
            return True
        if self.leaving.finished or not self._boundary() or (epoch is not None and self.position.epoch != epoch):
            return False
        self._saving.if_due()
        self.step.begin()
        return True

    def step_without_samples(self) -> None:
        """Do a whole step in which this worker has no samples."""
        # Scripts clear gradients before backward or after the step; this step stands in for either kind.
        self.subject.optimizer.zero_grad()
        self.step.compute_nothing()
        self.commit()
        self.subject.optimizer.zero_grad()

    def commit(self) -> None:
        """Commit the running step, or drop it if its gradients did not arrive. See `ElasticOptimizer.step`."""
        in_loop = self.loop_changes.end()
        if self.batch.commit():
            self._replays = 0
            if self.progress.done:
                self._boundary()
        if in_loop:
            self.loop_changes.begin()

    def _boundary(self) -> bool:
        """Do whatever is due between two steps; whether there is a next one. The same on all workers."""
        while True:
            done = self.progress.done
            if self._group.broken:
                if not self._recovered():
                    return False
            elif not done and (self._exchange.stopping or (self._group.generation is None and self._stop.requested)):
                if self.leaving.stop_or_let_go():
                    self._reform(repeats=False)
            elif self.evaluation.is_due(self.position, at_the_end=done):
                self._evaluate()
            elif not done and self._exchange.transition.due:
                self._change_members()
            elif done:
                if self._group.unite():
                    self.leaving.finish()
                    return False
            elif self._plans.take_due(self.position.begins or self._plans.active.holds):
                self._follow()
            elif self._plans.active.holds:
                self._hold()
            else:
                return True

    def _hold(self) -> None:
        """Take no step for a moment, since the plan says so. By exchanges alone the members learn of other plans, and
        of those among them that are to stop; each boundary looks whether anything is due, as between two steps.
        """
        if self._metrics.state.phase != contract.PHASE_HOLDING:
            log.info("step %d: holding, for plan %d says so", self.position.step, self._plans.active.version)
            self.accounts.settle()
            self._metrics.state.phase = contract.PHASE_HOLDING
        self._saving.while_holding()
        time.sleep(_HOLDING_SECONDS)
        self.step.exchange_alone()

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """See `Session.pause`."""
        if self.warm_up.is_running:
            yield  # nobody waits for this worker
            return
        log.info("step %d: paused for %s", self.position.step, name)
        with self._metrics.phase(contract.PHASE_PAUSED):
            yield
        self.accounts.mark("pause")
        if not self.step.is_open:
            self._clock.restart()

    # --- plans --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Another plan is active than before."""
        self._saving.await_written()  # other batches may need the memory that its copy takes
        plan, state, position = self._plans.active, self._metrics.state, self.position
        self._followed = plan
        self.accounts.settle()
        self._metrics.follow(plan, self.rank)
        self.accounts.mark("first")
        if state.phase == contract.PHASE_HOLDING and not plan.holds:
            state.phase = contract.PHASE_TRAINING
            self._clock.restart()
        state.step, state.epoch = position.step, position.epoch
        if self._saving.is_elastic:
            state.protocol = self._group.protocol  # over nccl another one than before the members had met
        state.total_steps = self.progress.total_steps
        if self._context.worker is not None:
            log.info(
                "step %d: following plan %d: %d of %d samples",
                position.step,
                plan.version,
                self._plans.batch_size,
                plan.global_batch_size,
            )

    # --- membership ---------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        if self._stop.requested:
            self._group.leave_early("it was asked to stop before all had met")
            self.leaving.leave_on_request()

    def _await_membership(self, worker: Worker) -> None:
        """Wait until a plan holds this very worker, then meet the others."""
        config, state = self._context.config, self._metrics.state
        meeting = Meeting(
            job=worker.job_uid or worker.job,
            spare_port=worker.metrics_port,
            backend=config.backend,
            elastic=worker.elastic,
            silence_seconds=config.heartbeat_timeout_seconds,
            held_seconds=config.progress_timeout_seconds,
            check_stop=self._check_wanted,
            is_asked_to_stop=lambda: self._stop.requested,
            secret=worker.secret,
        )
        while True:
            state.phase = contract.PHASE_WAITING
            self._plans.await_first(worker, self._check_stop)
            state.phase = contract.PHASE_STARTING
            try:
                self._group.join(meeting, config.startup_deadline_seconds)
                while self._group.broken and self._group.is_new and self._plans.active.continues:
                    self._group.form(config.startup_deadline_seconds)  # the others train, and may prepare once more
                return
            except OvertakenPlanError as error:
                log.info("%s", error)
            except JobOverError:
                self.leaving.leave_the_others("the job is done")

    def _check_wanted(self) -> None:
        """While this worker waits for others: whether it still has to. A member of those who go on without one another
        has to for some time, since whoever is left at last writes the checkpoint."""
        is_member = self._saving.is_elastic and not self._group.is_new
        if not is_member or self._stop.seconds > STOP_SECONDS:
            self._check_stop()
        if self._group.is_new and self._plans.overtaken:
            raise OvertakenPlanError(f"plan {self._plans.active.version} has been replaced; waiting for the next")

    def _change_members(self) -> None:
        """Go over to the next generation of members together with all that stay, or leave in order."""
        began = time.monotonic()
        self.accounts.settle()
        if self._group.part():
            self._enter(began)

    def _enter(self, began: float) -> None:
        """The next generation begins here; it is the same step on all workers."""
        succession = self._exchange.transition.succession
        assert succession is not None
        if succession.rank is None:
            self.leaving.leave_the_others("the others go on without this worker")
        with self._metrics.phase(contract.PHASE_STARTING):  # a joiner's state may take long on its way
            self._group.enter()
        if self._group.broken:
            return
        log.info(
            "step %d: generation %d of %d workers, after %.3f s",
            self.position.step,
            self._plans.active.generation,
            len(self._plans.active.members),
            time.monotonic() - began,
        )
        self._follow()
        self._clock.restart()

    def _reform(self, *, repeats: bool = True) -> None:
        """Meet the members again after a failure, which may have cost a step that is repeated.

        Raises MembershipError if those who are needed do not come back in time: then a restart from the checkpoint is
        due.
        """
        self._replays += repeats
        if self._replays > _MOST_REPLAYS_OF_A_STEP:
            raise MembershipError(
                f"step {self.position.step} failed {self._replays} times in a row: {self._group.broken}"
            )
        config, state = self._context.config, self._metrics.state
        state.phase = contract.PHASE_REFORMING
        state.steps_replayed += repeats
        self.subject.optimizer.zero_grad()
        # It is not known yet how long the first step takes, with whatever is compiled in it.
        usual = self.accounts.slow_step_seconds * _STEPS_TO_WAIT or config.startup_deadline_seconds
        before = self._plans.active
        finishing = _FINISHING_SECONDS + (3 * config.heartbeat_timeout_seconds if self._saving.is_elastic else 0)
        self._group.form(finishing if self.progress.done else max(config.progress_timeout_seconds, usual))
        if self._group.broken:
            return
        members = self._plans.active.members
        log.info("group of %d workers formed again at step %d", len(members), self.position.step)
        if len(members) != len(before.members):
            self._replays = 0
        if self._plans.active != self._followed:  # also one whose groups broke as this worker went over to them
            self._follow()
        if repeats:
            self.accounts.mark_as_replay()
        self._clock.restart()
        state.phase = contract.PHASE_TRAINING

    def _recovered(self) -> bool:
        """Form the group again; False if the others are gone but this worker has committed the job's last step. Raises
        MembershipError, also if sums may be missing in that step."""
        try:
            self._reform(repeats=not self._plans.active.holds)
        except MembershipError:
            if not self.progress.done or self._group.may_lack_sums:
                if self._group.is_out and self._plans.is_left_out:
                    self.leaving.leave_the_others("the others have gone on without this worker, as it was to leave")
                raise
            self.leaving.finish(alone=True)
            return False
        return True

    # --- evaluations --------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Measure the model as it is after the newest step, together; if a worker fails, it is done again later."""
        self._saving.if_due()  # an evaluation may take long, and be the last that a worker does
        if not self._group.unite():
            return
        self.accounts.settle()
        with self._metrics.phase(contract.PHASE_EVALUATING):
            record = self.evaluation.run(
                self.subject.module,
                self._plans.active.members,
                self.rank,
                self.position.step,
                self._group.gather,
                handle=self.subject.handle,
            )
        if record is not None and self.rank == 0:
            self._context.series.write(record)
            self._metrics.state.evaluated = contract.Evaluated.of(record.step, record.metrics.items())
        self.accounts.mark("evaluation")
        self._clock.restart()

    def _wrote(self, written: Written) -> None:
        self._metrics.state.checkpoint = written

    # --- leaving --------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """See `Session.stop`."""
        if self.warm_up.is_running:
            return  # what it has seen says nothing of the job
        self._ended = True
        self._exchange.done = True
        if self._group.generation is None:
            self._exchange.done_agreed = True

    def loop_left(self) -> None:
        """The script has left the loop over the batches. If it has not ended the job before, it is not at its end."""
        if self.leaving.over:
            return
        self.accounts.settle()
        if self._ended and self._group.repeats:
            if self.step.is_open:
                self.step.drop("the script left it")
            # The others are in the midst of a step that this worker will not finish; all meet once more to end it.
            self._group.give_up("the script has ended the job")
            self._boundary()
            return
        self.subject.passes.close()
        total = self.progress.total_steps
        why = (
            "over nccl a script that calls session.stop() has to go on until the loop ends by itself"
            if self._ended
            else "a script that wants to end the job calls session.stop()"
        )
        if self._ended:
            log.error("step %d: the script left the loop over the batches; %s", self.position.step, why)
        self._group.leave_early(
            f"its script left the loop over the batches after step {self.position.step} of {total or 'unknown'}, by a "
            f"break, a return or an exception; {why}"
        )
